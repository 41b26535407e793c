"""The file history.jsonl of a run: append lines to it, and cut it back to a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.core.files import refuse_special
from fedpage.runs.history import History
from fedpage.runs.history_lines import Checksum, Meta


class HistoryMark(NamedTuple):
    """A part of history.jsonl from its second line on; an extension replaces the first line."""

    size: int
    """Its bytes."""
    checksum: str
    """Its SHA-256."""


class HistoryFile:
    """Write the lines of a history as they come.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: FileIO | None = None
        self._written = hashlib.sha256()
        self._checksum = Checksum()
        self._size = 0

    def create(self, meta: Meta) -> None:
        """Write a file with a first line only, and open it."""
        text = _first_line(meta)
        put(self.path, text)
        self._open(text)

    def read(self) -> tuple[bytes, bool]:
        """Return the complete lines, and whether the last line was incomplete.

        Raises:
            InputError: If the file cannot be read; one that does not exist is empty.
        """
        refuse_special(self.path)
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return b"", False
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None
        complete = text.rfind(b"\n") + 1
        return text[:complete], complete < len(text)

    def cut(self, text: bytes, meta: Meta) -> History:
        """Cut the file back to its first lines, and open it.

        The first line is written again if it is damaged, is not that of this run, or has another
        number of rounds.

        Args:
            text: The lines to keep.
            meta: The run's provenance.

        Returns:
            The history that these lines hold.
        """
        header, _, body = text.partition(b"\n")
        try:
            stored = History.parse(header.decode("utf-8"), self.path).meta
            if _identity(stored) != _identity(meta):
                stored = meta
        except (InputError, UnicodeDecodeError):
            stored = meta
        first = _first_line({**stored, "rounds": meta["rounds"]})
        if first == header + b"\n":
            os.truncate(self.path, len(text))
        else:
            text = first + body
            put(self.path, text)
        self._open(text)
        return History.parse(text.decode("utf-8"), self.path)

    def _open(self, text: bytes) -> None:
        """Open the file, which now holds `text`, to append to it."""
        self._stream = open(self.path, "ab", buffering=0)  # noqa: SIM115 - see close
        body = text[text.index(b"\n") + 1 :]
        self._written, self._size = hashlib.sha256(body), len(body)
        self._checksum = Checksum()
        self._checksum.add(text)

    def append(self, entry: Mapping[str, object]) -> None:
        """Append a line."""
        assert self._stream is not None
        line = json.dumps(entry, allow_nan=False).encode("utf-8") + b"\n"
        done = 0
        while done < len(line):
            done += self._stream.write(line[done:])
        self._written.update(line)
        self._checksum.add(line)
        self._size += len(line)

    def append_end(self, end: Mapping[str, object]) -> None:
        """Append the last line, with a digest of the whole file."""
        self.append(self._checksum.seal(end))

    def sync(self) -> None:
        """Wait until the lines are on the disk."""
        assert self._stream is not None
        os.fsync(self._stream.fileno())

    def mark(self) -> HistoryMark:
        """Return how much is written."""
        return HistoryMark(self._size, self._written.hexdigest())

    def close(self) -> None:
        """Close the file if it is open."""
        if self._stream is not None:
            self._stream.close()


def _identity(meta: Meta) -> object:
    """Return what the provenance of a run has on every machine, whatever its number of rounds."""
    changing = ("rounds", "versions", "reference")
    return json.loads(json.dumps({k: v for k, v in meta.items() if k not in changing}))


def _first_line(meta: Meta) -> bytes:
    return json.dumps(History(meta).header()).encode("utf-8") + b"\n"
