"""Downloading: into a `.part` file that can be resumed, checked, then renamed in one step."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.data.registry import LibsvmFile, cache_dir, verify

Report = Callable[[int, int | None], None]
"""Called with bytes so far and bytes in all, if the server says."""


def fetch(
    item: LibsvmFile,
    *,
    folder: Path | None = None,
    mirror: str | None = None,
    report: Report | None = None,
) -> Path:
    """Download a registered data set and verify it; returns its path. An unfinished download is continued."""
    folder = folder or cache_dir()
    address = (mirror.rstrip("/") + "/" + item.file) if mirror else item.address
    suffix = Path(item.file).suffix if Path(item.file).suffix in {".bz2", ".xz", ".gz"} else ""
    target = folder / (item.name + suffix)
    part = folder / f"{item.name}.part{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(address, part, report)
    except urllib.error.HTTPError as error:
        raise InputError(
            f"{address}: the server answered {error.code}; {by_hand(item, folder)}"
        ) from None
    except ValueError:
        raise InputError(
            f"{address}: not an address that can be fetched; give --mirror as https://..."
        ) from None
    except HTTPException as error:
        raise InputError(
            f"{address}: the answer was cut off ({error!r}); fetch again, {by_hand(item, folder)}"
        ) from None
    except OSError as error:  # URLError and time-outs are OSErrors, and so is a full disk
        reason = getattr(error, "reason", None) or error.strerror or error
        kept = (
            f"{part.stat().st_size:,} bytes are kept, fetch again to go on; "
            if part.exists()
            else ""
        )
        raise InputError(
            f"{address}: no download ({reason}); {kept}{by_hand(item, folder)}"
        ) from None
    try:
        verify(item, part)
    except InputError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{address}: what arrived was not used: {error}") from None
    os.replace(part, target)
    return target


def by_hand(item: LibsvmFile, folder: Path) -> str:
    """Where a file that was fetched some other way belongs."""
    return f"or get {item.address} by hand and put it into {folder}"


def _download(address: str, part: Path, report: Report | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "fedpage"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if (
            error.code == 416 and have
        ):  # nothing after what we have: the part is whole, or not of this file
            return
        raise
    with answer:
        goes_on = answer.status == 206
        if not goes_on:
            have = 0
        length = answer.headers.get("Content-Length")
        whole = have + int(length) if length else None
        with open(part, "ab" if goes_on else "wb") as stream:
            while block := answer.read(1 << 16):
                stream.write(block)
                have += len(block)
                if report:
                    report(have, whole)
            stream.flush()
            os.fsync(stream.fileno())
    if whole is not None and have < whole:
        raise OSError(f"the connection ended after {have:,} of {whole:,} bytes")
