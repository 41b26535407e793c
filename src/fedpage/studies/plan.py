"""Compare methods by their theory, as `fedpage plan` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.core.columns import Cost, Target, TargetLike
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.types import Problem, Smoothness
from fedpage.core.validate import check_whole
from fedpage.report.summary import format_cost, format_duration
from fedpage.report.tables import Cell, Table
from fedpage.studies.trials import check_link
from fedpage.theory import Constants, Setting, estimate
from fedpage.theory.planner import Measure, Planner, Row, TimeModel

CONSTANTS = ("L", "sigma", "G", "B", "D0", "R2", "mu", "delta")
"""The constants of the analyses. Those that need mu or delta are left out if it is unknown."""
_NAMES: dict[Measure, str] = {"grad_norm": "gradient norm", "gap": "gap f - f*"}
_KINDS = ("bound", "order", "no result")
_NOTES = (
    "bound: proved with explicit constants, for the mean over rounds or for the last round.",
    "order: a complexity up to constants, which shows how costs grow but not how large they are.",
    "no result: no theorem is about this measure of accuracy or implies it.",
    "unverified: taken from code or from a summary, and the proof was not read.",
    "BV: bounded variance of rows (sigma). BGD: bounded dissimilarity of clients (G, B). delta: "
    "bounded dissimilarity of the clients' Hessians. mu: strong convexity. S = N: every client "
    "takes part in every round. C: the codec of replies (up). Rounds are exchanges of messages.",
)
_CONVERSIONS: dict[Measure, str] = {
    "grad_norm": "*: a theorem about the gap, used with epsilon^2/(2L): |grad f|^2 <= 2L (f - f*).",
    "gap": "*: a theorem about the gradient norm, used with sqrt(2 mu epsilon): "
    "f - f* <= |grad f|^2/(2 mu).",
}


@dataclass(frozen=True, repr=False)
class Plan(Planner):
    """The costs of methods until they reach an accuracy, by their theorems.

    `print(plan)` shows a line for each analysis. The attributes of `Planner` are the question.

    Attributes:
        origin: Where each constant is from: "computed", "estimated", "assumed" or "given".
        compared: The cost by which the analyses are sorted.
    """

    origin: Mapping[str, str] = field(default_factory=dict)
    compared: Cost = field(default=Cost.parse("bytes"))

    @cached_property
    def analyses(self) -> tuple[Row, ...]:
        """A row for each method and analysis: bounds, then orders, then those without a result.

        Each kind is sorted by cost.
        """
        return tuple(
            sorted(
                self.rows(),
                key=lambda row: (_KINDS.index(row.kind), row.cost(self.compared) or math.inf),
            )
        )

    @property
    def goal(self) -> str:
        """The accuracy to reach, such as "gradient norm <= 0.01"."""
        return f"{_NAMES[self.measure]} <= {self.setting.epsilon:g}"

    @property
    def title(self) -> str:
        """The setting and the accuracy in one line."""
        s = self.setting
        text = f"N={s.N:,} clients, S={s.S}, M={s.M:g} rows, K={s.K}, d={self.d:,}"
        coded = "" if self.codec == IDENTITY else f"; replies through {self.codec} where proved"
        return f"{text}; {'convex' if self.convex else 'nonconvex'}: {self.goal}{coded}"

    @property
    def constants(self) -> str:
        """The constants and where they are from, such as "L=3.5 (computed)"."""
        return ", ".join(
            f"{name}={getattr(self.setting, name):.3g} ({how})" for name, how in self.origin.items()
        )

    def table(self) -> Table:
        """Return a table with a line for each analysis, and the step sizes below it."""
        compared = self.compared
        name = compared.short_name if len(compared.terms) > 1 else compared.name.replace("_", " ")
        columns: dict[str, Callable[[Row], Cell]] = {
            "rounds": lambda row: _cell(row.rounds, _format_count),
            "clients": lambda row: _cell(row.clients, "{:.3g}".format),
            "gradients a client": lambda row: _cell(row.gradients_per_client, "{:.3g}".format),
        }
        if compared.name not in ("round", "clients", "gradients_per_client"):
            write = partial(format_cost, unit=compared.column.unit)
            columns[name] = lambda row: _cell(row.cost(compared), write)
        if self.costs.given:
            columns["time, estimated"] = lambda row: _cell(row.seconds, format_duration)
        rows, steps = [], []
        for row in self.analyses:
            words = [row.method, row.source + "*" * row.converted, row.kind]
            numbers = [make(row) for make in columns.values()]
            rows.append((*map(Cell, words), *numbers, Cell(row.assumption)))
            if row.steps:
                sizes = (f"{key} = {value:.4g}" for key, value in row.steps.items())
                steps.append(f"Step sizes of {row.method}: {', '.join(sizes)}.")
        is_converted = any(row.converted for row in self.analyses)
        return Table(
            ("method", "analysis", "kind", *columns, "needs"),
            tuple(rows),
            caption=self.title,
            notes=(
                f"Constants: {self.constants}.",
                *_NOTES,
                *([_CONVERSIONS[self.measure]] if is_converted else []),
                *steps,
            ),
            align="lll" + "r" * len(columns) + "l",
        )

    def __repr__(self) -> str:
        first = self.analyses[0]
        paid = first.cost(self.compared)
        found = "" if paid is None else f" with {format_cost(paid, self.compared.column.unit)}"
        return (
            f"Plan({self.goal}: {first.method}{found} by {first.source}, of {len(self.analyses)} "
            "analyses; print it for the table)"
        )

    def __str__(self) -> str:
        return self.table().to_text()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def plan(
    problem: Problem | Constants,
    *,
    target: TargetLike,
    S: int | None = None,
    K: int = 10,
    up: Codec | str = IDENTITY,
    cost: str | Cost = "bytes",
    costs: TimeModel | None = None,
    constants: Mapping[str, float] | None = None,
) -> Plan:
    """Compute by theory what methods need to reach an accuracy.

    Args:
        problem: The problem, whose constants are computed or estimated, or constants to assume.
        target: The gradient norm to reach, or "gap:0.001" for f - f* of a convex objective.
        S: Clients sampled in a round. If None, 10, or all if there are fewer.
        K: Local steps.
        up: The codec of replies, for methods that have a theorem for it.
        cost: The cost to compare: "bytes", "rounds", "up+0.1*down", or "seconds" with costs.
        costs: Latency, bandwidth and speed, for an estimated time.
        constants: Constants to use instead of the problem's: L, sigma, G, B, D0, R2, mu, delta.

    Returns:
        The plan; `print` it for a line for each analysis.

    Raises:
        InputError: An argument cannot be used.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2")
    >>> fp.plan(problem, target=0.01, S=5)
    Plan(gradient norm <= 0.01: ... with ... by ..., of ... analyses; print it for the table)
    """
    if S is not None:
        check_whole("S", S, 1)
    check_whole("K", K, 1)
    goal = Target.parse(target)
    measure: Measure = "gap" if goal.column == "gap" else "grad_norm"
    if goal.column not in _NAMES or not goal.value > 0:
        raise InputError(
            "theorems are about a gradient norm above 0, such as 0.01, or about f - f*, such as "
            f"gap:0.001, not {goal}"
        )
    codec, compared, costs = as_codec(up), Cost.parse(cost), costs or TimeModel()
    Row("", "", "", "no result").cost(compared)  # refuses costs that plans do not have
    check_link(compared, costs)
    given = dict(constants or {})
    for name in given.keys() - {*CONSTANTS}:
        raise InputError(
            f"unknown constant {short_repr(name)}:{did_you_mean(name, CONSTANTS)} known are "
            f"{', '.join(CONSTANTS)}"
        )
    c = problem if isinstance(problem, Constants) else estimate(problem)
    values = {
        "L": c.L.row, "sigma": math.sqrt(c.sigma2), "G": c.G, "B": c.B, "D0": c.D0, "R2": c.R2,
    }  # fmt: skip
    values |= {"mu": c.mu} if c.mu > 0 else {}
    values |= {"delta": c.delta} if math.isfinite(c.delta) else {}
    origin = {name: "computed" if name in ("L", "mu") else "estimated" for name in values}
    origin |= dict.fromkeys(values if isinstance(problem, Constants) else (), "assumed")
    origin |= dict.fromkeys(given, "given")
    for name in ("L", "D0", "R2"):
        if values[name] == 0 and name not in given:
            raise InputError(f"x0 = 0 is a minimiser already ({name} = 0); no plan is needed")
    L = Smoothness(*[given["L"]] * 4) if "L" in given else c.L
    try:
        setting = Setting(
            N=c.N, S=min(10, c.N) if S is None else S, K=K, M=max(1, round(c.M)),
            epsilon=goal.value, **values | given,
        )  # fmt: skip
        found = Plan(setting, measure, c.d, c.convex, L, costs, codec, origin, compared)
        _ = found.analyses  # computes them
    except (ZeroDivisionError, OverflowError):
        raise InputError(
            "these numbers are too small or too large to compute with; choose others"
        ) from None
    return found


def _cell(value: float | None, write: Callable[[float], str]) -> Cell:
    return Cell("-") if value is None else Cell(write(value), value)


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if value < 1e7 else f"{value:.2e}"
