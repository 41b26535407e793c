"""Print a plan: every analysis, or a line for each method with its prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from fedpage.cli.output import Document, console, print_table

if TYPE_CHECKING:
    from fedpage.studies.pilot import Pilot
    from fedpage.studies.plan import Plan

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
    about = {"d": plan.d, "convex": plan.convex, "up": str(plan.codec), "measure": plan.measure}
    table: Document = {
        "setting": {**asdict(plan.setting), **about},
        "origin": plan.origin,
        "methods": [asdict(row) for row in plan.analyses],
    }
    columns = ("round", "clients", "bytes_up", "bytes_down", "bits_up", "bits_down")
    columns += ("gradients_per_client", *(("seconds",) if plan.costs.given else ()))
    if plan.pilots:
        table["pilots"] = {
            name: {
                **asdict(pilot.forecast),
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
    from fedpage.report.tables import Table
    from fedpage.studies.plan import format_count

    timed, compared = plan.costs.given, plan.compared
    numeric = ["rounds", "clients", "bytes up", "bytes down", "gradients a client"]
    numeric += ["time, estimated"] if timed else []
    numeric += [] if compared.name in IN_TABLE else [compared.short_name]
    rows = []
    for row in plan.analyses:
        numbers = ["-"] * len(numeric)
        if row.rounds is not None and row.bytes_up is not None and row.bytes_down is not None:
            numbers = [
                format_count(row.rounds), f"{row.clients:.3g}", format_bytes(row.bytes_up),
                format_bytes(row.bytes_down), f"{row.gradients_per_client:.3g}",
            ]  # fmt: skip
            numbers += [format_duration(row.seconds)] if timed and row.seconds is not None else []
            if compared.name not in IN_TABLE:
                paid = row.cost(compared)
                numbers.append("-" if paid is None else format_cost(paid, compared.column.unit))
        source = row.source + "*" * row.converted
        rows.append((row.method, source, row.kind, *numbers, row.assumption))
    headings = ("method", "analysis", "kind", *numeric, "needs")
    print_table(
        replace(Table.of_texts(headings, rows), align="lll" + "r" * len(numeric) + "l"),
        optional=("gradients a client", "clients", "needs", "bytes down"),
        wrapped=("analysis", "needs", "kind"),
    )
    print(_LEGEND)
    print(_ASSUMPTIONS)
    for row in plan.analyses:
        if row.steps:
            steps = ", ".join(f"{name} = {value:.4g}" for name, value in row.steps.items())
            print(f"{row.method}: {steps}")


def print_predictions(plan: Plan) -> None:
    """Print a line for each method: its best analysis, and what its pilot predicts."""
    from fedpage.report.tables import Table

    columns = plan.columns()
    by_theory = next((name for name in list(columns)[3:] if name.endswith(" by theory")), "")
    align = "".join("l" if name in ("method", "theory", "pilot") else "r" for name in columns)
    print_table(
        replace(Table.of_texts(columns, zip(*columns.values(), strict=True)), align=align),
        optional=(by_theory, "step", "clients", "theory", "pilot"),
        width=min(console().width, 120),
    )
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
