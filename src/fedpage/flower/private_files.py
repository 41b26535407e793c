"""Directories and files that only their owner can read, and a lock among processes.

The permissions do not depend on the umask. On Windows a user's own directories are private by
default, and the permissions here have no effect.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock
from platformdirs import user_state_path


class UnsafePath(OSError):
    """Other users of the machine can change a file or directory that must be private."""


def make_private(folder: Path, *, tighten: bool = True) -> None:
    """Create a directory with the permissions 0700, or give an existing one these permissions.

    Args:
        folder: The directory; its parents are created as usual.
        tighten: Whether to change the permissions of an existing directory.

    Raises:
        UnsafePath: It belongs to another user, or other users can write to it.
        OSError: It cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A name in a directory that others can write to may be taken by them first.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)
    if tighten and sys.platform != "win32" and folder.stat().st_mode & 0o077:
        os.chmod(folder, 0o700)


def check_private(path: Path) -> None:
    """Refuse a file or directory that other users can change; one that does not exist is fine.

    Raises:
        UnsafePath: It belongs to another user, is a symbolic link, or others can write to it.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if sys.platform == "win32":
        return
    if stat.S_ISLNK(found.st_mode):
        # A link of ours to a directory of ours is fine; files are never links.
        if not path.is_dir() or found.st_uid != os.getuid():
            raise UnsafePath(f"{path}: a symbolic link; remove it")
        found = path.stat()
    if found.st_uid not in (os.getuid(), 0):
        raise UnsafePath(f"{path}: belongs to another user; choose another directory")
    if found.st_mode & 0o022:
        raise UnsafePath(f"{path}: other users can write to it; remove it, or run chmod go-w")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock; other processes that ask for it wait.

    Args:
        path: The lock file, in a private directory.

    Raises:
        UnsafePath: If other users can change the file.
    """
    check_private(path)
    with FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False):
        yield


def open_private(path: Path, flags: int) -> int:
    """Open a file with the permissions 0600, and create it if there is none.

    Args:
        path: The file, in a private directory.
        flags: As `os.open` takes them; O_CREAT is added.

    Returns:
        The file descriptor.

    Raises:
        UnsafePath: Other users can change the file.
        OSError: It cannot be opened.
    """
    check_private(path)
    flags |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o600)
    if sys.platform != "win32":
        os.fchmod(handle, 0o600)
    return handle


def state_home() -> Path:
    """Return fedpage's folder in the platform's directory for the state of programs."""
    return user_state_path("fedpage", appauthor=False)
