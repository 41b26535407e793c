"""`fedpage tune`: search the hyper-parameters of a method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import common, options, output
from fedpage.cli.options import Document, RoundsConfig, RunConfig
from fedpage.cli.plan import LinkConfig
from fedpage.cli.run_config import write_run_command
from fedpage.core.columns import describe_column
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import HyperParameter
from fedpage.methods import MethodEntry
from fedpage.methods.fair import default_method
from fedpage.report.search_plot import search_panels
from fedpage.report.summary import format_cost
from fedpage.report.tables import Cell, Table
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig, dataclass_fields, field_values, setting
from fedpage.studies import tuning
from fedpage.studies.tuning_result import Tuning, write_page

app = options.make_app()
SHOWN = 8
"""The candidates of the search that are printed."""


@dataclass(frozen=True)
class SearchConfig:
    """Describe what `tune` or `choose` minimises, and how long it searches.

    The fields are arguments of the functions of these names in `fedpage.studies.tuning`.
    """

    cost: str = setting(
        "rounds",
        "rounds, clients, bytes, bits (also bytes_up, ...), gradients, seconds, "
        "seconds_simulated, or a sum: up+0.1*down.",
    )
    codecs: bool | None = setting(
        None, "Search codecs too (default: if bytes, bits or simulated time count)."
    )
    seeds: int = setting(10, "The most seeds of a comparison.", at_least=1, at_most=100_000)
    held_out_seeds: int = setting(
        10, "Other seeds, on which the best are evaluated.", at_least=1, at_most=100_000
    )
    budget: str | None = setting(None, "The most time for the search: 90s, 5m (default: any).")


@options.command(app, "tune", takes_hyper_parameters=True)
def tune(
    context: typer.Context,
    method: Annotated[str, options.METHOD],
    problem: ProblemConfig,
    run: RoundsConfig,
    link: LinkConfig,
    config: SearchConfig,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Search only this: a name (S, step, rho, up, ...), or name=value,value,... to "
            "begin with; repeatable.",
        ),
    ] = None,
    fixed_grid: Annotated[
        bool, typer.Option("--fixed-grid", help="Search no values but those of --search.")
    ] = False,
    jobs: options.Jobs = 1,
    out: Annotated[
        Path, typer.Option(help="Directory for the trials; a search in it is continued.")
    ] = Path("runs/tune"),
    report: options.Report = None,
    force: options.Force = False,
) -> Document:
    """Search a method's hyper-parameters for the least cost.

    Those that are given as options keep their values: --S 10 --K 10. The others are searched. A run
    may cost as much as --rounds rounds of the method.
    """
    entry = build.find_method(method)
    given = build.parse_hyper_parameters(entry, common.read_hyper_parameters(context, entry))
    fixed = [*given, *entry.preset]
    values = _parse_grid(entry, search or []) or None
    devices = options.read_devices(run.devices)
    problem, objective = build.open_problem(build.record_target(problem, run.target))
    with common.write_search(out, force, report), common.progress_bar("runs") as progress:
        output.print_problem(problem, objective)
        found = tuning.tune(
            objective, default_method(entry, given, objective), target=run.target, search=values,
            fixed=fixed, fixed_grid=fixed_grid, rounds=run.rounds, jobs=jobs, **vars(config),
            record_every=run.record_every,  # type: ignore[arg-type]  # the function refuses "log"
            costs=link.costs(), devices=devices, store=out / "trials.jsonl", progress=progress,
        )  # fmt: skip
    _print_result(found, fixed)
    about = f"{found.name}, {found.goal}"
    print(f"Picture: {search_panels(found.points, out / 'search.png', about)}")
    settings = RunConfig(
        rounds=2 * found.recommended.rounds, record_every=run.record_every, target=run.target,
        devices=run.devices, stop=True,
    )  # fmt: skip
    again = write_run_command(out / "run.toml", method, found.method, problem, settings)
    print(f"Run it: {again}")
    if report:
        title = f"{found.name} tuned on {objective.data.name}, {objective.N:,} clients"
        picture = search_panels(found.points, out / "search.svg", about)
        print(f"Report: {write_page(found, report, title, again, picture)}")
    winner = found.recommended
    return {
        "goal": found.goal,
        "method": found.method,
        "candidates": [{"method": each, **vars(score)} for each, score in winner.scores],
        "searched": list(winner.searched),
        "is_local_optimum": winner.is_local_optimum,
        "held_out": winner.sample,
        "end_at_target": winner.at_end,
        "value_at_end": winner.value if winner.sample else None,
        "advice": found.advice,
        "runs": found.runs,
        "command": again,
        "out": out,
    }


def _parse_grid(entry: MethodEntry, searches: Sequence[str]) -> dict[str, list[HyperParameter]]:
    """Parse the values that `--search name=value,value` gives for a method's hyper-parameters.

    "step", the effective step, and "rho" = K eta_l/eta_g of FedPAGE are accepted as names too. A
    name without values has an empty list.

    Raises:
        InputError: If a name is unknown, or a value is not of its type.
    """
    grid: dict[str, list[HyperParameter]] = {}
    for text in searches:
        name, equals, values = text.partition("=")
        name, where = name.strip().replace("-", "_"), f"--search {entry.label}"
        if not name or (equals and not values.strip()):
            raise InputError(f"--search {text!r}: expected name or name=value,value,...")
        source = _Further if name in dataclass_fields(_Further) else entry.cls
        if not equals:
            known = [*dataclass_fields(entry.cls), *dataclass_fields(_Further)]
            if name not in known:
                hint = did_you_mean(name, known) or f" known are {', '.join(known)}"
                raise InputError(f"{where}: unknown key {name!r};{hint}")
            grid.setdefault(name, [])
        for value in values.split(",") if equals else ():
            parsed = field_values(source, {name: value.strip()}, where, words=True)
            ((field, number),) = parsed.items()
            grid.setdefault(field, []).append(number)
    return grid


@dataclass
class _Further:
    """Quantities that can be searched beside the hyper-parameters."""

    step: float = 0.0
    rho: float = 0.0


def _print_result(found: Tuning, given: Sequence[str]) -> None:
    """Print the best candidates of the search, the winner's settings, and its evaluation."""
    winner, column = found.recommended, found.question.cost.column
    shown, method = winner.scores[:SHOWN], found.method
    defaults = {entry.name: entry.default for entry in fields(method)}
    changed = [name for name, value in defaults.items() if getattr(method, name) != value]
    names = [
        name
        for name in defaults
        if name in changed or len({str(getattr(each, name)) for each, _ in shown}) > 1
    ]
    label = describe_column(found.question.target.column).label
    head = (*names, found.goal.partition(" ")[0], f"best {label}", "over winner", "seeds")
    rows = []
    for each, score in shown:
        paid = format_cost(score.cost, column.unit) if math.isfinite(score.cost) else "not reached"
        ratio = f"{score.ratio:.2f}" if math.isfinite(score.ratio) else "-"
        cells = [_format_value(getattr(each, name), name) for name in names]
        rows.append(tuple(map(Cell, (*cells, paid, f"{score.best:.3g}", ratio, str(score.seeds)))))
    caption = f"{found.goal}: medians over the seeds of the search"
    output.print_table(Table(head, tuple(rows), caption=caption, align="r" * len(head)))
    for words, kept in (("Chosen", False), ("Given", True)):
        texts = [
            f"{name} = {_format_value(getattr(method, name), name)} "
            f"(default {_format_value(defaults[name], name)})"
            for name in changed
            if (name in given) == kept
        ]
        if texts:
            output.print_line(f"{words}: {', '.join(texts)}")
    output.print_line(f"Searched: {', '.join(winner.searched)}. {found.effort}")
    if winner.sample is not None:
        output.print_line(
            f"On {winner.sample.seeds} held-out seeds: {winner.describe(column.unit)} "
            f"({winner.sample.level:.0%} interval of the median). "
            f"{winner.at_end} of {winner.sample.seeds} runs end at the target, with {label} "
            f"{winner.value:.3g} in the median."
        )
    output.print_line(found.advice)


def _format_value(value: object, name: str) -> str:
    if value is None:
        return "all" if name[:1] in ("b", "S") else "by rule"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.4g}" if is_number else str(value)
