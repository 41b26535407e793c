"""`fedpage plan`: compare methods by their theory and by short pilot runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import parse_cost
from fedpage.cli.options import with_config_options
from fedpage.cli.output import console
from fedpage.cli.plan_output import print_conversions, print_json, print_plan, print_predictions
from fedpage.core.errors import InputError
from fedpage.runs.config import ProblemConfig, setting

if TYPE_CHECKING:
    from fedpage.codecs import Codec
    from fedpage.problems import LinearModel
    from fedpage.studies.pilot import Pilot
    from fedpage.theory.planner import Costs, Measure, Row
    from fedpage.theory.tables import Setting

_CONSTANTS = ("L", "sigma", "G", "B", "D0", "R2")
_OPTIONAL = ("mu", "delta")
"""Constants without a default; the analyses that need them are left out where they are unknown."""


@dataclass(frozen=True)
class LinkConfig:
    """Describe what communication and computation cost in seconds."""

    latency: float = setting(0.0, "Seconds that a round takes at least.")
    uplink: float | None = setting(None, "Bytes a second from a client to the server.")
    downlink: float | None = setting(None, "Bytes a second from the server to a client.")
    seconds_per_gradient: float = setting(
        0.0, "Seconds that a client takes for one row's gradient."
    )

    def costs(self) -> Costs:
        """Return the planner's costs."""
        from fedpage.theory.planner import Costs

        up = math.inf if self.uplink is None else self.uplink
        down = math.inf if self.downlink is None else self.downlink
        return Costs(self.latency, up, down, self.seconds_per_gradient)


@dataclass(frozen=True)
class PlanProblemConfig(ProblemConfig):
    """Describe the problem of a plan; without data its constants are given or 1."""

    data: str = setting("", "Data set from which the constants are estimated (default: none).")


@dataclass(frozen=True)
class ConstantsConfig:
    """Give constants of the objective."""

    L: float | None = setting(None, "Smoothness of the rows (default 1).")
    sigma: float | None = setting(None, "Deviation of rows within a client (default 1).")
    G: float | None = setting(None, "Dissimilarity of clients (default 1).")
    B: float | None = setting(None, "Dissimilarity of clients, relative (default 1).")
    D0: float | None = setting(None, "f(x0) - f* (default 1).")
    R2: float | None = setting(None, "|x0 - x*|^2 (default 1).")
    mu: float | None = setting(None, "Strong convexity (default: unknown).")
    delta: float | None = setting(None, "Dissimilarity of clients' Hessians (default: unknown).")


