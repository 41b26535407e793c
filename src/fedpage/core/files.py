"""Check the names and kinds of files before they are opened."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from fedpage.core.errors import InputError, short_repr

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_MADE_WHILE_READ = ("/proc/", "/sys/")
"""Where files have no size: some wait for a writer, some never end."""


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


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuse a file that may wait or never end when it is read.

    A file that does not exist, and a directory, are left to the reader.

    Raises:
        InputError: It is a pipe, a socket, a device, a file of /proc or /sys, or a link to nothing.
    """
    file = check_path(path)
    try:
        mode = os.stat(file).st_mode
    except OSError:
        if file.is_symlink():
            target = short_repr(os.readlink(file))
            raise InputError(f"{file}: is a link to {target}, which cannot be opened") from None
        return
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise InputError(f"{file}: is {kind}, not a regular file")
    if stat.S_ISREG(mode) and os.path.realpath(file).startswith(_MADE_WHILE_READ):
        raise InputError(f"{file}: is a file of the operating system, not a regular file")
