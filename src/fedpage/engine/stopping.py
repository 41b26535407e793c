"""Decide when a run ends early: at a target, a budget, without progress, or diverged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpage.callbacks.base import Stopped
from fedpage.core import validate
from fedpage.core.columns import Cost, Stretch, Target, TargetLike, read_column
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import EVALUATED, METRICS, higher_is_better
from fedpage.core.types import Problem, StopReason
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.history import is_complete
from fedpage.runs.spec import start_of


@dataclass(frozen=True)
class Stop:
    """When to end a run before its last round.

    Targets and patience are checked at records, budgets after every round. A target must hold (see
    `fedpage.Target`), and it counts only where f(x) <= f(x0). A budget or patience does not end the
    run while a target that was met before is still met: it ends when the target has held, or at the
    first record where it does not.

    Args:
        target: End once any of these targets has held: one target or several, such as
            "held_out_accuracy:0.9", a Target, or a number, which is a gradient norm.
        budgets: End after the round that takes any of these costs to its budget, such as
            {"bytes": 5e7, "seconds": 60} or {"up+0.1*down": 1e9}.
        patience: End when `monitor` has not improved for this many records.
        monitor: The column that patience watches.
        min_delta: The least change that counts as an improvement of `monitor`.

    Raises:
        InputError: If a number cannot be used, or a cost is not known.

    >>> Stop(["grad_norm:0.05", "accuracy:0.9"], budgets={"clients": 5})
    Stop(target=(Target(value=0.05), Target(column='accuracy', value=0.9)), budgets={'clients': 5})
    """

    target: TargetLike | Sequence[TargetLike] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    patience: int | None = None
    monitor: str = "loss"
    min_delta: float = 0.0

    __repr__ = repr_settings

    def __post_init__(self) -> None:
        given: Any = self.target
        try:
            targets = tuple(
                map(Target.parse, given if isinstance(given, (list, tuple)) else [given])
            )
        except InputError as error:
            raise InputError(f"stop: {error}") from None
        object.__setattr__(self, "target", targets)
        if not isinstance(self.budgets, Mapping):
            raise InputError(
                f"stop: budgets must be a table of cost -> number, not {short_repr(self.budgets)}"
            )
        for name, value in self.budgets.items():
            try:
                Cost.parse(name)
            except InputError as error:
                raise InputError(f"stop: {error}") from None
            validate.positive("stop", name, value)
        if self.patience is not None:
            validate.whole("stop", "patience", self.patience)
        if not isinstance(self.monitor, str):
            raise InputError(f"stop: monitor must be a column, not {short_repr(self.monitor)}")
        validate.at_least_zero("stop", "min_delta", self.min_delta)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets, any of which ends the run."""
        return self.target  # type: ignore[return-value]

    @property
    def columns(self) -> frozenset[str]:
        """The recorded values that targets and patience look at."""
        watched = () if self.patience is None else (self.monitor,)
        return frozenset((*(target.column for target in self.targets), *watched))

    def describe(self) -> dict[str, object]:
        """List what is set, as plain values for provenance."""
        table: dict[str, object] = {"target": list(map(str, self.targets))} if self.targets else {}
        table |= {"budgets": dict(self.budgets)} if self.budgets else {}
        if self.patience is not None:
            table |= {
                "patience": self.patience, "monitor": self.monitor, "min_delta": self.min_delta
            }  # fmt: skip
        return table

    def check_budgets(self, costs: Mapping[str, float]) -> Stopped | None:
        """Return the end of the run if the cumulative costs have used up a budget, else None."""
        for name, budget in self.budgets.items():
            if Cost.parse(name).evaluate(lambda column: read_column(costs, column)) >= budget:
                text = f"spent {budget:g} {name} at round {costs['round']}"
                return Stopped(StopReason.BUDGET, text)
        return None


