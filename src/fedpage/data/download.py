"""Download data sets: into a `.part` file that can be continued, is checked, and then renamed."""

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
"""Called with the bytes so far and the total, or None if the server does not state it."""


def fetch(
    item: LibsvmFile,
    *,
    folder: Path | None = None,
    mirror: str | None = None,
    report: Report | None = None,
) -> Path:
    """Download a registered data set, or continue a download, and verify the file.

    Args:
        item: the data set.
        folder: where to put the file; by default the cache directory.
        mirror: the address of another server that has the files.
        report: called after every block.

    Returns:
        The path of the file.

    Raises:
        InputError: the download failed, or the content is not the data set's.
    """
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
            f"{address}: the server answered {error.code}; {_manual_hint(item, folder)}"
        ) from None
    except ValueError:
        raise InputError(f"{address}: not an address; give --mirror as https://...") from None
    except HTTPException as error:
        raise InputError(
            f"{address}: the response was cut off ({error!r}); fetch again, "
            f"{_manual_hint(item, folder)}"
        ) from None
    except OSError as error:  # URLError and time-outs are OSErrors, and so is a full disk
        reason = getattr(error, "reason", None) or error.strerror or error
        kept = (
            f"{part.stat().st_size:,} bytes are kept, fetch again to continue; "
            if part.exists()
            else ""
        )
        raise InputError(
            f"{address}: the download failed ({reason}); {kept}{_manual_hint(item, folder)}"
        ) from None
    try:
        verify(item, part)
    except InputError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{address}: the downloaded file was not used: {error}") from None
    os.replace(part, target)
    return target


def _manual_hint(item: LibsvmFile, folder: Path) -> str:
    """Describe where to put a file that was downloaded in another way."""
    return f"or get {item.address} by hand and put it into {folder}"


def _download(address: str, part: Path, report: Report | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "fedpage"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # there are no further bytes; `verify` judges the part
            return
        raise
    with response:
        continues = response.status == 206
        if not continues:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if continues else "wb") as stream:
            while block := response.read(1 << 16):
                stream.write(block)
                have += len(block)
                if report:
                    report(have, total)
            stream.flush()
            os.fsync(stream.fileno())
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have:,} of {total:,} bytes")
