"""`fedpage plan`: compare methods by their theory, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedpage.cli.common import parse_cost
from fedpage.cli.options import with_config_options
from fedpage.cli.output import console
from fedpage.core.errors import InputError
from fedpage.runs.config import ProblemConfig, setting

if TYPE_CHECKING:
    from fedpage.theory.planner import Costs, Row
    from fedpage.theory.tables import Setting

_CONSTANTS = ("L", "sigma", "G", "B", "D0", "R2")
_OPTIONAL = ("mu", "delta")
"""Constants without a default; the analyses that need them are left out where they are unknown."""
_LEAST_NEEDED = ("gradients a client", "clients", "needs", "bytes down")
"""The columns that a narrow terminal does not show, the first one first."""
_LEGEND = """\
bound: proved with explicit constants for the mean over rounds, as far as the constants hold.
order: a complexity up to constants; it shows growth and promises no number.
unverified: taken from code or from a summary, without a look at its proof.
no result: the paper has a dash here.
BV: bounded variance of rows (sigma). BGD: bounded dissimilarity of clients (G, B).
delta: bounded dissimilarity of the clients' Hessians. mu: strong convexity.
S = N: every client takes part in every round. C: the codec of replies (--up). Rounds are exchanges
of messages."""


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
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", help="Gradient norm to reach; with --convex: gap f - f*."),
    ],
    problem: PlanProblemConfig,
    constants: ConstantsConfig,
    link: LinkConfig,
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
        str, typer.Option("--cost", help="Show this cost too: bits, bits_up, up+0.1*down, ...")
    ] = "bytes",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate rounds and bytes of each method by theory."""
    from fedpage.codecs import as_codec
    from fedpage.theory import Setting
    from fedpage.theory import planner as planning

    costs, codec, cost = link.costs(), as_codec(up), parse_cost(cost)
    planning.Row("", "", "", "no result").cost(cost)  # refuses a cost that plans do not have
    given = {name: getattr(constants, name) for name in (*_CONSTANTS, *_OPTIONAL)}
    base: dict[str, float] = dict.fromkeys(_CONSTANTS, 1.0)
    origin = dict.fromkeys(_CONSTANTS, "default")
    average: float | None = None
    if problem.data:
        base, about = _estimate(problem)
        average, convex = base.pop("average"), bool(about["convex"])
        rows, parameters = rows or about["M"], parameters or about["d"]
        origin = dict.fromkeys(base, "estimated") | {"L": "computed"}
    values = base | {name: value for name, value in given.items() if value is not None}
    origin |= {name: "given" for name, value in given.items() if value is not None}
    for name in ("L", "D0", "R2"):
        if values[name] == 0 and origin[name] != "given":
            raise InputError(
                f"{problem.data}: x0 = 0 is a minimiser already ({name} = 0); no plan is needed"
            )
    M, d = (10 if rows is None else rows), (100 if parameters is None else parameters)
    try:
        terms = Setting(N=problem.clients, S=sampled, K=K, M=M, epsilon=epsilon, **values)
        table = planning.plan(
            terms,
            d=d,
            convex=convex,
            costs=costs,
            average_L=average if origin["L"] == "computed" else None,
            up=codec,
        )
    except (ZeroDivisionError, OverflowError):
        raise InputError(
            "these numbers are too small or too large to compute with; choose others"
        ) from None
    if as_json:
        _print_json(terms, d, convex, origin, table, str(codec))
    else:
        text = f"N={terms.N:,} clients, S={terms.S}, M={terms.M:g} rows, K={terms.K}, d={d:,}"
        aim = "convex: gap f - f*" if convex else "nonconvex: gradient norm"
        coded = "" if str(codec) == "none" else f"; replies through {codec} where proved"
        screen = console()
        screen.print(f"{text}; {aim} <= {epsilon:g}{coded}", markup=False)
        known = (f"{name}={getattr(terms, name):.3g} ({how})" for name, how in origin.items())
        screen.print(f"constants: {', '.join(known)}", markup=False)
        _print_plan(table, costs.given, cost)


