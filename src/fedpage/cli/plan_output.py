"""Print a plan: every analysis, or a line for each method with its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from fedpage.cli.output import Document, console

if TYPE_CHECKING:
    from fedpage.studies.pilot import Pilot
    from fedpage.studies.plan import Plan
    from fedpage.theory.planner import Row

_LEAST_NEEDED = ("gradients a client", "clients", "needs", "bytes down")
"""The columns that a narrow terminal does not show, the first one first."""
_WIDEST = 120
"""The width of the widest table."""
_LEGEND = """\
bound: proved with explicit constants, for the mean over rounds or for the last round.
order: a complexity up to constants; it shows growth and promises no number.
no result: there is no theorem for this measure of accuracy, and none that implies it."""
_SHORT_LEGEND = """\
theory: the theorem with the fewest rounds. ~: an order, a complexity up to constants that promises
no number; the others are bounds with explicit constants. --no-pilots lists every analysis."""
_ASSUMPTIONS = """\
unverified: taken from code or from a summary, without a look at its proof.
BV: bounded variance of rows (sigma). BGD: bounded dissimilarity of clients (G, B).
delta: bounded dissimilarity of the clients' Hessians. mu: strong convexity.
S = N: every client takes part in every round. C: the codec of replies (--up). Rounds are exchanges
of messages."""


def describe_plan(plan: Plan) -> Document:
    """Return the setting, every analysis, and every cost that the pilots predict, for `--json`."""
    import dataclasses

    about = {"d": plan.d, "convex": plan.convex, "up": str(plan.codec), "measure": plan.measure}
    table: Document = {
        "setting": {**dataclasses.asdict(plan.setting), **about},
        "origin": plan.origin,
        "methods": [dataclasses.asdict(row) for row in plan.analyses],
    }
    columns = ("round", "clients", "bytes_up", "bytes_down", "bits_up", "bits_down")
    columns += ("gradients_per_client", *(("seconds",) if plan.costs.given else ()))
    if plan.pilots:
        table["pilots"] = {
            name: {
                **dataclasses.asdict(pilot.forecast),
                "step": pilot.step,
                "pilot_rounds": pilot.rounds,
                "pilot_seeds": pilot.seeds,
                "costs": {column: pilot.cost(column, plan.costs) for column in columns},
            }
            for name, pilot in plan.pilots.items()
        }
    return table


def print_plan(plan: Plan) -> None:
    """Print every analysis."""
    from fedpage.report.summary import IN_TABLE, format_bytes, format_cost, format_duration
    from fedpage.studies.plan import format_count

    table, timed, compared = plan.analyses, plan.costs.given, plan.compared
    extra = [] if compared.name in IN_TABLE else [compared.short_name]
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
                format_count(row.rounds), f"{row.clients:.3g}", format_bytes(row.bytes_up),
                format_bytes(row.bytes_down), f"{row.gradients_per_client:.3g}",
            ]  # fmt: skip
            numbers += [format_duration(row.seconds)] if timed and row.seconds is not None else []
            paid = row.cost(compared)
            if extra:
                shown_unit = compared.column.unit
                numbers.append("-" if paid is None else format_cost(paid, shown_unit))
        cells.append((row.method, _source(row), row.kind, *numbers, row.assumption))
    columns = {heading: [cell[i] for cell in cells] for i, heading in enumerate(headings)}
    _print_table(columns, words, _fit(columns, numeric, console().width))
    print(_LEGEND)
    print(_ASSUMPTIONS)
    for row in table:
        if row.steps:
            steps = ", ".join(f"{name} = {value:.4g}" for name, value in row.steps.items())
            print(f"{row.method}: {steps}")


def print_predictions(plan: Plan) -> None:
    """Print a line for each method: its best analysis, and what its pilot predicts."""
    columns = plan.columns()
    words = ("method", "theory", "pilot")
    by_theory = next((name for name in list(columns)[3:] if name.endswith(" by theory")), "")
    dropped = (by_theory, "step", "clients", "theory", "pilot")
    _print_table(columns, words, _fit_whole(columns, dropped, min(console().width, _WIDEST)))
    print(_SHORT_LEGEND)
    _explain_pilots(plan.pilots)


def _explain_pilots(predicted: Mapping[str, Pilot]) -> None:
    from textwrap import fill

    rounds = [pilot.rounds for pilot in predicted.values()]
    seeds = max(pilot.seeds for pilot in predicted.values())
    span = f"{min(rounds)} to {max(rounds)}" if min(rounds) < max(rounds) else str(max(rounds))
    text = (
        f"pilot: runs of {span} rounds on up to {seeds} seeds, all rows in local steps, at the "
        "best effective step of those tried, 0.9/L times powers of 2. measured: every run reached "
        "the target. predicted: extrapolated from its decay. The interval is for one further run."
    )
    print(fill(text, 100))
    reasons: dict[str, list[str]] = {}
    for name, pilot in predicted.items():
        if pilot.forecast.kind == "none":
            reasons.setdefault(pilot.forecast.reason, []).append(name)
    for reason, names in reasons.items():
        print(fill(f"no prediction for {', '.join(names)}: {reason}.", 100))
    if any("out of time" in reason for reason in reasons):
        print("More time for pilots: --budget 60s.")


def print_conversions(plan: Plan) -> None:
    """Say what the star means, where a theorem is about the other measure of accuracy."""
    if not any(row.converted for row in plan.analyses):
        return
    if plan.measure == "grad_norm":
        print("*: a theorem about the gap, used with epsilon^2/(2L): |grad f|^2 <= 2L (f - f*).")
    else:
        print(
            "*: a theorem about the gradient norm, used with sqrt(2 mu epsilon): "
            "f - f* <= |grad f|^2/(2 mu)."
        )


def _source(row: Row) -> str:
    return row.source + "*" * row.converted


def _print_table(
    columns: Mapping[str, Sequence[str]], words: Sequence[str], widths: Mapping[str, int]
) -> None:
    """Print the columns that have a width, and name those that have none."""
    from rich.table import Table

    shown = Table(show_lines=False)
    for heading, width in widths.items():
        justify: Literal["left", "right"] = "left" if heading in words else "right"
        shown.add_column(heading, justify=justify, width=width)
    for values in zip(*(columns[heading] for heading in widths), strict=True):
        shown.add_row(*values)
    console().print(shown)
    if len(widths) < len(columns):
        left_out = ", ".join(heading for heading in columns if heading not in widths)
        print(f"In a wider terminal or with --json: {left_out}.")


def _fit_whole(
    columns: Mapping[str, Sequence[str]], dropped: Sequence[str], screen: int
) -> dict[str, int]:
    """Choose columns whose cells fit the screen unbroken; drop some in the given order."""
    widths = {
        heading: max(map(len, (*heading.split(), *cells))) for heading, cells in columns.items()
    }
    for heading in dropped:
        if sum(3 + width for width in widths.values()) >= screen:
            widths.pop(heading, None)
    return widths


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
