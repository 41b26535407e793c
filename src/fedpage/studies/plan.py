"""Plan a run: compare methods by their theory and by short pilot runs, as `fedpage plan` does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.core.columns import Cost
from fedpage.core.display import html_table
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.types import Problem
from fedpage.core.validate import as_number, check_whole
from fedpage.report.summary import format_cost, format_duration
from fedpage.studies import pilot as pilots
from fedpage.studies.pilot import Pilot
from fedpage.studies.question import check_link, parse_budget
from fedpage.theory import Setting, estimate, planner
from fedpage.theory.planner import Measure, Row, TimeModel
from fedpage.theory.tables import RIVALS

CONSTANTS = ("L", "sigma", "G", "B", "D0", "R2")
"""The constants that every analysis may use."""
OPTIONAL = ("mu", "delta")
"""Constants without a default; the analyses that need them are left out where they are unknown."""
_NAMES: dict[Measure, str] = {"grad_norm": "gradient norm", "gap": "gap f - f*"}
_WITHOUT_THEOREM = ("SecantPAGE",)
"""Methods that no theorem is about, which pilots predict all the same."""

Progress = Callable[[int, int, str], None]
"""Called with the pilots done, their number, and the name of the next one."""


@dataclass(frozen=True, repr=False)
class Plan:
    """What methods need to reach an accuracy: by theorems, and by the prediction of short runs.

    `print(plan)` shows a line for each method.

    Attributes:
        setting: N, S, K, M, the accuracy epsilon, and the constants.
        measure: What epsilon is: "grad_norm" or "gap".
        d: Parameters.
        convex: Whether f is convex.
        origin: Where each constant is from: "default", "estimated", "computed" or "given".
        analyses: A row for each method and analysis.
        codec: The codec of replies, for the analyses that allow for it.
        pilots: What the short runs predict, by method; {} without them.
        costs: What an estimated time depends on.
        compared: The cost by which methods are ordered.
    """

    setting: Setting
    measure: Measure
    d: int
    convex: bool
    origin: Mapping[str, str]
    analyses: tuple[Row, ...]
    codec: Codec
    pilots: Mapping[str, Pilot]
    costs: TimeModel
    compared: Cost

    @property
    def goal(self) -> str:
        """The accuracy to reach, such as "gradient norm <= 0.01"."""
        return f"{_NAMES[self.measure]} <= {self.setting.epsilon:g}"

    @property
    def title(self) -> str:
        """The setting and the accuracy in one line."""
        s, coded = self.setting, f"; replies through {self.codec} where proved"
        text = f"N={s.N:,} clients, S={s.S}, M={s.M:g} rows, K={s.K}, d={self.d:,}"
        kind = "convex" if self.convex else "nonconvex"
        return f"{text}; {kind}: {self.goal}{'' if self.codec == IDENTITY else coded}"

    @property
    def constants(self) -> list[str]:
        """The constants and where they are from, such as "L=3.5 (computed)"."""
        return [f"{name}={getattr(self.setting, name):.3g} ({how})"
                for name, how in self.origin.items()]  # fmt: skip

    @property
    def shown(self) -> list[Row]:
        """The analyses of the methods to compare: without a codec, none of compression."""
        return [row for row in self.analyses if is_compared(row, self.codec)]

    @property
    def order(self) -> list[str]:
        """The methods, the least predicted cost first, then those without a prediction."""
        theory = {name: row.cost(self.compared) for name, row in self._best_analyses().items()}
        return sorted(
            theory, key=lambda name: (self.paid(name, self.compared), theory[name] or math.inf)
        )

    def paid(self, method: str, cost: str | Cost) -> float:
        """Return the cost that a method's pilot predicts; inf without a prediction."""
        pilot = self.pilots.get(method)
        found = None if pilot is None else pilot.cost(cost, self.costs)
        return math.inf if found is None else found[0]

    def _best_analyses(self) -> dict[str, Row]:
        """Return the analysis of each method with the fewest rounds, bounds before orders."""
        best: dict[str, Row] = {}
        for row in sorted(
            self.shown, key=lambda row: (row.kind != "bound", row.rounds or math.inf)
        ):
            best.setdefault(row.method, row)
        more = {name: Row(name, "-", "", "no result") for name in self.pilots if name not in best}
        return best | more

    def columns(self) -> dict[str, list[str]]:
        """Arrange a line for each method: its best analysis, and what its pilot predicts.

        Returns:
            The cells by heading.
        """
        best, compared, unit = self._best_analyses(), self.compared, self.compared.column.unit
        name = compared.short_name if len(compared.terms) > 1 else compared.name.replace("_", " ")
        is_shown = compared.name in ("round", "clients")
        columns: dict[str, list[str]] = {}
        for label in self.order:
            row, pilot = best[label], self.pilots.get(label)
            theory = row.cost(compared)
            sign = "~" if row.kind == "order" else ""
            cells = {"method": label, "theory": _short_source(row)}
            cells["rounds by theory"] = (
                "-" if row.rounds is None else sign + format_count(row.rounds)
            )
            if not is_shown:
                by_theory = "-" if theory is None else sign + format_cost(theory, unit)
                cells[f"{name} by theory"] = by_theory
            if self.pilots:
                found = None if pilot is None else pilot.forecast
                cells["pilot"] = "-" if found is None or found.kind == "none" else found.kind
                text = "-"
                if found is not None and None not in (found.rounds, found.low, found.high):
                    ends = f"[{format_count(found.low)}, {format_count(found.high)}]"
                    text = f"{format_count(found.rounds)} {ends}"
                cells["rounds by pilot [90 % interval]"] = text
                cells["clients"] = format_count(self.paid(label, "clients"))
                if not is_shown:
                    cells[name] = format_cost(self.paid(label, compared), unit)
                if self.costs.given:
                    time = self.paid(label, "seconds")
                    cells["time"] = format_duration(time) if math.isfinite(time) else "-"
                step = None if pilot is None else pilot.step
                cells["step"] = "-" if step is None else f"{step:.2g}"
            for heading, cell in cells.items():
                columns.setdefault(heading, []).append(cell)
        return columns

    def __repr__(self) -> str:
        first = self.order[0]
        rounds = self.paid(first, "round")
        if math.isfinite(rounds):
            best = f"{first} with {format_count(rounds)} rounds"
            if self.compared.name != "round":
                paid = self.paid(first, self.compared)
                unit, name = self.compared.column.unit, self.compared.name.replace("_", " ")
                best += f", {format_cost(paid, unit)}" + ("" if unit else f" {name}")
            best += " by pilots"
        else:
            best = f"{first} by theory"
        return f"Plan({self.goal}: {best}, of {len(self.order)} methods; print it for the table)"

    def __str__(self) -> str:
        from tabulate import tabulate

        columns = self.columns()
        rows = [list(columns), *zip(*columns.values(), strict=True)]
        table = tabulate(rows, tablefmt="plain", disable_numparse=True)
        return "\n".join([self.title, f"constants: {', '.join(self.constants)}", table])

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = list(zip(*columns.values(), strict=True))
        return html_table(
            self.title, list(columns), rows, f"Constants: {', '.join(self.constants)}."
        )


