"""Decide when a run ends early: at a target, a budget, without progress, or diverged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedpage.callbacks.base import Stopped
from fedpage.core import validate
from fedpage.core.columns import Cost, read_column
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import EVALUATED, higher_is_better
from fedpage.core.types import StopReason
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.history import is_complete


@dataclass(frozen=True)
class Stop:
    """When to end a run before its last round.

    Targets and patience are checked at records, budgets after every round. A target counts only
    where f(x) <= f(x0).

    Args:
        grad_norm: end at the first record with a gradient norm of at most this.
        loss: end at the first record with a loss of at most this.
        bytes: end after the round that takes the traffic, up and down, to this or beyond.
        targets: end at the first record where any of these columns is at its target or better, such
            as {"held_out_accuracy": 0.9}.
        budgets: end after the round that takes any of these costs to its budget, such as
            {"clients": 1000, "seconds": 60} or {"up+0.1*down": 1e9}.
        patience: end when `monitor` has not improved for this many records.
        monitor: the column that patience watches, "loss" by default.
        min_delta: the least change that counts as an improvement of `monitor`.

    Raises:
        InputError: a number cannot be used, or a cost is not known.

    >>> stop = Stop(grad_norm=0.05, budgets={"clients": 500})
    >>> stop.check_targets({"grad_norm": 0.04, "round": 7}).detail
    'reached grad_norm 0.05 at round 7'
    """

    grad_norm: float | None = None
    loss: float | None = None
    bytes: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    patience: int | None = None
    monitor: str = "loss"
    min_delta: float = 0.0

    __repr__ = repr_settings

    def __post_init__(self) -> None:
        for name, table in {"targets": self.targets, "budgets": self.budgets}.items():
            if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
                raise InputError(
                    f"stop: {name} must be a table of column -> number, not {short_repr(table)}"
                )
        for name, value in self._targets().items():
            check = validate.positive if name == "grad_norm" else validate.finite
            check("stop", name, value)
        for name, value in self._budgets().items():
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

    def _targets(self) -> dict[str, float]:
        named = {"grad_norm": self.grad_norm, "loss": self.loss}
        return {k: v for k, v in named.items() if v is not None} | dict(self.targets)

    def _budgets(self) -> dict[str, float]:
        named = {} if self.bytes is None else {"bytes": self.bytes}
        return named | dict(self.budgets)

    @property
    def columns(self) -> frozenset[str]:
        """The recorded values that targets and patience look at."""
        watched = () if self.patience is None else (self.monitor,)
        return frozenset((*self._targets(), *watched))

    def describe(self) -> dict[str, object]:
        """List what is set, as plain values for provenance."""
        single = ("grad_norm", "loss", "bytes", "patience")
        table = {name: getattr(self, name) for name in single if getattr(self, name) is not None}
        tables = {"targets": dict(self.targets), "budgets": dict(self.budgets)}
        table |= {name: values for name, values in tables.items() if values}
        if self.patience is not None:
            table |= {"monitor": self.monitor, "min_delta": self.min_delta}
        return table

    def check_targets(
        self, row: Mapping[str, float], directions: Mapping[str, bool | None] | None = None
    ) -> Stopped | None:
        """Return the end of the run if a record reaches a target, else None.

        Raises:
            InputError: the record lacks the column, or its direction is not known.
        """
        for name, target in self._targets().items():
            value = _value(row, name)
            good = value >= target if higher_is_better(name, directions) else value <= target
            if good:
                text = f"reached {name} {target:g} at round {row['round']}"
                return Stopped(StopReason.TARGET, text)
        return None

    def check_budgets(self, costs: Mapping[str, float]) -> Stopped | None:
        """Return the end of the run if the cumulative costs have used up a budget, else None."""
        for name, budget in self._budgets().items():
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
        self.above: list[float] = []
        self.best: float | None = None
        self.waited = 0

    def check(self, row: Mapping[str, float], last: bool = False) -> Stopped | None:
        """Return how the run ends at this record, or None. Records must come in order."""
        verdict = self.check_divergence(row, last)
        if verdict is not None or not is_complete(row):
            return verdict
        if not row.get("loss", math.nan) > self.first:
            verdict = self.stop.check_targets(row, self.directions)
        return verdict or self._check_patience(row)

    def check_divergence(self, row: Mapping[str, float], last: bool = False) -> Stopped | None:
        """Return the end of the run if it has diverged at this record, else None."""
        done = row["round"]
        if not all(math.isfinite(row[name]) for name in EVALUATED if name in row):
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
        if self.waited < self.stop.patience:
            return None
        text = f"{name} has not improved on {self.best:.6g} for {self.waited} records"
        return Stopped(StopReason.NO_PROGRESS, f"{text}, at round {row['round']}")

    def snapshot(self) -> Snapshot:
        """Return what was seen so far, for a checkpoint."""
        above = [float(done) for done in self.above]
        return {"first_loss": self.first, "above": above, "best": self.best, "waited": self.waited}

    def restore(self, state: Snapshot) -> None:
        """Go back to a snapshot; raise a KeyError, TypeError or ValueError if it is not one."""
        self.first, self.above = float(state["first_loss"]), [float(r) for r in state["above"]]
        self.best = None if state["best"] is None else float(state["best"])
        self.waited = int(state["waited"])


def _value(row: Mapping[str, float], column: str) -> float:
    value = read_column(row, column)
    if column not in row and math.isnan(value):
        hint = did_you_mean(column, row)
        raise InputError(
            f"stop: no column {short_repr(column)} is recorded;{hint} there are {', '.join(row)}"
        )
    return value