@with_config_options
def plan(
    problem: PlanProblemConfig,
    constants: ConstantsConfig,
    link: LinkConfig,
    target: Annotated[
        float | None, typer.Option("--target", help="Gradient norm to reach.")
    ] = None,
    gap: Annotated[
        float | None, typer.Option("--gap", help="Gap f - f* to reach, of a convex objective.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", hidden=True, help="--gap if f is convex, else --target."),
    ] = None,
    sampled: Annotated[
        int, typer.Option("--S", "--sampled", help="Clients sampled in a round.")
    ] = 10,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows per client (with --data: from the data).")
    ] = None,
    K: Annotated[int, typer.Option("--K", help="Local steps.")] = 10,
    parameters: Annotated[
        int | None,
        typer.Option("--parameters", help="Parameters d (with --data: from the data)."),
    ] = None,
    convex: Annotated[
        bool, typer.Option("--convex", help="The objective is convex (with --data: known).")
    ] = False,
    up: Annotated[
        str, typer.Option("--up", help="Codec of replies, for methods that have a theorem for it.")
    ] = "none",
    cost: Annotated[
        str, typer.Option("--cost", help="Compare this cost: bits, bits_up, up+0.1*down, ...")
    ] = "bytes",
    pilots: Annotated[
        bool,
        typer.Option("--pilots/--no-pilots", help="With --data: predict from short runs too."),
    ] = True,
    budget: Annotated[
        str, typer.Option("--budget", help="Time that the short runs may take, such as 15s or 5m.")
    ] = "15s",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict rounds and bytes by theory and by short runs."""
    from fedpage.codecs import IDENTITY, as_codec
    from fedpage.core.columns import Cost
    from fedpage.studies.question import check_link, parse_budget
    from fedpage.theory import Setting
    from fedpage.theory import planner as planning

    accuracy = _read_accuracy(target, gap, epsilon)
    costs, codec, compared = link.costs(), as_codec(up), Cost.parse(parse_cost(cost))
    seconds = parse_budget(budget)
    planning.Row("", "", "", "no result").cost(compared)  # refuses a cost that plans do not have
    check_link(compared, costs)
    given = {name: getattr(constants, name) for name in (*_CONSTANTS, *_OPTIONAL)}
    base: dict[str, float] = dict.fromkeys(_CONSTANTS, 1.0)
    origin = dict.fromkeys(_CONSTANTS, "default")
    objective: LinearModel | None = None
    computed: dict[str, float] = {}
    average: float | None = None
    whole: float | None = None
    if problem.data:
        objective, computed, about = _estimate(problem)
        average, whole = computed["average"], computed["whole"]
        base = {name: computed[name] for name in (*_CONSTANTS, *_OPTIONAL) if name in computed}
        convex = bool(about["convex"])
        rows, parameters = rows or about["M"], parameters or about["d"]
        origin = dict.fromkeys(base, "estimated") | {"L": "computed"}
        origin |= {"mu": "computed"} if "mu" in base else {}
    values = base | {name: value for name, value in given.items() if value is not None}
    origin |= {name: "given" for name, value in given.items() if value is not None}
    for name in ("L", "D0", "R2"):
        if values[name] == 0 and origin[name] != "given":
            raise InputError(
                f"{problem.data}: x0 = 0 is a minimiser already ({name} = 0); no plan is needed"
            )
    measure, value = accuracy(convex)
    M, d = (10 if rows is None else rows), (100 if parameters is None else parameters)
    try:
        terms = Setting(N=problem.clients, S=sampled, K=K, M=M, epsilon=value, **values)
        is_own = origin["L"] == "computed"
        table = planning.plan(
            terms,
            d=d,
            convex=convex,
            measure=measure,
            costs=costs,
            average_L=average if is_own else None,
            whole_L=whole if is_own else None,
            up=codec,
        )
    except (ZeroDivisionError, OverflowError):
        raise InputError(
            "these numbers are too small or too large to compute with; choose others"
        ) from None
    predicted: dict[str, Pilot] = {}
    if objective is not None and pilots:
        # Without a codec, methods of compression are other methods of the table.
        shown = [row for row in table if codec != IDENTITY or row.method not in _compressed()]
        predicted = _run_pilots(objective, shown, terms, measure, computed, codec, seconds)
    if as_json:
        print_json(terms, measure, d, convex, origin, table, str(codec), predicted, costs)
        return
    text = f"N={terms.N:,} clients, S={terms.S}, M={terms.M:g} rows, K={terms.K}, d={d:,}"
    kind = "convex" if convex else "nonconvex"
    coded = "" if str(codec) == "none" else f"; replies through {codec} where proved"
    screen = console()
    screen.print(f"{text}; {kind}: {_NAMES[measure]} <= {value:g}{coded}", markup=False)
    known = (f"{name}={getattr(terms, name):.3g}\xa0({how})" for name, how in origin.items())
    print(fill(f"constants: {', '.join(known)}", min(screen.width, 120)).replace("\xa0", " "))
    if predicted:
        print_predictions(shown, predicted, costs, compared)
    else:
        print_plan(table, costs.given, compared)
    print_conversions(table, measure)


_NAMES = {"grad_norm": "gradient norm", "gap": "gap f - f*"}


def _read_accuracy(
    target: float | None, gap: float | None, epsilon: float | None
) -> Callable[[bool], tuple[Measure, float]]:
    """Check that one accuracy is given; return it as a function of whether f is convex."""
    given = {"--target": target, "--gap": gap, "--epsilon": epsilon}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        found = f", not {' and '.join(names)}" if names else ""
        raise InputError(
            f"give one accuracy: --target for a gradient norm or --gap for f - f*{found}"
        )
    (value,) = (value for value in given.values() if value is not None)
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{names[0]} must be a finite number above 0, not {value!r}")

    def choose(convex: bool) -> tuple[Measure, float]:
        is_gap = names[0] == "--gap" or (names[0] == "--epsilon" and convex)
        return ("gap" if is_gap else "grad_norm"), value

    return choose


def _estimate(config: ProblemConfig) -> tuple[LinearModel, dict[str, float], dict[str, int]]:
    """Build a problem; return it with its constants, and M, d and whether it is convex."""
    from fedpage.runs.build import build_problem
    from fedpage.theory import estimate

    problem = build_problem(config)
    c = estimate(problem)
    constants = {
        "L": c.L.row, "sigma": math.sqrt(c.sigma2), "G": c.G, "B": c.B, "D0": c.D0, "R2": c.R2,
        "average": c.L.average, "whole": c.L.whole,
    }  # fmt: skip
    constants |= {"mu": c.mu} if c.mu > 0 else {}
    constants |= {"delta": c.delta} if math.isfinite(c.delta) else {}
    return problem, constants, {"M": max(1, round(c.M)), "d": c.d, "convex": c.convex}


def _compressed() -> set[str]:
    """Return the methods whose analysis is about a codec."""
    from fedpage.theory.tables import RIVALS

    return {entry.method for entry in RIVALS if entry.codec}


def _run_pilots(
    problem: LinearModel,
    table: Sequence[Row],
    setting: Setting,
    measure: Measure,
    constants: Mapping[str, float],
    codec: Codec,
    budget: float,
) -> dict[str, Pilot]:
    """Run the pilots of the table's methods, and of methods without a theorem."""
    import numpy as np

    from fedpage.callbacks.progress import progress_bars
    from fedpage.studies.pilot import FIRST_STEP, check_start, pilot_methods, run_pilots

    labels = [*(row.method for row in table), *_WITHOUT_THEOREM]
    methods = pilot_methods(labels, setting.N, setting.S, setting.K, codec)
    f_star = problem.loss(np.zeros(problem.d)) - constants["D0"]
    check_start(problem, setting.epsilon, measure, f_star)  # before the progress bar
    with progress_bars() as bars:
        task = bars.add_task("pilots", total=len(methods))

        def progress(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total, note=note)

        return run_pilots(
            problem, methods, target=setting.epsilon, measure=measure, f_star=f_star,
            first_step=FIRST_STEP / constants["whole"], budget=budget, progress=progress,
        )  # fmt: skip


_WITHOUT_THEOREM = ("SecantPAGE",)
"""Methods that no theorem is about, which pilots predict all the same."""