def plan(
    problem: Problem,
    *,
    target: float | None = None,
    gap: float | None = None,
    S: int = 10,
    K: int = 10,
    up: Codec | str = IDENTITY,
    cost: str | Cost = "bytes",
    costs: TimeModel | None = None,
    constants: Mapping[str, float] | None = None,
    pilots: bool = True,
    budget: str | float = "15s",
    progress: Progress | None = None,
) -> Plan:
    """Predict by theory and by short runs what methods need to reach an accuracy.

    Args:
        problem: The problem; its constants are computed or estimated.
        target: The gradient norm to reach; give this or gap.
        gap: The gap f - f* to reach, of a convex objective.
        S: Clients sampled in a round, at most all.
        K: Local steps.
        up: The codec of replies, for methods that have a theorem for it.
        cost: What to compare: "bytes", "rounds", "up+0.1*down", or "seconds" with costs.
        costs: Latency, bandwidth and speed, for an estimated time.
        constants: Constants to use instead of the problem's: L, sigma, G, B, D0, R2, mu, delta.
        pilots: Whether to predict from short runs too.
        budget: The time that the short runs may take: "15s", "5m", or seconds.
        progress: Called with the pilots done, their number, and the name of the next one.

    Returns:
        The plan; `print` it for a line a method.

    Raises:
        InputError: An argument cannot be used, or the start has reached the accuracy already.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2")
    >>> fp.plan(problem, target=0.01, S=5, pilots=False)
    Plan(gradient norm <= 0.01: ... by theory, of ... methods; print it for the table)
    """
    check_whole("S", S, 1)
    check_whole("K", K, 1)
    return compute_plan(
        problem,
        lambda: problem_constants(problem),
        choose_accuracy=read_accuracy({"target": target, "gap": gap}),
        shape={"N": problem.N, "S": min(S, problem.N), "K": K},
        given=constants or {},
        up=up,
        cost=cost,
        costs=costs or TimeModel(),
        pilots=pilots,
        budget=budget,
        progress=progress,
    )


