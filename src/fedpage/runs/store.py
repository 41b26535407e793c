"""A run on disk: run.toml, history.jsonl and checkpoints, so that a killed run can be resumed."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from fedpage.core.errors import InputError, find_memory_error, short_repr
from fedpage.core.files import put
from fedpage.core.types import StopReason
from fedpage.runs import toml
from fedpage.runs.checkpoint import Snapshot, pack, unpack
from fedpage.runs.config import Settings
from fedpage.runs.fingerprint import check_same_run, fingerprint
from fedpage.runs.history import History
from fedpage.runs.history_file import (
    encode_line,
    end_line,
    header_line,
    model_path,
    parse_lines,
    read_model,
    renew_header,
)
from fedpage.runs.lock import DirectoryLock

if TYPE_CHECKING:
    from fedpage.engine.loop import Run

_CHECKPOINT_NAME = re.compile(r"(\d{9,})-([0-9a-f]{16})\.npz\Z")
_CHECKPOINTS_KEPT = 2
_LOG = logging.getLogger("fedpage")

HistoryMark: TypeAlias = tuple[int, str]
"""The size and the SHA-256 of a part of history.jsonl, without the first line.

An extension of the run replaces the first line."""


class RunStore:
    """Write a run to a directory and resume it; only one process may have it open.

    Use it as a context manager, begin or resume a run with `open_run`, and give the run a
    `Checkpointing` callback. All files are written so that the process may be killed at any moment:
    history.jsonl is only appended to, checkpoints and run.toml are replaced as a whole, and a
    checkpoint stores how much of history.jsonl belongs to it.

    Args:
        path: The directory, which is created.
        checkpoint_every: Rounds (100) or seconds ("10s", "5m") between checkpoints.
        command: The settings of a command line, for `fedpage resume`.
        resume_diverged: Whether a run that diverged can be resumed, from the last checkpoint at
            which the loss was no higher than at the start.
        changeable: Settings that may differ when the run is resumed.
        notify: Called with a sentence about every damaged file and about where the run resumes. By
            default the log "fedpage" gets it.
        advice: How to continue the run after an interruption. By default with `fedpage resume`, or
            in Python if there is no command.

    Raises:
        InputError: If the directory cannot be written, or another process has it open.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checkpoint_every: str | int = "10s",
        command: Mapping[str, object] | None = None,
        resume_diverged: bool = False,
        changeable: Sequence[str] = (),
        notify: Callable[[str], None] | None = None,
        advice: str | None = None,
    ) -> None:
        self.path, self.command = Path(path), command
        self.rounds_between, self.seconds_between = parse_interval(checkpoint_every)
        self.checkpoint_every = str(checkpoint_every)
        self.checkpoint_round = 0
        """The round of the newest checkpoint."""
        self.changes: list[str] = []
        """A sentence about each setting that differs from the one the run began with."""
        way = "RunOptions(resume=True)" if command is None else f"`fedpage resume {self.path}`"
        self.advice = f"{way} continues it" if advice is None else advice
        """How to continue the run after an interruption."""
        self._warn = _LOG.warning if notify is None else notify
        self._inform = _LOG.info if notify is None else notify
        self.history_path = self.path / "history.jsonl"
        """The file of the records."""
        self._stream: io.FileIO | None = None
        self._header, self._body, self._size = b"", hashlib.sha256(), 0
        self._lock = DirectoryLock(self.path)
        self._resume_diverged, self._changeable = resume_diverged, tuple(changeable)
        self._fingerprint = ""
        self._history = History()

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._stream is not None:
            self._stream.close()
        self._lock.__exit__()
        if (cause := find_memory_error(error)) is not None:
            detail = f" ({cause})" if str(cause) else ""
            advice = f"; {self._safe_up_to}" if self.has_run() else ""
            raise MemoryError(f"not enough memory{detail}{advice}") from error

    def has_run(self) -> bool:
        """Return True if there is a run in the directory."""
        return (self.path / "run.toml").is_file()

    # --- begin and resume -------------------------------------------------------------------------

    def open_run(self, run: Run, *, resume: bool, overwrite: bool = False) -> History | None:
        """Begin a run, or resume the one in the directory.

        Args:
            run: The run. When it resumes, it gets the state and history of the checkpoint. It may
                have more rounds than the run that is there, which is then extended.
            resume: Whether to resume a run that is there.
            overwrite: Whether to delete a run that is there, if it is not resumed.

        Returns:
            The history of a run that has already ended, or None if the run must be run.

        Raises:
            InputError: If there is a run in the directory that is neither to be resumed nor to be
                deleted, or that has other settings, data or code, or has done more rounds.
        """
        if self.has_run() and not resume and not overwrite:
            raise InputError(
                f"{self.path}: there is a run in it; choose another directory, resume it with "
                "RunOptions(resume=True), or delete it with RunOptions(overwrite=True)"
            )
        with self._explain_os_errors():
            (self.path / "checkpoints").mkdir(exist_ok=True)
        self._history = run.history
        if not resume or not self.has_run():
            self._begin(run)
            return None
        finished = self._resume(run)
        if finished is not None:
            is_complete, why = finished.stop_reason is StopReason.FINISHED, ""
            if not is_complete and finished.meta.get("rounds") != run.rounds:
                why = f" ({finished.stop_text}); it stays so with any number of rounds"
            self._inform(f"{self.path}: the run has already ended{why}")
        elif run.rounds_done:
            self._inform(f"{self.path}: resuming after round {run.rounds_done}")
        return finished

    def _begin(self, run: Run) -> None:
        """Delete the run that was here, and write run.toml and the first line of history.jsonl."""
        old = [self.path / "run.toml", self.history_path, model_path(self.history_path)]
        for path in [*old, *self._checkpoints()]:
            path.unlink(missing_ok=True)
        about, meta = fingerprint(run.history.meta, run.code), run.history.meta
        self._fingerprint = _digest_any_rounds(about)
        table = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "checkpoint_every": self.checkpoint_every,
            "command": self.command,
            "fingerprint": about,
            "versions": meta.get("versions", {}),
        }
        try:
            with self._explain_os_errors():
                put(self.history_path, header_line(meta))
                self._open_history(header_line(meta), b"")
                toml.write_settings(self.path / "run.toml", table)
        except OSError:
            self.history_path.unlink(missing_ok=True)  # so that the directory can be used again
            raise

    def _resume(self, run: Run) -> History | None:
        """Restore the newest valid checkpoint, or return the history of a run that has ended.

        A run that has done all its rounds is resumed if it has more rounds now.
        """
        table = self._check_same_run(run)
        text = self.history_path.read_bytes() if self.history_path.exists() else b""
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            self._warn(f"{self.history_path}: the last line is incomplete, and is dropped")
        text = text[:complete]
        done = max(map(_round_of, self._checkpoints()), default=0)
        history, finished = History(), None
        try:
            end = parse_lines(history, text.decode("utf-8", "replace"), self.history_path)
            done = max(done, int(history.rows[-1]["round"])) if history.rows else done
            if end is not None and history.ended:
                history.x = None if end.model is None else read_model(self.history_path, end.model)
                finished = history
        except InputError as error:
            self._warn(f"{error}; returning to an earlier checkpoint")
        reopened = (StopReason.FINISHED, *[StopReason.DIVERGED] * self._resume_diverged)
        if finished is not None and finished.stop_reason not in reopened:
            return finished
        if run.rounds < done:
            raise InputError(
                f"{self.path}: cannot resume with {run.rounds} rounds: {done} are done; "
                f"give at least {done}, or begin a new run"
            )
        if run.rounds != table["fingerprint"]["rounds"]:
            table["fingerprint"]["rounds"] = run.rounds
            if "run" in table.get("command", {}):
                table["command"]["run"]["rounds"] = run.rounds
            with self._explain_os_errors():
                toml.write_settings(self.path / "run.toml", table)
        if finished is not None and finished.diverged:
            good = _last_good_round(finished)
            for path in self._checkpoints():
                if _round_of(path) > good:
                    path.unlink()
        elif finished is not None and run.rounds == done:
            return finished
        self._return_to_checkpoint(run, text)
        return None

    def _check_same_run(self, run: Run) -> Settings:
        """Read run.toml, refuse another run than its own, and warn about other versions.

        The number of rounds may differ.
        """
        table = toml.read_settings(self.path / "run.toml")
        about, now = table["fingerprint"], fingerprint(run.history.meta, run.code)
        changed = {key: now.get(key) for key in self._changeable if now.get(key) != about.get(key)}
        check_same_run({**about, **changed, "rounds": now["rounds"]}, now, str(self.path))
        for key, value in changed.items():
            text = f"{key} is {_list_settings(value)} now and was {_list_settings(about.get(key))}"
            self.changes.append(text)
            self._warn(f"{self.path}: {text}")
        # The values as they were written: 1 equals 1.0, with another digest.
        self._fingerprint = _digest_any_rounds(about)
        versions, before = run.history.meta.get("versions", {}), table.get("versions", {})
        for name in sorted(versions):
            if versions[name] != before.get(name):
                self._warn(
                    f"{self.path}: {name} is {versions[name]} now and was {before.get(name)}; "
                    "the last bits may differ"
                )
        return table

    def _return_to_checkpoint(self, run: Run, text: bytes) -> None:
        """Restore the newest valid checkpoint, or begin the run again if there is none."""
        begin = text.find(b"\n") + 1
        for path in self._checkpoints():
            try:
                tree = self._load(path)
                end = begin + tree["offset"]
                checksum = hashlib.sha256(text[begin:end]).hexdigest()
                if end > len(text) or checksum != tree["history"]:
                    raise InputError(f"{path}: history.jsonl has changed since this was written")
                run.restore(tree["run"], str(path))
            except (InputError, OSError) as error:
                self._warn(f"{error}; falling back to the one before")
                path.unlink(missing_ok=True)  # it would push out newer checkpoints
                continue
            self._truncate(run, text[:end])
            self.checkpoint_round = run.rounds_done
            return
        self._warn(f"{self.path}: no checkpoint to resume from; the run begins again")
        self._truncate(run, text[:begin])

    def _truncate(self, run: Run, text: bytes) -> None:
        """Cut history.jsonl, and the run's history, to the records before a checkpoint."""
        old, _, body = text.partition(b"\n")
        header = renew_header(old, run.history.meta)
        with self._explain_os_errors():
            if header == old + b"\n":
                os.truncate(self.history_path, len(text))
            else:
                put(self.history_path, header + body)
            # While the run goes on, its file has no end and no model.
            model_path(self.history_path).unlink(missing_ok=True)
            self._open_history(header, body)
        past = History()
        parse_lines(past, (header + body).decode("utf-8"), self.history_path)
        run.history.rows, run.history.events = past.rows, past.events

    def _open_history(self, header: bytes, body: bytes) -> None:
        """Open history.jsonl, which has these lines, to append to it."""
        self._stream = open(self.history_path, "ab", buffering=0)  # noqa: SIM115 - see __exit__
        self._header, self._body, self._size = header, hashlib.sha256(body), len(body)

    # --- write ------------------------------------------------------------------------------------

    def append(self, entry: Mapping[str, object]) -> None:
        """Append a record, or an event such as {"event": "dropout", ...}, to history.jsonl."""
        line = encode_line(entry)
        with self._explain_os_errors():
            self._write(line)
        self._body.update(line)
        self._size += len(line)

    def _write(self, line: bytes = b"", *, sync: bool = False) -> None:
        """Append to history.jsonl; with `sync`, wait until all of it is on the disk."""
        assert self._stream is not None
        done = 0
        while done < len(line):
            done += self._stream.write(line[done:])
        if sync:
            os.fsync(self._stream.fileno())

    def write_end(self, history: History) -> None:
        """Write the last model beside history.jsonl, and append the end of the run to it."""
        with self._explain_os_errors():
            line = end_line(history, self.history_path, self._header, self._body)
            self._write(line, sync=True)

    def mark(self) -> HistoryMark:
        """Return how much of history.jsonl is written, for a checkpoint that is written later."""
        return self._size, self._body.hexdigest()

    def write_checkpoint(
        self, round: int, snapshot: Snapshot, mark: HistoryMark | None = None
    ) -> Path:
        """Write a checkpoint, and delete all but the two newest.

        Args:
            round: The number of rounds done.
            snapshot: Everything that the coming rounds depend on.
            mark: The part of history.jsonl that belongs to it, by default all of it.

        Returns:
            The checkpoint's file; its name holds the round and a checksum.
        """
        size, checksum = mark or self.mark()
        about = {"fingerprint": self._fingerprint, "offset": size, "history": checksum}
        data = pack({**about, "run": snapshot})
        name = f"{round:09d}-{hashlib.sha256(data).hexdigest()[:16]}.npz"
        path = self.path / "checkpoints" / name
        with self._explain_os_errors():
            self._write(sync=True)  # the checkpoint counts on these records
            put(path, data)
        found = self._checkpoints()
        kept = found[:_CHECKPOINTS_KEPT]
        if self._resume_diverged:
            good = _last_good_round(self._history)
            kept += [old for old in found if _round_of(old) <= good][:1]
        left = path.parent.glob(".*.tmp")  # by a process that was killed
        for old in {*found, *left}.difference(kept):
            old.unlink(missing_ok=True)
        self.checkpoint_round = round
        return path

    def _checkpoints(self) -> list[Path]:
        """Return the files of the checkpoints, newest first."""
        files = (self.path / "checkpoints").glob("*.npz")
        return sorted((path for path in files if _CHECKPOINT_NAME.match(path.name)), reverse=True)

    def _load(self, path: Path) -> Snapshot:
        """Read a checkpoint of this run whose name has its checksum."""
        data = path.read_bytes()
        if not path.stem.endswith(hashlib.sha256(data).hexdigest()[:16]):
            raise InputError(f"{path}: damaged (its checksum differs)")
        tree = unpack(data, str(path))
        if tree.get("fingerprint") != self._fingerprint:
            raise InputError(f"{path}: belongs to another run")
        return tree

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        """Add to an error of the file system which round the run can be resumed from."""
        try:
            yield
        except OSError as error:
            hint = self._safe_up_to if self.has_run() else "nothing was run yet: start it again"
            text = f"{error.strerror or error}; {hint}"
            raise OSError(error.errno, text, str(self.path)) from None

    @property
    def _safe_up_to(self) -> str:
        return f"the run is safe up to round {self.checkpoint_round}: {self.advice}"


