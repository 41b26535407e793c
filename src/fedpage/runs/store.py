"""A run on disk: run.toml, history.jsonl and checkpoints, written so that no moment is a bad one to die."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.engine.loop import Interrupted, Run
from fedpage.runs import toml
from fedpage.runs.checkpoint import pack, unpack
from fedpage.runs.fingerprint import digest_of, identity, refuse
from fedpage.runs.history import History, encode_row

_NAME = re.compile(r"(\d{9,})-([0-9a-f]{16})\.npz\Z")
_KEPT = 2
_asked_to_stop = False


def ask_to_stop(yes: bool = True) -> None:
    """Let every run that is written to a directory stop after the round in hand, once it is safe. For signals."""
    global _asked_to_stop
    _asked_to_stop = yes


class RunDirectory:
    """Writes a run down while it goes on, and takes it up again. A context: only one process may write at a time.

    every: rounds (100) or seconds ("10s", "5m") between checkpoints. command: what the command line was given, for
    `fedpage resume`. say: called with sentences about what was found damaged; by default the log's warnings.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, every: str | int = "10s", command: Mapping[str, Any] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.rounds, self.seconds = interval(every)
        self.every, self.command = str(every), command
        self.say = logging.getLogger("fedpage").warning if say is None else say
        self._stream: Any = None
        self._lock: Any = None
        self._digest: Any = hashlib.sha256()
        self._offset = 0
        self._identity = ""
        self._saved_round = 0
        self._saved_at = time.monotonic()

    def __enter__(self) -> Self:
        try:
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror or error})"
            ) from None
        if not _locked(self._lock):
            self._lock.close()
            raise InputError(
                f"{self.path}: another process is writing this run; wait for it, or stop it"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        self._lock.close()  # which unlocks it

    def exists(self) -> bool:
        """Whether there is a run here."""
        return (self.path / "run.toml").is_file()

    def begin(self, run: Run) -> None:
        """Write down what the run is; whatever run was here before is gone."""
        for old in [self.path / "run.toml", self.path / "history.jsonl", *self._checkpoints()]:
            old.unlink(missing_ok=True)
        about = identity(run)
        self._identity = digest_of(about)
        with self._failing():
            header = (
                json.dumps({"format": History.FORMAT, "meta": run.history.meta}).encode("utf-8")
                + b"\n"
            )
            put(self.path / "history.jsonl", header)
            self._open()
            self._digest, self._offset = hashlib.sha256(header), len(header)
            table = {
                "format": 1,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "checkpoint_every": self.every,
                "command": self.command,
                "identity": about,
                "versions": run.history.meta.get("versions", {}),
            }
            put(self.path / "run.toml", toml.dumps(table).encode("utf-8"))

    def resume(self, run: Run) -> History | None:
        """Put a fresh run where this directory's run was last safe; its history if it has ended already.

        An InputError if the directory's run is another one: other settings, data, or code of the method.
        """
        table = toml.read(self.path / "run.toml")
        if table.get("format") != 1 or not isinstance(table.get("identity"), dict):
            raise InputError(f"{self.path / 'run.toml'}: not a run of this version of fedpage")
        about = identity(run)
        refuse(table["identity"], about, str(self.path))
        self._identity = digest_of(
            table["identity"]
        )  # 1 and 1.0 are the same setting, but not the same text
        now, then = run.history.meta.get("versions", {}), table.get("versions", {})
        for name in sorted(now):
            if now[name] != then.get(name):
                self.say(
                    f"{self.path}: {name} is {now[name]} now and was {then.get(name)}; the last bits may differ"
                )
        text = self._history_bytes()
        try:
            history = History.parse(
                text.decode("utf-8", "replace"), str(self.path / "history.jsonl")
            )
            if history.ended:
                return history
        except InputError as error:
            self.say(f"{error}; going back to where it was sound")
        for (
            path
        ) in self._checkpoints():  # what is not taken must not stand in the way of newer ones
            try:
                tree = self._load(path)
                prefix = text[: int(tree["offset"])]
                if (
                    len(prefix) < int(tree["offset"])
                    or hashlib.sha256(prefix).hexdigest() != tree["history"]
                ):
                    raise InputError(
                        f"{path}: history.jsonl is not what it was when this was written"
                    )
                run.restore(tree["run"], str(path))
            except InputError as error:
                self.say(f"{error}; falling back to the one before")
                path.unlink(missing_ok=True)
                continue
            except (KeyError, TypeError, ValueError):
                self.say(f"{path}: not a run's checkpoint; falling back to the one before")
                path.unlink(missing_ok=True)
                continue
            self._cut(run, text, int(tree["offset"]))
            self._saved_round = run.engine.costs.round
            return None
        header = text.find(b"\n") + 1
        self.say(f"{self.path}: no checkpoint to go on from; the run begins again")
        try:
            self._cut(run, text, header)
        except (InputError, UnicodeDecodeError):  # not even its first line is left
            self.begin(run)
        return None

    def _history_bytes(self) -> bytes:
        """history.jsonl up to its last whole line."""
        path = self.path / "history.jsonl"
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            self.say(f"{path}: its last line is torn, and is left out")
        return text[:whole]

    def _cut(self, run: Run, text: bytes, offset: int) -> None:
        """Let the history end where the checkpoint was written, and the run's with it."""
        past = History.parse(text[:offset].decode("utf-8"), str(self.path / "history.jsonl"))
        run.history.rows, run.history.events = past.rows, past.events
        with self._failing():
            os.truncate(self.path / "history.jsonl", offset)
            self._open()
        self._digest, self._offset = hashlib.sha256(text[:offset]), offset

    def _open(self) -> None:
        self._stream = open(self.path / "history.jsonl", "ab", buffering=0)  # noqa: SIM115 - closed by __exit__

    def _load(self, path: Path) -> dict[str, Any]:
        """A checkpoint whose bytes are those that were written, and of this run."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        named = _NAME.match(path.name)
        if named is None or hashlib.sha256(data).hexdigest()[:16] != named.group(2):
            raise InputError(f"{path}: damaged (its checksum is another)")
        tree = unpack(data, str(path))
        if tree.get("identity") != self._identity:
            raise InputError(f"{path}: of another run")
        return tree

    def _checkpoints(self) -> list[Path]:
        """Newest first."""
        folder = self.path / "checkpoints"
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted((one for one in found if _NAME.match(one.name)), reverse=True)

    def record(self, row: Mapping[str, float]) -> None:
        """Append a record to history.jsonl."""
        with self._failing():
            self._line(encode_row(row))

    def event(self, entry: Mapping[str, Any]) -> None:
        """Append what happened to history.jsonl."""
        with self._failing():
            self._line(dict(entry))

    def _line(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False).encode("utf-8") + b"\n"
        written = 0
        while written < len(line):
            written += self._stream.write(line[written:])
        self._digest.update(line)
        self._offset += len(line)

    def after_round(self, run: Run) -> None:
        """A checkpoint, if one is due; and the end of this process's work, if that was asked for."""
        done = run.engine.costs.round
        due = self.rounds is not None and done - self._saved_round >= self.rounds
        if not due and self.seconds is not None:
            due = time.monotonic() - self._saved_at >= self.seconds
        if due or _asked_to_stop:
            self.save(run)
        if _asked_to_stop:
            raise Interrupted(
                f"interrupted after round {done}; `fedpage resume {self.path}` goes on"
            )

    def save(self, run: Run) -> Path:
        """Write a checkpoint now; the two newest are kept."""
        tree = {
            "identity": self._identity, "offset": self._offset, "history": self._digest.hexdigest(),
            "run": run.snapshot(),
        }  # fmt: skip
        data = pack(tree)
        done = run.engine.costs.round
        path = self.path / "checkpoints" / f"{done:09d}-{hashlib.sha256(data).hexdigest()[:16]}.npz"
        with self._failing():
            os.fsync(self._stream.fileno())  # the records it counts on
            put(path, data)
        for old in self._checkpoints()[_KEPT:]:
            old.unlink(missing_ok=True)
        for left in path.parent.glob(".*.tmp"):  # of a process that died
            left.unlink(missing_ok=True)
        self._saved_round, self._saved_at = done, time.monotonic()
        return path

    def finish(self, history: History) -> History:
        """Write the end, unless the run only gave up waiting for clients."""
        if history.ended:
            with self._failing():
                self._line(history.end_line(history.write_model(self.path / "history.jsonl")))
                os.fsync(self._stream.fileno())
        return history

    def _failing(self) -> _Failing:
        return _Failing(self)


class _Failing:
    """Turns an error of the file system into one that says what is safe."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError):
            where, saved = self.directory.path, self.directory._saved_round
            hint = (
                f"the run is safe up to round {saved}: `fedpage resume {where}` goes on from there"
            )
            raise OSError(error.errno, f"{error.strerror or error}; {hint}", str(where)) from None


def _locked(stream: Any) -> bool:
    """Whether the lock is ours now. The system lets go of it when the process ends, however it ends."""
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


def interval(every: str | int) -> tuple[int | None, float | None]:
    """Rounds, or seconds, between checkpoints.

    >>> interval(100), interval("30s"), interval("5m")
    ((100, None), (None, 30.0), (None, 300.0))
    """
    text = str(every).strip()
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text and text[-1] in units else (text, None)
    if not isinstance(every, bool) and re.fullmatch(r"\d{1,9}", number) and int(number) > 0:
        return (int(number), None) if unit is None else (None, int(number) * unit)
    raise InputError(
        f"checkpoints come every so many rounds (100) or seconds ('30s', '5m'), not {every!r}"
    )
