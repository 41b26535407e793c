"""Put files of data sets into the cache: download them, or add files that the user has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.files import check_file, put
from fedpage.data.files import compression
from fedpage.data.registry import DATASETS, LibsvmFile, cache_dir, find, libsvm_file, verify


def fetch(
    item: LibsvmFile,
    *,
    folder: Path | None = None,
    mirror: str | None = None,
    progress: Any = False,
) -> Path:
    """Download a registered data set and verify the file.

    Args:
        item: the data set.
        folder: where to put the file; by default the cache directory.
        mirror: the address of another server that has the files.
        progress: a progress bar as `pooch.HTTPDownloader` takes it.

    Returns:
        The path of the file.

    Raises:
        InputError: the download failed, or the content is not the data set's.
    """
    import pooch

    folder = folder or cache_dir()
    address = f"{mirror.rstrip('/')}/{item.file}" if mirror else item.address
    target = folder / (item.name + compression(Path(item.file)))
    pooch.get_logger().setLevel("WARNING")  # it would print the digest of the file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            download = pooch.HTTPDownloader(progress, chunk_size=1 << 16)
            part = pooch.retrieve(address, None, target.name, scratch, downloader=download)
            verify(item, Path(part))
            os.replace(part, target)
    except InputError as error:
        raise InputError(f"{address}: the downloaded file was not used: {error}") from None
    except ValueError:
        raise InputError(f"{address}: not an address; give --mirror as https://...") from None
    except OSError as error:  # of requests, or of the disk
        answer = getattr(getattr(error, "response", None), "status_code", "")
        reason = f"the download failed ({error.strerror or type(error).__name__})"
        reason = f"the server answered {answer}" if answer else reason
        raise InputError(f"{address}: {reason}; {item.offline_hint}") from None
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
        set that is in the cache already is not copied again.

    Raises:
        InputError: a file is missing, belongs to no registered data set, or is not what its name
            says.
    """
    if name is not None and len(files) != 1:
        raise InputError(f"--as {name} names one data set; give one file, not {len(files)}")
    added: list[Added] = []
    for path in map(Path, files):
        check_file(path)
        item = _recognise(path) if name is None else libsvm_file(name)
        present = find(item)
        reason = "nothing was copied, because this is not " + item.name
        try:
            verify(item, present or path)
        except InputError as error:
            reason = "remove the file that is there now" if present else reason
            raise InputError(f"{reason}: {error}") from None
        target = present or cache_dir() / (item.name + compression(path))
        added.append(Added(item, target, present is None))
    for path, (_, target, is_new) in zip(map(Path, files), added, strict=True):
        if is_new:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                put(target, path.read_bytes())
            except OSError as error:
                raise InputError(f"{target}: cannot be written ({error.strerror})") from None
    return added


def _recognise(path: Path) -> LibsvmFile:
    """Return the registered data set that has a file of this name."""
    stem = path.name.removesuffix(compression(path))
    items = [item for item in DATASETS.values() if isinstance(item, LibsvmFile)]
    for item in items:
        if stem in item.stems:
            return item
    names = [item.name for item in items]
    raise InputError(
        f"{path}: no registered data set has a file of this name:{did_you_mean(stem, names)} "
        f"give --as NAME, one of {', '.join(names)}"
    )