def _list_settings(value: object) -> str:
    if not isinstance(value, Mapping):
        return short_repr(value)
    return ", ".join(f"{name}={number}" for name, number in value.items())


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[0])


def _last_good_round(history: History) -> int:
    """Return the last round at which the loss was no higher than in the first record."""
    losses = [row.get("loss", 0.0) for row in history.rows]  # without losses every round is good
    good = (row for row, loss in zip(history.rows, losses, strict=True) if loss <= losses[0])
    return max((int(row["round"]) for row in good), default=0)


def _digest_any_rounds(about: Mapping[str, object]) -> str:
    """Return the digest of a fingerprint without its rounds, of which a run may get more."""
    return toml.digest({key: value for key, value in about.items() if key != "rounds"})


def parse_interval(every: str | int) -> tuple[int | None, float | None]:
    """Return the rounds, or the seconds, between two checkpoints.

    Args:
        every: A number of rounds (100), or a time ("30s", "5m", "2h").

    Returns:
        (rounds, None) or (None, seconds).

    Raises:
        InputError: If it is neither.

    >>> parse_interval(100), parse_interval("30s"), parse_interval("5m")
    ((100, None), (None, 30.0), (None, 300.0))
    """
    found = re.fullmatch(r"0*([1-9]\d{0,8})([smh]?)", str(every).strip())
    if found is None:
        raise InputError(
            "the interval between checkpoints must be a number of rounds (100) or a time "
            f"('30s', '5m'), not {short_repr(every)}"
        )
    number, unit = int(found[1]), found[2]
    return (None, number * {"s": 1.0, "m": 60.0, "h": 3600.0}[unit]) if unit else (number, None)
