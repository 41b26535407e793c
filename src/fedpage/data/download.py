"""Put files of data sets into the cache: download them, or add files that the user has.

A download goes into a `.part` file that can be continued. Every file is verified before it gets its
final name.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from fedpage.core.atomic import put
from fedpage.core.errors import InputError, did_you_mean
from fedpage.data import libsvm
from fedpage.data.registry import (
    DATASETS,
    LibsvmFile,
    cache_dir,
    find,
    libsvm_file,
    offline_hint,
    verify,
)

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
    suffix = _compression(Path(item.file))
    target = folder / (item.name + suffix)
    part = folder / f"{item.name}.part{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(address, part, report)
    except urllib.error.HTTPError as error:
        raise InputError(
            f"{address}: the server answered {error.code}; {offline_hint(item, address)}"
        ) from None
    except ValueError:
        raise InputError(f"{address}: not an address; give --mirror as https://...") from None
    except HTTPException as error:
        raise InputError(
            f"{address}: the response was cut off ({error!r}); fetch again; "
            f"{offline_hint(item, address)}"
        ) from None
    except OSError as error:  # URLError and time-outs are OSErrors, and so is a full disk
        reason = getattr(error, "reason", None) or error.strerror or error
        kept = (
            f"{part.stat().st_size:,} bytes are kept, fetch again to continue; "
            if part.exists()
            else ""
        )
        raise InputError(
            f"{address}: the download failed ({reason}); {kept}{offline_hint(item, address)}"
        ) from None
    try:
        verify(item, part)
    except InputError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{address}: the downloaded file was not used: {error}") from None
    os.replace(part, target)
    return target


class Added(NamedTuple):
    """Report a file of `add`: the data set, where its file is, and whether it was copied."""

    item: LibsvmFile
    path: Path
    is_new: bool


def add(files: Sequence[str | os.PathLike[str]], name: str | None = None) -> list[Added]:
    """Verify downloaded files of registered data sets and copy them into the cache.

    All files are verified before the first one is copied.

    Args:
        files: paths of the files, plain or compressed (.xz, .bz2, .gz). A compressed file stays
            compressed.
        name: the data set that a single file holds; by default the file's name says which.

    Returns:
        For each file the data set, the path in the cache, and whether the file was copied. A data
        set that is in the cache already is left as it is.

    Raises:
        InputError: a file is missing, is of no registered data set, or is not what its name says.
    """
    if name is not None and len(files) != 1:
        raise InputError(f"--as {name} names one data set; give one file, not {len(files)}")
    paths = [Path(file) for file in files]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file")
    items = [_recognise(path) if name is None else libsvm_file(name) for path in paths]
    present = [_find_verified(item) for item in items]
    for item, path, have in zip(items, paths, present, strict=True):
        if have is None:
            _verify(item, path, f"nothing was copied, because this is not {item.name}")
    folder, added = cache_dir(), []
    for item, path, have in zip(items, paths, present, strict=True):
        target = have or folder / (item.name + _compression(path))
        if have is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                put(target, libsvm.read_packed(path))
            except OSError as error:
                raise InputError(f"{target}: cannot be written ({error.strerror})") from None
        added.append(Added(item, target, have is None))
    return added


def _compression(path: Path) -> str:
    """Return ".xz", ".bz2", ".gz" or ""."""
    return path.suffix if path.suffix in libsvm.SUFFIXES else ""


def _recognise(path: Path) -> LibsvmFile:
    """Return the registered data set that has a file of this name."""
    stem = path.name.removesuffix(_compression(path))
    items = [item for item in DATASETS.values() if isinstance(item, LibsvmFile)]
    for item in items:
        if stem in item.stems:
            return item
    names = [item.name for item in items]
    raise InputError(
        f"{path}: no registered data set has a file of this name:{did_you_mean(stem, names)} "
        f"give --as NAME, one of {', '.join(names)}"
    )


def _find_verified(item: LibsvmFile) -> Path | None:
    """Return the data set's file if it is here and sound.

    Raises:
        InputError: there is a file, but its content is not the data set's.
    """
    path = find(item)
    if path is not None:
        _verify(item, path, "remove the file that is there now")
    return path


def _verify(item: LibsvmFile, path: Path, reason: str) -> None:
    try:
        verify(item, path)
    except InputError as error:
        raise InputError(f"{reason}: {error}") from None


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
