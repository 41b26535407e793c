"""When a run ends before its last round: a target, a budget, or divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpage.core.errors import InputError


@dataclass(frozen=True)
class Stop:
    """When to end a run before its last round.

    grad_norm, loss: end at the first record at or below this (while f(x) <= f(x0)). bytes: end after the round that
    takes the traffic, up and down, to this or beyond.
    """

    grad_norm: float | None = None
    loss: float | None = None
    bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("grad_norm", "loss", "bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or (name != "loss" and value <= 0):
                raise InputError(f"stop: {name} must be a finite number above 0, not {value!r}")


class Watch:
    """Tells a run that has left for good from one that wanders.

    Diverged is: loss or gradient not finite; a loss above f(x0) by 100 max(1, |f(x0)|); or one above it by
    max(1, |f(x0)|) at the end, or at 3 records in a row or more that span 200 rounds. The last catches losses that
    grow slowly, such as robust regression's.
    """

    def __init__(self, first: float, step: float) -> None:
        self.first, self.step = first, step
        self.above: list[float] = []

    def verdict(self, row: Mapping[str, float], last: bool) -> str | None:
        """Why the run has diverged at this record, or None."""
        loss, done = row["loss"], row["round"]
        if not (math.isfinite(loss) and math.isfinite(row["grad_norm"])):
            return f"loss or gradient not finite at round {done:.0f}, with effective step {self.step:g}"
        unit = max(1.0, abs(self.first))
        self.above = [*self.above, done] if loss > self.first + unit else []
        lasting = len(self.above) >= 3 and done - self.above[0] >= 200
        if loss > self.first + 100.0 * unit or lasting or (last and self.above):
            since = (
                f"; far above it since round {self.above[0]:.0f}" if self.above[0] < done else ""
            )
            return (
                f"loss {loss:.4g} at round {done:.0f}, {self.first:.4g} at the start{since}; "
                f"effective step {self.step:g}"
            )
        return None
