"""Record a run: its costs, its evaluations, how it ended, and its provenance."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedpage.core.columns import (
    ALIASES,
    DERIVED,
    MEASURED,
    MORE_RECORDS,
    Cost,
    Stretch,
    Target,
    TargetLike,
    describe_column,
    read_column,
)
from fedpage.core.display import format_number, html_table
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import put
from fedpage.core.metrics import higher_is_better
from fedpage.core.types import StopReason
from fedpage.runs.history_file import (
    EventRow,
    Meta,
    ModelVector,
    add_record,
    encode_line,
    end_line,
    header_line,
    model_path,
    parse_lines,
    read_model,
)
from fedpage.runs.lock import is_in_use

if TYPE_CHECKING:
    from pandas import DataFrame

_LOG = logging.getLogger("fedpage")


class History:
    """Columns of a run, one value a record, with its provenance.

    Costs are cumulative, counted after the number of rounds in column "round". The first record is
    x0 at round 0. "loss", "grad_norm" and the metrics are of the model after that many rounds.
    "seconds" is the time spent in rounds, without evaluation; `same` ignores it.

    Attributes:
        meta: Provenance: method, problem, seed, versions.
        rows: The records, oldest first.
        stop_reason: How the run ended, or None while it runs.
        stop_detail: A sentence about the end, such as "reached grad_norm 0.05 at round 120".
        x: (d,) the last model.
        first_loss: f(x0), which is evaluated even if it is not recorded.
        events: Failures of clients, {"event", "round", "text"} each; the first thousand.

    >>> history = History({"seed": 0})
    >>> history.append({"round": 0, "loss": 1.0, "accuracy": 0.5, "bytes_up": 0, "bytes_down": 0})
    >>> history.append({"round": 9, "loss": 0.4, "accuracy": 0.9, "bytes_up": 8, "bytes_down": 16})
    >>> history.best("accuracy"), history.cost_to("accuracy:0.9,hold=0", "bytes")
    (0.9, 24.0)
    """

    def __init__(self, meta: Mapping[str, object] | None = None) -> None:
        self.meta: Meta = dict(meta or {})
        self.rows: list[dict[str, float]] = []
        self.stop_reason: StopReason | None = None
        self.stop_detail: str = ""
        self.x: ModelVector | None = None
        self.first_loss: float | None = None
        self.events: list[EventRow] = []

    def append(self, row: Mapping[str, float]) -> None:
        """Add a record."""
        arrays = (np.generic, np.ndarray)
        self.rows.append({k: v.item() if isinstance(v, arrays) else v for k, v in row.items()})

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ended(self) -> bool:
        """Whether the run came to its end; False while it runs, and where it can be resumed."""
        return self.stop_reason not in (None, StopReason.INTERRUPTED, StopReason.ROUND_FAILED)

    @property
    def diverged(self) -> bool:
        """Whether the run ended because it diverged."""
        return self.stop_reason is StopReason.DIVERGED

    @property
    def stop_text(self) -> str:
        """The reason and the detail in one text, such as "diverged: loss 3e+07 at round 20"."""
        reason = self.stop_reason.value if self.stop_reason else ""
        return ": ".join(filter(None, (reason, self.stop_detail)))

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order of first appearance."""
        return list(dict.fromkeys(chain.from_iterable(self.rows)))

    def __getitem__(self, column: str) -> NDArray[np.float64]:
        """Return a column (records,). Missing values are NaN.

        "bytes" and "bits" are sums of up and down. Bits that were not recorded are 8 times bytes.

        Raises:
            InputError: If no record has the column.
        """
        values = np.array([read_column(row, column) for row in self.rows], dtype=np.float64)
        if self.rows and np.isnan(values).all() and column not in self.columns:
            known = dict.fromkeys(self.columns + [*DERIVED] * ("bytes_up" in self.columns))
            hint = did_you_mean(column, known)
            raise InputError(f"no column {short_repr(column)};{hint} there are {', '.join(known)}")
        return values

    def cost(self, cost: str | Cost) -> NDArray[np.float64]:
        """Return the cost up to each record (records,).

        Args:
            cost: A recorded column, or a sum of costs such as "bytes_up+0.1*bytes_down".

        Raises:
            InputError: If there is no such cost.

        >>> history = History()
        >>> history.append({"round": 1, "bytes_up": 10, "bytes_down": 40})
        >>> history.cost("up+0.1*down"), history.cost("bits")
        (array([14.]), array([400.]))
        """
        if isinstance(cost, Cost):
            return cost.evaluate(self.__getitem__)
        is_sum = isinstance(cost, str) and ("+" in cost or "*" in cost or cost.strip() in ALIASES)
        return self[cost] if cost in self.columns or not is_sum else self.cost(Cost.parse(cost))

    def last(self, column: str) -> float:
        """Return the last value of a column."""
        if not self.rows:
            raise InputError("the history has no record yet")
        return float(self[column][-1])

    @property
    def directions(self) -> dict[str, bool]:
        """Whether higher is better, of the run's own metrics as provenance lists them."""
        metrics = (self.meta.get("problem") or {}).get("metrics") or {}
        return {name: value for name, value in metrics.items() if isinstance(value, bool)}

    def higher_is_better(self, column: str) -> bool:
        """Return True if a higher value of a column is better; an InputError if not known."""
        return higher_is_better(column, self.directions)

    def best(self, column: str) -> float:
        """Return the best value of a column among records that count as progress (see `progress`).

        Returns:
            The largest value if higher is better, else the smallest. Without any value it is -inf
            if higher is better, else inf.

        Raises:
            InputError: If there is no such column, or its direction is not known.
        """
        values = self[column][self.progress()]
        higher = self.higher_is_better(column)
        values = values[~np.isnan(values)]
        return float(values.max(initial=-math.inf) if higher else values.min(initial=math.inf))

    def complete(self) -> NDArray[np.bool_]:
        """Return a mask (records,) of the records that all clients measured; see `is_complete`."""
        return np.array([is_complete(row) for row in self.rows], dtype=np.bool_)

    def measured_by_all(self, column: str) -> NDArray[np.float64]:
        """Return a column (records,), with NaN if only some clients measured it.

        Costs and metrics on the server's held-out rows are known without the clients.

        Raises:
            InputError: If no record has the column.
        """
        values = self[column]
        if not column.startswith("held_out_") and not describe_column(column).is_cost:
            values[~self.complete()] = math.nan
        return values

    def progress(self) -> NDArray[np.bool_]:
        """Return a mask (records,) of the complete records with f(x) <= f(x0).

        Robust regression has points far away with a tiny gradient and a huge loss, and a part of
        the clients may have a smaller loss than all of them. Such records are neither a best value
        nor a target reached. Without a column "loss" every complete record counts.
        """
        complete = self.complete()
        if "loss" not in self.columns:
            return complete
        loss = self["loss"]
        first = loss[0] if self.first_loss is None else self.first_loss
        return np.asarray(complete & np.isfinite(loss) & ~(loss > first), dtype=np.bool_)

    def cost_to(self, target: TargetLike, cost: str | Cost = "bytes") -> float:
        """Return the cost at which a target was reached, to hold from then on.

        The target counts as reached at the first record of the first stretch that has held (see
        `fedpage.Target`). Records with f(x) > f(x0) are not at the target. Between the record
        before and that one, the logarithm of the column is taken to change in proportion to the
        cost. Where higher is better, and where a value is not above 0, the column itself is.

        Args:
            target: A Target, a text such as "held_out_accuracy:0.9" or "loss:0.2,hold=0", or a
                number, which is a gradient norm.
            cost: A column of costs, such as "bytes", "bits_up", "round", "clients" or "seconds", or
                a sum of them, such as "bytes_up+0.1*bytes_down" (short: "up+0.1*down").

        Returns:
            The cost, or inf if the target is not reached.

        Raises:
            InputError: If there is no such column or cost, or the column's direction is not known.
        """
        return self.interpolate_cost(Target.parse(target), self.cost(cost))

    def interpolate_cost(self, target: Target, costs: NDArray[np.float64]) -> float:
        """Return the cost at which a target was reached, as `cost_to`.

        Args:
            target: The target.
            costs: The cost up to each record (records,).
        """
        at, _ = self._find_held(target)
        if at is None:
            return math.inf
        rounds, values = self["round"], self[target.column]
        if at == 0 or rounds[at] - rounds[at - 1] <= 1 or not is_complete(self.rows[at - 1]):
            return float(costs[at])
        higher, goal = self.higher_is_better(target.column), target.value
        before, after = float(values[at - 1]), float(values[at])
        if not math.isfinite(before) or target.is_met(before, higher):
            return float(costs[at])  # a record with f(x) > f(x0), or without a value
        if not higher and after > 0:
            before, after, goal = math.log(before), math.log(after), math.log(goal)
        share = (before - goal) / (before - after)
        return float(costs[at - 1] + share * (costs[at] - costs[at - 1]))

    def reached(self, target: TargetLike) -> bool:
        """Return True if the run reached and held a target; see `cost_to`."""
        return self._find_held(Target.parse(target))[0] is not None

    def ends_at(self, target: TargetLike) -> bool:
        """Return True if the newest record of all clients is at a target."""
        return self._find_held(Target.parse(target))[1] is not None

    def describe_target(self, target: TargetLike) -> str:
        """Say where a target was reached, or how long the run lacks to tell.

        >>> history = History()
        >>> for done in range(0, 50, 10):
        ...     history.append({"round": done, "loss": 1 / (1 + done)})
        >>> history.describe_target("loss:0.05"), history.describe_target("loss:0.001")
        ('at the target since round 20; run to round 70', 'not reached')
        """
        target = Target.parse(target)
        at, since = self._find_held(target)
        rounds = self["round"]
        if at is not None:
            return f"reached at round {rounds[at]:,.0f}"
        if since is None:
            return "not reached"
        gap = rounds[-1] - rounds[-2] if len(rounds) > 1 else 1.0
        missing = max(0, MORE_RECORDS - (len(rounds) - 1 - since))
        needed = max((1 + target.hold) * rounds[since], rounds[-1] + missing * gap)
        return f"at the target since round {rounds[since]:,.0f}; run to round {math.ceil(needed):,}"

    def _find_held(self, target: Target) -> tuple[int | None, int | None]:
        """Return the record from which a target held, and the first of the newest stretch.

        Each is None if there is no such record. Records of some clients only do not count.
        """
        values, rounds = self[target.column], self["round"]
        higher, progress = self.higher_is_better(target.column), self.progress()
        stretch, held, since = Stretch(target.hold), None, None
        for at in np.flatnonzero(self.complete()).tolist():
            is_met = bool(progress[at]) and target.is_met(values[at], higher)
            since = None if not is_met else at if since is None else since
            if stretch.add(rounds[at], is_met) and held is None:
                held = since
        return held, since

    def same(self, other: History) -> bool:
        """Compare two runs bit for bit: records, end and model, but not the clock."""

        def content(history: History) -> tuple[object, ...]:
            rows = [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]
            model = None if history.x is None else (str(history.x.dtype), history.x.tobytes())
            end = (history.stop_reason, history.stop_detail)
            return json.dumps(rows, sort_keys=True), end, model

        return content(self) == content(other)

    @property
    def label(self) -> str:
        """The method's name as papers print it."""
        return str((self.meta.get("method") or {}).get("name", "run"))

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the columns to a CSV file. Provenance and model go into `to_jsonl` only."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: repr(value) for name, value in row.items()} for row in self.rows)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        put(Path(path), text.getvalue().encode("utf-8"))
        return Path(path)

    def to_jsonl(self, path: str | os.PathLike[str]) -> Path:
        """Write provenance, records, events and the end as JSON lines, and the model beside them.

        The model of run.jsonl is run.model.npz, with one array "x" of the model's own precision.

        Returns:
            The path of the JSON lines.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        header = header_line(self.meta)
        body = b"".join(map(encode_line, [*self.rows, *self.events]))
        put(path, header + body + end_line(self, path, header, hashlib.sha256(body)))
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, warn: bool = True) -> History:
        """Read a file that `to_jsonl`, `to_csv` (the columns only) or a run wrote.

        The history of a run that is going on or was killed has the records so far. If no process
        is writing it, the log "fedpage" says that its end is missing.

        Args:
            path: The file, or the directory of a run.
            warn: Whether to log a missing end.

        Raises:
            InputError: If the file is not a history, is damaged or cut short, its model is missing
                or damaged, or the directory has several runs.
        """
        path = Path(path)
        if path.is_dir():
            if not (path / "history.jsonl").is_file() and any(path.glob("**/history.jsonl")):
                raise InputError(
                    f"{path}: has several runs; fp.Runs({str(path)!r}) reads them all, and "
                    "History.load one of the directories below"
                )
            path = path / "history.jsonl"
        is_running = is_in_use(path.parent)  # asked first: the run may end meanwhile
        try:
            text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8 text"
            raise InputError(f"{path}: cannot be read ({why})") from None
        if path.suffix == ".csv":
            return cls._from_csv(text, path)
        history = cls()
        end = parse_lines(history, text, path)
        if end is not None:
            history.x = None if end.model is None else read_model(path, end.model)
            return history
        history.stop_reason, history.stop_detail = StopReason.INTERRUPTED, "the file has no end"
        if not is_running and model_path(path).exists():  # it is written just before the end
            raise InputError(
                f"{path}: cut short, only {len(history.rows)} records are left; restore a copy, or "
                "resume the run, which computes again what is missing"
            )
        if warn and not is_running:
            _LOG.warning(
                "%s: has no end, only %s records: the run was killed and can be resumed, or the "
                "file was cut short", path, len(history),
            )  # fmt: skip
        return history

    @classmethod
    def _from_csv(cls, text: str, path: Path) -> History:
        history = cls()
        reader = csv.DictReader(io.StringIO(text, newline=""))
        try:
            if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ("none",)):
                raise ValueError
            for row in reader:
                if None in row.values():  # the line has too few cells
                    raise ValueError
                add_record(history, {name: text for name, text in row.items() if text != ""})
        except (csv.Error, KeyError, ValueError, msgspec.ValidationError):
            line = max(reader.line_num, 1)
            raise InputError(f"{path}, line {line}: not a record of a fedpage history") from None
        return history

    def to_pandas(self) -> DataFrame:
        """Return the columns as a DataFrame (needs `pip install fedpage[pandas]`)."""
        frame = make_data_frame(self.rows)
        frame.attrs.update(self.meta)
        return frame

    def __repr__(self) -> str:
        if not self.rows:
            return f"History({self.label}, empty)"
        last = self.rows[-1]
        parts = [self.label, f"{int(last['round'])} rounds"]
        for column, words in (("loss", "loss {:.4g}"), ("grad_norm", "gradient norm {:.3g}")):
            parts += [words.format(last[column])] if column in last else []
        parts += [] if self.stop_reason in (None, StopReason.FINISHED) else [self.stop_text]
        return f"History({', '.join(parts)})"

    def _repr_html_(self) -> str:
        ends = [(describe_column(name).label, self[name][[0, -1]]) for name in self.columns]
        rows = [(label, *map(format_number, values.tolist())) for label, values in ends]
        return html_table(repr(self), ("", "first", "last"), rows, self.stop_text)


def is_complete(row: Mapping[str, float]) -> bool:
    """Return whether a record's values are those of all clients.

    In a federation a client may be missing when a model is evaluated. The record then says in
    "measured_clients" how many clients its loss, gradient norm and metrics are of. Such values are
    shown, but they end no run, are no best value and reach no target.

    >>> is_complete({"round": 3, "loss": 0.4}), is_complete({"loss": 0.4, "measured_clients": 7})
    (True, False)
    """
    return MEASURED not in row


def make_data_frame(data: Any) -> DataFrame:
    """Return a pandas frame of rows or columns, or say how to install pandas."""
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas needs pandas: pip install 'fedpage[pandas]'") from None
    return pandas.DataFrame(data)
