"""The record of a run: what it cost, what it reached, and everything needed to say which run it was."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.core.types import COSTS as COSTS
from fedpage.core.types import StopReason


class History:
    """Columns of a run, one value a record, with its provenance.

    Costs are cumulative and counted after the number of rounds in column "round" (the first record is x0 at round 0).
    "loss" and "grad_norm" are those of the model after that many rounds. "seconds" is the time spent in rounds,
    without measuring, and is no part of what makes two histories the same.

    >>> history = History({"seed": 0})
    >>> history.append({"round": 0, "loss": 1.0, "grad_norm": 0.5, "bytes_up": 0, "bytes_down": 0})
    >>> history.append({"round": 10, "loss": 0.4, "grad_norm": 0.01, "bytes_up": 800, "bytes_down": 1600})
    >>> history.last("grad_norm"), history.rounds_to("grad_norm", 0.1), history.bytes_to("grad_norm", 0.1)
    (0.01, 10.0, 2400.0)
    """

    FORMAT = "fedpage-history-1"

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        self.meta: dict[str, Any] = dict(meta or {})
        self.rows: list[dict[str, float]] = []
        self.stop_reason: StopReason | None = None
        self.stop_detail: str = ""
        self.x: NDArray[np.float64] | None = None
        """(d,) the last model."""
        self.first_loss: float | None = None
        """f(x0), which the engine measures even where no record is kept of it."""
        self.events: list[dict[str, Any]] = []
        """What happened to clients: {"event": "rejected" | "fallback" | "lost" | "back", "round", "text"}; the first
        thousand of a run."""

    def append(self, row: Mapping[str, float]) -> None:
        """Add a record."""
        self.rows.append(
            {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def stopped(self) -> str:
        if self.stop_reason is None:
            return ""
        names = {StopReason.DIVERGED: "diverged: ", StopReason.INTERRUPTED: "cut off: "}
        return names.get(self.stop_reason, "") + self.stop_detail or str(self.stop_reason)

    @property
    def diverged(self) -> bool:
        return self.stop_reason is StopReason.DIVERGED

    @property
    def ended(self) -> bool:
        """Whether the run came to its end, and is not one that was cut off or gave up."""
        return self.stop_reason not in (None, StopReason.INTERRUPTED, StopReason.ROUND_FAILED)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __getitem__(self, column: str) -> NDArray[np.float64]:
        """(records,) one column; "bytes" is up and down together. Missing values are NaN."""
        if column == "bytes":
            return self["bytes_up"] + self["bytes_down"]
        if self.rows and not any(column in row for row in self.rows):
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return np.array([row.get(column, math.nan) for row in self.rows], dtype=np.float64)

    def last(self, column: str) -> float:
        """The column's last value."""
        if not self.rows:
            raise InputError("the history has no record yet")
        return float(self[column][-1])

    def best(self, column: str) -> float:
        """The column's smallest value among records that count as progress (see `progress`)."""
        values = self[column][self.progress()]
        return float(np.nanmin(values)) if len(values) else math.inf

    def progress(self) -> NDArray[np.bool_]:
        """(records,) whether f(x) <= f(x0) there.

        Robust regression has points far away with a tiny gradient and a huge loss; they are no progress.
        """
        loss = self["loss"]
        first = loss[0] if self.first_loss is None else self.first_loss
        return np.asarray(np.isfinite(loss) & (loss <= first), dtype=np.bool_)

    def reach(self, column: str, target: float, cost: str = "round") -> float:
        """The cost ("round", "bytes", "clients", ...) at the first record with column <= target; inf if never.

        Only records with f(x) <= f(x0) count.
        """
        hit = np.flatnonzero((self[column] <= target) & self.progress())
        return float(self[cost][hit[0]]) if len(hit) else math.inf

    def rounds_to(self, column: str, target: float) -> float:
        """Rounds until column <= target, or inf."""
        return self.reach(column, target, "round")

    def bytes_to(self, column: str, target: float, direction: str = "both") -> float:
        """Bytes until column <= target, or inf. direction: "both", "up" or "down"."""
        columns = {"both": "bytes", "up": "bytes_up", "down": "bytes_down"}
        if direction not in columns:
            raise InputError(f"direction must be 'both', 'up' or 'down', not {direction!r}")
        return self.reach(column, target, columns[direction])

    def gradients_to(self, column: str, target: float) -> float:
        """Gradients of single rows, over all clients, until column <= target, or inf."""
        return self.reach(column, target, "gradients")

    def clients_to(self, column: str, target: float) -> float:
        """Client contacts until column <= target, or inf."""
        return self.reach(column, target, "clients")

    def same(self, other: History) -> bool:
        """Whether both runs are the same bit for bit: records, end and model; the clock does not count."""

        def bare(history: History) -> list[dict[str, float]]:
            return [
                {name: value for name, value in row.items() if name != "seconds"}
                for row in history.rows
            ]

        def bits(history: History) -> bytes | None:
            return None if history.x is None else np.asarray(history.x, dtype=np.float64).tobytes()

        return (
            json.dumps(bare(self), sort_keys=True) == json.dumps(bare(other), sort_keys=True)
            and self.stopped == other.stopped
            and bits(self) == bits(other)
        )

    @property
    def label(self) -> str:
        """The method's name as papers print it."""
        return str(self.meta.get("method", {}).get("name", "run"))

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the columns; provenance and model go into JSON lines only."""
        path = Path(path)
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: repr(value) for name, value in row.items()} for row in self.rows)
        return _written(path, text.getvalue())

    def to_jsonl(self, path: str | os.PathLike[str]) -> Path:
        """Write everything: a line of provenance, a line a record, a line with the end and the model."""
        return _written(
            Path(path), "".join(json.dumps(line, allow_nan=False) + "\n" for line in self._lines())
        )

    def _lines(self) -> Iterable[dict[str, Any]]:
        yield {"format": self.FORMAT, "meta": self.meta}
        for row in self.rows:
            yield encoded(row)
        yield from self.events
        yield self.end()

    def end(self) -> dict[str, Any]:
        """The last line: why the run ended, how many records there are, and the model."""
        return {
            "end": self.stop_reason,
            "detail": self.stop_detail,
            "records": len(self.rows),
            "first_loss": None if self.first_loss is None else _json(self.first_loss),
            "x": None if self.x is None else [_json(value) for value in self.x.tolist()],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `to_jsonl` (all of it) or `to_csv` (the columns) wrote."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from None
        return cls._from_csv(text, path) if path.suffix == ".csv" else cls.parse(text, str(path))

    @classmethod
    def _from_csv(cls, text: str, path: Path) -> History:
        history = cls()
        reader = csv.DictReader(io.StringIO(text, newline=""))
        try:
            if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ("none",)):
                raise ValueError
            for row in reader:
                history._take(
                    {name: _number(value) for name, value in row.items() if value not in ("", None)}
                )
        except (csv.Error, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            line = max(reader.line_num, 1)
            raise InputError(f"{path}, line {line}: not a record of a fedpage history") from None
        return history

    def _take(self, row: Mapping[str, float]) -> None:
        """Append a record that was read; its round must come after the last one's."""
        if not row["round"] > (self.rows[-1]["round"] if self.rows else -1):
            raise ValueError
        self.append(row)

    @classmethod
    def parse(cls, text: str, source: str) -> History:
        """A history from its JSON lines. A last line that is torn is left out: the run died while writing it."""
        history, ended = cls(), False
        lines = text.split("\n")
        torn = lines.pop()
        if torn.endswith("}"):
            lines.append(torn)
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if ended:
                    raise ValueError
                if number == 1:
                    if entry["format"] != cls.FORMAT:
                        raise ValueError
                    history.meta = entry["meta"] | {}
                    (
                        history.meta.get("method", {}).items(),
                        history.meta.get("problem", {}).items(),
                    )  # tables, if there
                elif "event" in entry:
                    if [type(entry[key]) for key in ("event", "round", "text")] != [str, int, str]:
                        raise ValueError
                    history.events.append(entry)
                elif "end" in entry:
                    ended = True
                    history.stop_reason = StopReason(entry["end"])
                    history.stop_detail = entry["detail"] + ""
                    x = entry["x"]
                    history.x = (
                        None
                        if x is None
                        else np.array([_unjson(value) for value in x], dtype=np.float64)
                    )
                    history.first_loss = (
                        None if entry["first_loss"] is None else float(_unjson(entry["first_loss"]))
                    )
                    sound = isinstance(x, list | None)
                    if not sound or entry["records"] != len(history.rows):
                        raise ValueError
                else:
                    history._take({name: _unjson(value) for name, value in entry.items()})
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
                raise InputError(
                    f"{source}, line {number}: not a line of a fedpage history"
                ) from None
        if not history.meta and not history.rows:
            raise InputError(f"{source}: empty, not a fedpage history")
        if history.stop_reason is None:
            history.stop_reason = StopReason.INTERRUPTED
            history.stop_detail = "the file has no end"
        return history

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame (needs pandas: `pip install fedpage[pandas]`)."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install 'fedpage[pandas]'") from None
        frame = pandas.DataFrame(self.rows)
        frame.attrs.update(self.meta)
        return frame

    def __repr__(self) -> str:
        if not self.rows:
            return f"History({self.label}, empty)"
        tail = "" if self.stopped in ("", "finished") else f", {self.stopped}"
        return (
            f"History({self.label}, {int(self.last('round'))} rounds, loss {self.last('loss'):.4g}, "
            f"gradient norm {self.last('grad_norm'):.3g}{tail})"
        )


