"""Find the processes that a process has started."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fedpage.core.errors import InputError


def find_descendants(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants, from /proc or the command ps.

    Raises:
        InputError: This system has neither, as Windows.
    """
    children: dict[int, list[int]] = {}
    for child, parent in _list_processes():
        children.setdefault(parent, []).append(child)
    family, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        family.append(current)
        waiting += children.get(current, [])
    return family


def _list_processes(proc: Path = Path("/proc")) -> Iterator[tuple[int, int]]:
    """Yield the id of every process and of its parent."""
    if (proc / "self" / "stat").exists():
        for entry in proc.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended since
                text = entry.read_text(encoding="utf-8", errors="replace")
                yield int(entry.parent.name), int(text.rpartition(")")[2].split()[1])
        return
    try:
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        raise InputError(
            "the processes of this system cannot be listed: it has neither /proc nor the command ps"
        ) from None
    for line in listed.stdout.splitlines():
        child, parent = line.split()
        yield int(child), int(parent)
