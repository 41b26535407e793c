"""Check the names and kinds of files before they are opened."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from fedpage.core.errors import InputError, short_repr

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_WITHOUT_SIZE = ("/proc", "/sys")
"""File systems whose files are made while they are read: some wait, some never end."""


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or directory that this system could name.

    Raises:
        InputError: It is no path, it is empty, or it contains what no name may contain.
    """
    try:
        name = os.fsencode(path)
        longest = max(map(len, re.split(rb"[/\\]", name)))
        is_path = b"\0" not in name and longest < 256 and not isinstance(path, bytes)
    except (TypeError, UnicodeEncodeError):
        is_path = False
    if not is_path:
        raise InputError(f"{short_repr(path)} is not the path of a file")
    return Path(path)


def check_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file, which can be read without waiting and has an end.

    Raises:
        InputError: It is a directory, a pipe, a socket, a device, or a file of /proc or /sys, or
            it does not exist.
    """
    file = check_path(path)
    try:
        mode = os.stat(file).st_mode
    except OSError as error:
        if file.is_symlink() and isinstance(error, FileNotFoundError):
            target = short_repr(os.readlink(file))
            raise InputError(f"{file}: is a link to {target}, which does not exist") from None
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"{file}: {reason}") from None
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise InputError(f"{file}: is {kind}; give a regular file")
    if any(os.path.realpath(file).startswith(f"{root}/") for root in _WITHOUT_SIZE):
        raise InputError(f"{file}: is a file of the system's; give a regular file")
    return file
