"""A node's audit log: one line for every reply that leaves, each with a digest of the line before.

The log is a file of JSON lines that is only appended to. A line says when, for which run, which app
and method, and to which message the node replied, how many bytes it sent, and their SHA-256. Every
line has the SHA-256 of the line before, so that a line that was edited, removed or inserted is
noticed. Lines cut off at the end are noticed only by somebody who noted the last digest elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fedpage.core.errors import InputError
from fedpage.core.files import check_file
from fedpage.core.function_digest import PACKAGE, hash_sources
from fedpage.flower.private_files import locked, make_private, open_private

FIRST = "0" * 64
"""What the first line has as the digest of the line before."""
_LONGEST_LINE = 1 << 16
_APP_FOLDER = re.compile(r".+\..+\..+\.[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """A reply that left the node, or was about to."""

    time: str
    """UTC, in ISO 8601."""
    flower_run: str
    """Flower's number of the run; a run that is resumed has a new one."""
    node: str
    """Flower's number of the node."""
    run: str
    """The server's run directory and the run's settings, as digests; "" if the message has none."""
    app: str
    """SHA-256 of the installed code of fedpage."""
    fab: str
    """The app that Flower installed: publisher, name, version and the start of its SHA-256."""
    method: str
    message: str
    """Flower's type of the message that was answered."""
    round: int
    """The round of the message; -1 if it has none."""
    bytes: int
    """Bytes of the reply: of its arrays, and of its header as JSON."""
    digest: str
    """SHA-256 of the same bytes."""
    code: str = ""
    """Why the node refused the message; "" if it answered."""
    reference: str = ""
    """Where the node's own log has the details of a refusal."""
    previous: str = FIRST
    """SHA-256 of the line before."""


def now() -> str:
    """Return the time as entries have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append(path: Path, entry: AuditEntry) -> None:
    """Append an entry to a log, and wait until it is on the disk.

    Several processes may append to the same log: each holds its lock while it reads the last line
    and writes the next. A line is written completely or not at all.

    Args:
        path: The file; it and its directory are created, readable by their owner only.
        entry: The entry; its `previous` is set here.

    Raises:
        OSError: The log cannot be written, or other users can change it.
    """
    make_private(path.parent, tighten=False)
    with (
        locked(path.with_name(f".{path.name}.lock")),
        os.fdopen(open_private(path, os.O_RDWR | os.O_APPEND), "r+b", buffering=0) as stream,
    ):
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _LONGEST_LINE))
        tail = stream.read(_LONGEST_LINE)
        last = tail.removesuffix(b"\n").rpartition(b"\n")[2]
        table = asdict(entry) | {"previous": _digest(last) if size else FIRST}
        # After a crash the last line may be incomplete. It stays, on a line by itself.
        begin = b"\n" if size and not tail.endswith(b"\n") else b""
        data = begin + json.dumps(table).encode("ascii") + b"\n"
        try:
            if os.write(stream.fileno(), data) != len(data):
                raise OSError(f"{path}: the disk is full")
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(size)
            raise


class Audit(NamedTuple):
    """What a log holds: its entries, what is wrong with it, and the digest of its last line."""

    entries: list[AuditEntry]
    problems: list[str]
    last: str
    """Noted elsewhere, it shows later that no line is missing at the end."""


def verify(path: Path) -> Audit:
    """Read a log and check that every line follows the line before.

    Args:
        path: The file.

    Returns:
        The entries, and a sentence about every line that was edited, removed, inserted or damaged.

    Raises:
        InputError: The file cannot be read, or no line of it is an entry.
    """
    check_file(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    entries: list[AuditEntry] = []
    problems: list[str] = []
    previous = FIRST
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            entry = _parse(line)
        except (ValueError, TypeError, RecursionError):
            problems.append(f"line {number}: not an entry; a crash leaves an incomplete line")
        else:
            entries.append(entry)
            if entry.previous != previous:
                problems.append(
                    f"line {number}: it does not follow the line before; a line was edited, "
                    "removed or inserted"
                )
        previous = _digest(line)
    if lines and not entries:
        raise InputError(f"{path}: not an audit log; give a node's audit.jsonl")
    return Audit(entries, problems, previous)


def _parse(line: bytes) -> AuditEntry:
    """Read a line, whose values must have the types that `append` writes."""
    entry = AuditEntry(**json.loads(line))
    for key, value in asdict(entry).items():
        if type(value) is not (int if key in ("round", "bytes") else str):
            raise TypeError(key)
    return entry


def name_runs(entries: list[AuditEntry]) -> list[str]:
    """Return a short name of each entry's run, the same for all entries of a run.

    The first messages of a run do not have its name yet. They are found by Flower's number of the
    run, which later messages have too.
    """
    names = {entry.flower_run: entry.run for entry in entries if entry.run}
    return [(entry.run or names.get(entry.flower_run) or entry.flower_run)[:8] for entry in entries]


def show(entries: list[AuditEntry]) -> str:
    """Write the entries as a table, the oldest first."""
    from tabulate import tabulate

    heads = ["time", "run", "method", "message", "round", "bytes", "digest", "refused"]
    rows = [heads]
    for run, entry in zip(name_runs(entries), entries, strict=True):
        refused = f"{entry.code} {entry.reference}" if entry.code else ""
        number = str(entry.round) if entry.round >= 0 else ""
        rows.append([
            entry.time[:19], run, entry.method, entry.message,
            number, f"{entry.bytes:,}", entry.digest[:12], refused,
        ])  # fmt: skip
    align = ["right" if head in ("round", "bytes") else "left" for head in heads]
    text: str = tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True)
    return text


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a SHA-256 of the installed code of fedpage: names and content of its Python files."""
    files = PACKAGE.rglob("*.py")
    return hash_sources({path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in files})


def installed_app() -> str:
    """Return the name of the app that Flower installed for this process, or "".

    Flower tells a ClientApp nothing about its app. It puts the app's directory on the import path;
    the directory's name has the publisher, the name, the version and the start of the SHA-256.
    """
    for folder in map(Path, sys.path):
        if folder.parent.name == "apps" and _APP_FOLDER.fullmatch(folder.name):
            return folder.name
    return ""