class Watch:
    """Check the records of a run one after the other: divergence, targets, patience.

    Targets and patience look at records of all clients only (see `is_complete`). A run has diverged
    where
    - the loss or the gradient is not finite;
    - the loss is above f(x0) by 100 max(1, |f(x0)|);
    - the loss is above f(x0) by max(1, |f(x0)|) at the end, or at 3 records in a row or more that
      span 200 rounds. This finds losses that grow slowly, such as robust regression's.

    `first` is f(x0), or NaN if it was not measured over all clients. No loss is above NaN.
    """

    def __init__(
        self,
        first: float,
        step: str,
        stop: Stop | None = None,
        directions: Mapping[str, bool | None] | None = None,
    ) -> None:
        self.first, self.step, self.directions = first, step, directions
        self.stop = Stop() if stop is None else stop
        self.stretches = [Stretch(target.hold) for target in self.stop.targets]
        self.above: list[float] = []
        self.best: float | None = None
        self.waited = 0

    def check(self, row: Mapping[str, float], last: bool = False) -> Stopped | None:
        """Return how the run ends at this record, or None. Records must come in order."""
        verdict = self.check_divergence(row, last)
        if verdict is not None or not is_complete(row):
            return verdict
        return self._check_targets(row) or self._check_patience(row)

    @property
    def is_holding(self) -> bool:
        """Whether the newest record of all clients is at a target, which has not held yet."""
        return any(stretch.round is not None for stretch in self.stretches)

    def _check_targets(self, row: Mapping[str, float]) -> Stopped | None:
        """Return the end of the run if a target has held, else None."""
        is_progress = not row.get("loss", math.nan) > self.first
        for target, stretch in zip(self.stop.targets, self.stretches, strict=True):
            value = _value(row, target.column)
            higher = higher_is_better(target.column, self.directions)
            is_met = is_progress and target.is_met(value, higher)
            if stretch.add(row["round"], is_met):
                text = f"reached {target.column} {target.value:g} at round {stretch.round:.0f}"
                held = f" and held it to round {row['round']:.0f}" if target.hold else ""
                return Stopped(StopReason.TARGET, text + held)
        return None

    def check_divergence(self, row: Mapping[str, float], last: bool = False) -> Stopped | None:
        """Return the end of the run if it has diverged at this record, else None."""
        done = row["round"]
        if not all(math.isfinite(row.get(name, 0.0)) for name in EVALUATED):
            text = f"loss or gradient not finite at round {done:.0f}, with {self.step}"
            return Stopped(StopReason.DIVERGED, text)
        if "loss" not in row:
            return None
        loss, unit = row["loss"], max(1.0, abs(self.first))
        self.above = [*self.above, done] if loss > self.first + unit else []
        lasting = len(self.above) >= 3 and done - self.above[0] >= 200
        if not (loss > self.first + 100.0 * unit or lasting or (last and self.above)):
            return None
        since = f"; far above it since round {self.above[0]:.0f}" if self.above[0] < done else ""
        text = f"loss {loss:.4g} at round {done:.0f}, {self.first:.4g} at the start{since}"
        return Stopped(StopReason.DIVERGED, f"{text}; {self.step}")

    def _check_patience(self, row: Mapping[str, float]) -> Stopped | None:
        """Return the end of the run if the monitored column has not improved, else None."""
        if self.stop.patience is None:
            return None
        name = self.stop.monitor
        value = _value(row, name)
        sign = -1.0 if higher_is_better(name, self.directions) else 1.0
        if self.best is None or sign * (self.best - value) > self.stop.min_delta:
            self.best, self.waited = value, 0
            return None
        self.waited += 1
        if self.waited < self.stop.patience or self.is_holding:
            return None
        text = f"{name} has not improved on {self.best:.6g} for {self.waited} records"
        return Stopped(StopReason.NO_PROGRESS, f"{text}, at round {row['round']}")

    def snapshot(self) -> Snapshot:
        """Return what was seen so far, for a checkpoint."""
        return {
            "first_loss": self.first,
            "above": [float(done) for done in self.above],
            "best": self.best,
            "waited": self.waited,
            "stretches": [[stretch.round, stretch.records] for stretch in self.stretches],
        }

    def restore(self, state: Snapshot) -> None:
        """Go back to a snapshot; raise a KeyError, TypeError or ValueError if it is not one."""
        self.first, self.above = float(state["first_loss"]), [float(r) for r in state["above"]]
        self.best = None if state["best"] is None else float(state["best"])
        self.waited = int(state["waited"])
        self.stretches = [
            Stretch(target.hold, done, records)
            for target, (done, records) in zip(self.stop.targets, state["stretches"], strict=True)
        ]


def check_target(problem: Problem, target: Target) -> Mapping[str, float]:
    """Check, before a run, that the column of a target will be recorded and can be reached.

    Returns:
        The columns that the problem evaluates, with their values at the start.

    Raises:
        InputError: The problem does not evaluate this column, or the value is above the metric's
            maximum.
    """
    column, recorded = target.column, problem.evaluate(start_of(problem))
    if column not in recorded:
        hint = did_you_mean(column, [*recorded, *METRICS])
        if column.startswith("held_out_") and getattr(problem, "held_out", None) is None:
            hint = " hold rows out, such as with --held-out 0.2;"
        raise InputError(
            f"target {target}: no column {column!r} is recorded;{hint} "
            f"there are {', '.join(recorded)}"
        )
    name = re.sub(r"^held_out_|_(worst|p\d+)$", "", column)
    if name in METRICS and target.value > METRICS[name].maximum:
        raise InputError(
            f"target {target}: {name} is at most {METRICS[name].maximum:g}; "
            f"90 percent is {column}:0.9"
        )
    return recorded


def _value(row: Mapping[str, float], column: str) -> float:
    value = read_column(row, column)
    if column not in row and math.isnan(value):
        hint = did_you_mean(column, row)
        raise InputError(
            f"stop: no column {short_repr(column)} is recorded;{hint} there are {', '.join(row)}"
        )
    return value
