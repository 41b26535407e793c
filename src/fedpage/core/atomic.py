"""Write a file completely or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def put(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file so that after a crash it is complete and on the disk, or unchanged.

    Args:
        path: The file; an existing one is replaced.
        data: All of its bytes.
        private: Whether only its owner can read it, whatever the umask.
    """
    replace_file(path, data, private=private, is_durable=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names of a directory's files are on the disk."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # a rename lasts only once its directory is on the disk
    finally:
        os.close(handle)


def replace_file(
    path: Path, data: bytes, *, private: bool = False, is_durable: bool = False
) -> None:
    """Replace a file as a whole, so that readers see its old bytes or its new ones.

    Args:
        path: The file.
        data: All of its bytes.
        private: Whether only its owner can read it, whatever the umask.
        is_durable: Whether to wait until the bytes are on the disk.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(scratch, "wb", opener=_open_private if private else None) as stream:
            stream.write(data)
            if is_durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    handle = os.open(path, flags, 0o600)
    if sys.platform != "win32":
        os.fchmod(handle, 0o600)  # it may exist, after a crash
    return handle