def _estimate(config: ProblemConfig) -> tuple[dict[str, float], dict[str, int]]:
    """Estimate a problem's constants; return them, and M, d and whether it is convex."""
    from fedpage.runs.build import build_problem
    from fedpage.theory import estimate

    c = estimate(build_problem(config))
    constants = {
        "L": c.L.row, "sigma": math.sqrt(c.sigma2), "G": c.G, "B": c.B, "D0": c.D0, "R2": c.R2,
        "average": c.L.average,
    }  # fmt: skip
    constants |= {"delta": c.delta} if math.isfinite(c.delta) else {}
    return constants, {"M": max(1, round(c.M)), "d": c.d, "convex": c.convex}


def _print_json(
    setting: Setting, d: int, convex: bool, origin: dict[str, str], table: list[Row], up: str
) -> None:
    import dataclasses
    import json

    plan = {
        "setting": {**dataclasses.asdict(setting), "d": d, "convex": convex, "up": up},
        "origin": origin,
        "methods": [dataclasses.asdict(row) for row in table],
    }
    print(json.dumps(plan, indent=2, ensure_ascii=False))


def _print_plan(table: list[Row], timed: bool, cost: str) -> None:
    from rich.table import Table

    from fedpage.core.columns import Cost
    from fedpage.report.summary import IN_TABLE, format_bytes, format_cost, format_duration

    compared = Cost.parse(cost)
    extra = [] if cost in IN_TABLE else [compared.short_name]
    words = ("method", "analysis", "kind", "needs")
    numeric = ["rounds", "clients", "bytes up", "bytes down", "gradients a client"]
    numeric += ["time, estimated"] if timed else []
    numeric += extra
    headings = (*words[:3], *numeric, words[3])
    cells = []
    for row in table:
        if row.rounds is None or row.bytes_up is None or row.bytes_down is None:
            numbers = ["-"] * len(numeric)
        else:
            numbers = [
                f"{row.rounds:,.0f}" if row.rounds < 1e7 else f"{row.rounds:.2e}",
                f"{row.clients:.3g}", format_bytes(row.bytes_up), format_bytes(row.bytes_down),
                f"{row.gradients_per_client:.3g}",
            ]  # fmt: skip
            numbers += [format_duration(row.seconds)] if timed and row.seconds is not None else []
            paid = row.cost(compared)
            if extra:
                shown_unit = compared.column.unit
                numbers.append("-" if paid is None else format_cost(paid, shown_unit))
        cells.append((row.method, row.source, row.kind, *numbers, row.assumption))
    columns = {heading: [cell[i] for cell in cells] for i, heading in enumerate(headings)}
    screen = console()
    widths = _fit(columns, numeric, screen.width)
    shown = Table(show_lines=False)
    for heading, width in widths.items():
        justify: Literal["left", "right"] = "left" if heading in words else "right"
        shown.add_column(heading, justify=justify, width=width)
    for values in zip(*(columns[heading] for heading in widths), strict=True):
        shown.add_row(*values)
    screen.print(shown)
    if len(widths) < len(columns):
        left_out = ", ".join(heading for heading in columns if heading not in widths)
        print(f"In a wider terminal or with --json: {left_out}.")
    print(_LEGEND)
    for row in table:
        if row.steps:
            steps = ", ".join(f"{name} = {value:.4g}" for name, value in row.steps.items())
            print(f"{row.method}: {steps}")


def _fit(
    columns: Mapping[str, Sequence[str]], numeric: Sequence[str], screen: int
) -> dict[str, int]:
    """Choose the columns that fit the screen, and widths at which no word is broken.

    Args:
        columns: The cells of each column by its heading.
        numeric: The headings of the columns that get the space that is left first.
        screen: The width of the screen.

    Returns:
        The width of each chosen column.
    """
    widths = {
        heading: max(len(word) for text in (heading, *cells) for word in text.split())
        for heading, cells in columns.items()
    }
    for heading in _LEAST_NEEDED:
        if sum(3 + width for width in widths.values()) >= screen:
            del widths[heading]
    spare = screen - 1 - sum(3 + width for width in widths.values())
    for heading in sorted(widths, key=lambda heading: heading not in numeric):
        more = min(spare, max(map(len, columns[heading])) - widths[heading])
        widths[heading] += max(0, more)
        spare -= max(0, more)
    return widths
