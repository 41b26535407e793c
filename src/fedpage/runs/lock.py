"""Lock a directory, so that only one process writes to it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from fedpage.core.errors import InputError

LOCK = ".lock"


class RunInUse(InputError):
    """Another process is writing to the directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"{os.fspath(path)}: another process is writing to it; wait for it, stop it, or choose "
            "another directory"
        )


class DirectoryLock:
    """Hold the lock of a directory until the block, or the process, ends.

    Args:
        path: The directory, which is created.

    Raises:
        InputError: If the directory cannot be written.
        RunInUse: If another process has the lock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = _file_lock(self.path)

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0.2)  # `is_in_use` of another process has it for a moment
        except Timeout:
            raise RunInUse(self.path) from None
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror or error})"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def clear(self, *names: str) -> None:
        """Delete the files and folders in the directory, except the lock itself.

        Args:
            names: Delete only these, if any are given.

        Raises:
            RunInUse: If another process writes to a directory below; nothing is deleted then.
        """
        found = [path for path in self.path.iterdir() if path.name != LOCK]
        found = [path for path in found if not names or path.name in names]
        for folder in found:
            for lock in () if folder.is_symlink() else folder.rglob(LOCK):
                if is_in_use(lock.parent):
                    raise RunInUse(lock.parent)
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def is_in_use(path: str | os.PathLike[str]) -> bool:
    """Return True if a process is writing to a directory."""
    if not (Path(path) / LOCK).is_file():
        return False
    try:
        with _file_lock(Path(path)).acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _file_lock(folder: Path) -> FileLock:
    # The kernel ends the lock with its process; a soft lock would stay behind after a crash.
    return FileLock(folder / LOCK, thread_local=False, fallback_to_soft=False)