@dataclass(frozen=True)
class ProblemConstants:
    """The constants of a problem, estimated or computed."""

    name: str
    values: Mapping[str, float]
    average: float | None
    whole: float | None
    M: int
    d: int
    convex: bool
    origin: Mapping[str, str]


def problem_constants(problem: Problem) -> ProblemConstants:
    """Estimate the constants of a problem."""
    c = estimate(problem)
    values = {
        "L": c.L.row, "sigma": math.sqrt(c.sigma2), "G": c.G, "B": c.B, "D0": c.D0, "R2": c.R2,
    }  # fmt: skip
    values |= {"mu": c.mu} if c.mu > 0 else {}
    values |= {"delta": c.delta} if math.isfinite(c.delta) else {}
    origin = {name: "computed" if name in ("L", "mu") else "estimated" for name in values}
    name, M = str(problem.describe().get("data", "the problem")), max(1, round(c.M))
    return ProblemConstants(name, values, c.L.average, c.L.whole, M, c.d, c.convex, origin)


def unit_constants(M: int, d: int, convex: bool) -> ProblemConstants:
    """Return constants of 1, for a plan without data."""
    values, origin = dict.fromkeys(CONSTANTS, 1.0), dict.fromkeys(CONSTANTS, "default")
    return ProblemConstants("", values, None, None, M, d, convex, origin)