def encoded(row: Mapping[str, float]) -> dict[str, float | str]:
    """A record as JSON can hold it."""
    return {name: _json(value) for name, value in row.items()}


def _json(value: float) -> float | str:
    """A number that JSON can hold: infinities and NaN as words."""
    return value if isinstance(value, int) or math.isfinite(value) else repr(value)


_WORDS = {repr(value): value for value in (math.inf, -math.inf, math.nan)}


def _unjson(value: Any) -> float:
    """What `_json` made JSON of; a whole number must fit a float."""
    number: float = _WORDS[value] if isinstance(value, str) else +value
    float(number)
    return number


def _number(text: str) -> float:
    """A number as `to_csv` writes it."""
    if text in _WORDS:
        return _WORDS[text]
    if "_" in text or not text.isascii():
        raise ValueError
    try:
        number: float = int(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, text.encode("utf-8"))
    return path


def by_method(histories: Iterable[History]) -> dict[str, list[History]]:
    """Runs grouped by method, hyper-parameters and problem, under labels that tell the groups apart.

    The label is the method's name; where several groups share it, the hyper-parameters that differ follow, then the
    problem's own differences, and a number where nothing else helps.
    """
    groups: dict[str, list[History]] = {}
    for history in histories:
        about = [history.meta.get("method", {}), history.meta.get("problem", {})]
        groups.setdefault(json.dumps(about, sort_keys=True, default=str), []).append(history)
    labelled: dict[str, list[History]] = {}
    for runs in groups.values():
        twins = [other[0] for other in groups.values() if other[0].label == runs[0].label]
        parts = _differences(runs[0], twins, "method") + _differences(runs[0], twins, "problem")
        label = plain = runs[0].label + (f" ({', '.join(parts)})" if parts else "")
        number = 1
        while label in labelled:
            number += 1
            label = f"{plain} #{number}"
        labelled[label] = runs
    return labelled


def _differences(run: History, twins: list[History], what: str) -> list[str]:
    """`name=value` for what tells a run from its twins."""
    about = run.meta.get(what, {})
    others = [twin.meta.get(what, {}) for twin in twins]
    hidden = (
        "effective_step",
        "class",
        "name",
        "data_digest",
        "partition_digest",
        "rows",
        "d",
        "data_note",
    )
    differing = [name for name in about if any(other.get(name) != about[name] for other in others)]
    shown = [name for name in differing if name not in hidden]
    short = [f"{name}={_short(about[name])}" for name in shown]
    exact = [f"{name}={about[name]}" for name in shown]
    return (
        short
        if all(
            _short(o.get(n)) != _short(about[n])
            for o in others
            for n in shown
            if o.get(n) != about[n]
        )
        else exact
    )


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)
