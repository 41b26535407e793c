"""Lock a directory, so that only one process writes to it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Self

from fedpage.core.errors import InputError

LOCK = ".lock"


class RunInUse(InputError):
    """Another process is writing to the directory."""


class DirectoryLock:
    """Hold the lock of a directory until the block, or the process, ends.

    Args:
        path: The directory; it is created.

    Raises:
        InputError: If the directory cannot be written.
        RunInUse: If another process has the lock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._stream = open(self.path / LOCK, "a", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror or error})"
            ) from None
        locked = _try_lock(self._stream)
        if not locked:
            time.sleep(0.1)  # `is_in_use` of another process takes the lock for a moment
            locked = _try_lock(self._stream)
        if not locked:
            self._stream.close()
            raise _in_use(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()  # which unlocks it

    def clear(self, *names: str) -> None:
        """Delete what is in the directory, except the lock itself.

        Args:
            names: Delete only these.

        Raises:
            RunInUse: If another process writes to a directory below; nothing is deleted.
        """
        found = [path for path in self.path.iterdir() if path.name != LOCK]
        found = [path for path in found if not names or path.name in names]
        for folder in found:
            for lock in () if folder.is_symlink() else folder.rglob(LOCK):
                if is_in_use(lock.parent):
                    raise _in_use(lock.parent)
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def is_in_use(path: str | os.PathLike[str]) -> bool:
    """Say whether a process is writing to a directory."""
    try:
        with open(Path(path) / LOCK, encoding="utf-8") as stream:
            return not _try_lock(stream)
    except OSError:
        return False


def _in_use(path: Path) -> RunInUse:
    return RunInUse(
        f"{path}: another process is writing to it; wait for it, stop it, or choose another "
        "directory"
    )


def _try_lock(stream: IO[str]) -> bool:
    """Lock a file until it is closed or the process ends; return False if another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