def read_accuracy(given: Mapping[str, float | None]) -> Callable[[bool], tuple[Measure, float]]:
    """Check that one accuracy is given; return it as a function of whether f is convex.

    Args:
        given: The accuracies by the names that users gave them. A name that ends in "gap" is f -
            f*, one that ends in "epsilon" a gap if f is convex, and others are a gradient norm.

    Raises:
        InputError: None or several are given, or it is not a number above 0.
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        found = f", not {' and '.join(names)}" if names else ""
        first, second, *_ = given
        raise InputError(
            f"give one accuracy: {first} for a gradient norm or {second} for f - f*{found}"
        )
    name, value = names[0], given[names[0]]
    if value is None or not 0 < as_number(value) < math.inf:
        raise InputError(f"{name} must be a finite number above 0, not {short_repr(value)}")

    def choose(convex: bool) -> tuple[Measure, float]:
        is_gap = name.endswith("gap") or (name.endswith("epsilon") and convex)
        return ("gap" if is_gap else "grad_norm"), value

    return choose


def compute_plan(
    problem: Problem | None,
    find_constants: Callable[[], ProblemConstants],
    *,
    choose_accuracy: Callable[[bool], tuple[Measure, float]],
    shape: Mapping[str, int],
    given: Mapping[str, float],
    up: Codec | str,
    cost: str | Cost,
    costs: TimeModel,
    pilots: bool,
    budget: str | float,
    progress: Progress | None = None,
) -> Plan:
    """Compute a plan from constants, with pilots where there is a problem.

    Args:
        problem: The problem of the pilots; None: no pilots.
        find_constants: Returns the constants that are not given; called after the other arguments
            have been checked.
        choose_accuracy: What `read_accuracy` returned.
        shape: N, S and K.
        given: Constants that replace the known ones.
        up: The codec of replies.
        cost: What to compare.
        costs: What a time depends on.
        pilots: Whether to run pilots.
        budget: Their time.
        progress: Called with the pilots done, their number, and the name of the next one.

    Raises:
        InputError: Something given cannot be used.
    """
    codec, compared, seconds = as_codec(up), Cost.parse(cost), parse_budget(budget)
    Row("", "", "", "no result").cost(compared)  # refuses a cost that plans do not have
    check_link(compared, costs)
    for name in given:
        if name not in (*CONSTANTS, *OPTIONAL):
            hint = did_you_mean(name, (*CONSTANTS, *OPTIONAL))
            raise InputError(
                f"unknown constant {short_repr(name)}:{hint} known are "
                f"{', '.join((*CONSTANTS, *OPTIONAL))}"
            )
    known = find_constants()
    values = {**known.values, **given}
    origin = {**known.origin, **dict.fromkeys(given, "given")}
    for name in ("L", "D0", "R2"):
        if values[name] == 0 and origin[name] != "given":
            raise InputError(
                f"{known.name}: x0 = 0 is a minimiser already ({name} = 0); no plan is needed"
            )
    measure, value = choose_accuracy(known.convex)
    is_own = origin["L"] == "computed"
    try:
        setting = Setting(
            N=shape["N"], S=shape["S"], K=shape["K"], M=known.M, epsilon=value, **values
        )  # fmt: skip
        table = planner.plan(
            setting, d=known.d, convex=known.convex, measure=measure, costs=costs, up=codec,
            average_L=known.average if is_own else None, whole_L=known.whole if is_own else None,
        )  # fmt: skip
    except (ZeroDivisionError, OverflowError):
        raise InputError(
            "these numbers are too small or too large to compute with; choose others"
        ) from None
    predicted: dict[str, Pilot] = {}
    if problem is not None and pilots:
        labels = [row.method for row in table if is_compared(row, codec)]
        predicted = _run_pilots(problem, labels, setting, measure, known, codec, seconds, progress)
    return Plan(
        setting, measure, known.d, known.convex, origin, tuple(table), codec, predicted, costs,
        compared,
    )  # fmt: skip


def _run_pilots(
    problem: Problem,
    labels: list[str],
    setting: Setting,
    measure: Measure,
    known: ProblemConstants,
    codec: Codec,
    budget: float,
    progress: Progress | None,
) -> dict[str, Pilot]:
    """Run the pilots of methods, and of those without a theorem."""
    methods = pilots.pilot_methods(
        [*labels, *_WITHOUT_THEOREM], setting.N, setting.S, setting.K, codec
    )
    f_star = problem.loss(np.zeros(problem.d)) - known.values["D0"]
    pilots.check_start(problem, setting.epsilon, measure, f_star)  # before the progress bar
    first_step = None if known.whole is None else pilots.FIRST_STEP / known.whole
    return pilots.run_pilots(
        problem, methods, target=setting.epsilon, measure=measure, f_star=f_star,
        first_step=first_step, budget=budget, progress=progress,
    )  # fmt: skip


def is_compared(row: Row, codec: Codec) -> bool:
    """Say whether a row is about a method of its own: methods of compression are, with a codec."""
    return codec != IDENTITY or row.method not in {e.method for e in RIVALS if e.codec}


def _short_source(row: Row) -> str:
    """Shorten "Khaled, Jin 2023, mu" to "Khaled 2023", and leave theorems as they are."""
    if row.kind == "no result":
        return "-"
    author = re.match(r"(\w+)\b.*?\b(\d{4})", row.source)
    text = " ".join(author.groups()) if author else row.source.partition(", ")[0]
    return text.replace(f" {row.method}", "") + "*" * row.converted


def format_count(value: float | None) -> str:
    """Format rounds or clients; infinity is "-"."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value < 1e7 else f"{value:.2e}"
