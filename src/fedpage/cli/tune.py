"""`fedpage tune`: search the hyper-parameters of a method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    check_count,
    check_target,
    continues,
    follow,
    parse_cost,
    prepare_out,
    read_devices,
    read_hyper_parameters,
)
from fedpage.cli.options import (
    CodecsOption,
    ForceOption,
    JobsOption,
    MethodArgument,
    ReportOption,
    RoundsConfig,
    RunConfig,
    with_config_options,
)
from fedpage.cli.output import Document, console, print_problem, print_table, with_json
from fedpage.cli.plan import LinkConfig
from fedpage.cli.run_config import write_run_command
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.runs.config import ProblemConfig, dataclass_fields, field_values

if TYPE_CHECKING:
    from fedpage.core.types import HyperParameter
    from fedpage.methods import MethodEntry
    from fedpage.studies.tuning_result import Tuning

SHOWN = 8
"""The candidates of the search that are printed."""


@with_json
@with_config_options
def tune(
    context: typer.Context,
    method: MethodArgument,
    problem: ProblemConfig,
    run: RoundsConfig,
    link: LinkConfig,
    cost: Annotated[
        str,
        typer.Option(
            "--cost",
            help="rounds, clients, bytes, bits (also bytes_up, ...), gradients, seconds, "
            "seconds_simulated, or a sum: up+0.1*down.",
        ),
    ] = "rounds",
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            help="Search only this: a name (S, step, rho, up, ...), or name=value,value,... to "
            "begin with; repeatable.",
        ),
    ] = None,
    fixed_grid: Annotated[
        bool, typer.Option("--fixed-grid", help="Search no values but those of --search.")
    ] = False,
    codecs: CodecsOption = None,
    seeds: Annotated[int, typer.Option("--seeds", help="The most seeds of a comparison.")] = 10,
    held_out_seeds: Annotated[
        int,
        typer.Option("--held-out-seeds", help="Other seeds, on which the winner is evaluated."),
    ] = 10,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="The most time for the search: 90s, 5m (default: any)."),
    ] = None,
    jobs: JobsOption = 1,
    out: Annotated[
        Path,
        typer.Option("--out", help="Directory for the trials; a search in it is continued."),
    ] = Path("runs/tune"),
    report: ReportOption = None,
    force: ForceOption = False,
) -> Document:
    """Search a method's hyper-parameters for the least cost.

    Those that are given as options keep their values: --S 10 --K 10. The others are searched. A run
    may cost as much as --rounds rounds of the method.
    """
    from fedpage.methods.fair import default_method
    from fedpage.report.search_plot import search_panels
    from fedpage.runs import build
    from fedpage.runs.lock import DirectoryLock
    from fedpage.studies.tuning import tune as search_settings
    from fedpage.studies.tuning_result import write_page

    entry = build.find_method(method)
    given = build.parse_hyper_parameters(entry, read_hyper_parameters(context, entry))
    problem, objective = build.open_problem(build.record_target(problem, run.target))
    base = default_method(entry, given, objective)
    values = _parse_grid(entry, search or []) or None
    parse_cost(cost)
    check_count("--seeds", seeds)
    check_count("--held-out-seeds", held_out_seeds)
    every = run.record_every
    if isinstance(every, str):
        raise InputError(
            f"--record-every must be a whole number of at least 1, not {short_repr(every)}, "
            "so that the costs of candidates are equally exact"
        )
    check_target(objective, run.target)
    continued = not out.exists() or (out / "trials.jsonl").exists()
    prepare_out(out, force or continued, report)
    print_problem(problem, objective)
    with DirectoryLock(out), continues(out), follow("runs") as progress:
        found = search_settings(
            objective, base, target=run.target, cost=cost, search=values,
            fixed=[*given, *entry.preset], fixed_grid=fixed_grid, codecs=codecs, rounds=run.rounds,
            record_every=every, seeds=seeds, held_out_seeds=held_out_seeds, jobs=jobs,
            costs=link.costs(), store=out / "trials.jsonl", progress=progress, budget=budget,
            devices=read_devices(run.devices),
        )  # fmt: skip
    _print_result(found, [*given, *entry.preset])
    about = f"{found.name}, {found.goal}"
    print(f"Picture: {search_panels(found.points, out / 'search.png', about)}")
    winner = found.recommended
    settings = RunConfig(
        rounds=2 * winner.rounds, record_every=every, target=run.target, devices=run.devices,
        stop=True,
    )  # fmt: skip
    command = write_run_command(out / "run.toml", method, found.method, problem, settings)
    print(f"Run it: {command}")
    if report:
        title = f"{found.name} tuned on {objective.data.name}, {objective.N:,} clients"
        picture = search_panels(found.points, out / "search.svg", about)
        print(f"Report: {write_page(found, report, title, command, picture)}")
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
        "command": command,
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
        name = name.strip().replace("-", "_")
        if not name or (equals and not values.strip()):
            raise InputError(f"--search {text!r}: expected name or name=value,value,...")
        if name == "rho" and not hasattr(entry.cls, "local_step"):
            raise InputError(
                f"--search {text!r}: rho is FedPAGE's; {entry.label} has eta_g and eta_l"
            )
        source = _Search if name in ("step", "rho") else entry.cls
        if not equals:
            known = [*dataclass_fields(source), "step", "rho"]
            if name not in known:
                hint = did_you_mean(name, known) or f" known are {', '.join(known)}"
                raise InputError(f"--search {entry.label}: unknown key {name!r};{hint}")
            grid.setdefault(name, [])
            continue
        for value in values.split(","):
            word, where = {name: value.strip()}, f"--search {entry.label}"
            parsed = field_values(source, word, where, words=True)
            ((field, number),) = parsed.items()
            grid.setdefault(field, []).append(number)
    return grid


@dataclass
class _Search:
    """Quantities that can be searched beside the hyper-parameters."""

    step: float = 0.0
    rho: float = 0.0


def _print_result(found: Tuning, given: Sequence[str]) -> None:
    """Print the best candidates of the search, the winner's settings, and its evaluation."""
    from fedpage.core.columns import describe_column
    from fedpage.report.summary import format_cost
    from fedpage.report.tables import Cell, Table

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
    print_table(Table(head, tuple(rows), caption=caption, align="r" * len(head)))
    for words, kept in (("Chosen", False), ("Given", True)):
        texts = [
            f"{name} = {_format_value(getattr(method, name), name)} "
            f"(default {_format_value(defaults[name], name)})"
            for name in changed
            if (name in given) == kept
        ]
        if texts:
            console().print(f"{words}: {', '.join(texts)}", markup=False, soft_wrap=True)
    print(f"Searched: {', '.join(winner.searched)}. {found.effort}")
    if winner.sample is not None:
        print(
            f"On {winner.sample.seeds} held-out seeds: {winner.describe(column.unit)} "
            f"({winner.sample.level:.0%} interval of the median). "
            f"{winner.at_end} of {winner.sample.seeds} runs end at the target, with {label} "
            f"{winner.value:.3g} in the median."
        )
    print(found.advice)


def _format_value(value: object, name: str = "") -> str:
    if value is None and name[:1] in ("b", "S"):
        return "all"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "by rule" if value is None else str(value)
    return f"{value:.4g}"
