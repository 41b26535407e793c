"""`fedpage tune`: search the hyper-parameters of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import common, options, output
from fedpage.cli.options import Document, RoundsConfig, RunConfig
from fedpage.cli.plan import LinkConfig
from fedpage.cli.run_config import write_run_command
from fedpage.core.errors import InputError
from fedpage.core.types import HyperParameter
from fedpage.methods import MethodEntry
from fedpage.methods.fair import default_method
from fedpage.report.diagrams import search_panels
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig, field_values, setting
from fedpage.studies import tuning
from fedpage.studies.tuning_result import Tuning, write_page

app = options.make_app()
_STEPS = make_dataclass("Steps", [("step", float), ("rho", float)])
"""Quantities that can be searched beside the hyper-parameters."""


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
    values = _parse_search(entry, search or []) or None
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
    output.print_table(found.candidates())
    for line in found.notes:
        output.print_line(line)
    about = f"{found.name}, {found.goal}"
    print(f"Picture: {search_panels(found.points, out / 'search.png', about)}")
    again = write_winner(found, method, problem, run.devices, out)
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


def write_winner(
    found: Tuning, name: str, problem: ProblemConfig, devices: str | None, out: Path
) -> str:
    """Write the settings of a run of the recommended method, and print and return its command."""
    settings = RunConfig(
        rounds=2 * found.recommended.rounds, record_every=found.question.record_every,
        target=found.question.target, devices=devices, stop=True,
    )  # fmt: skip
    again = write_run_command(out / "run.toml", name, found.method, problem, settings)
    print(f"Run it: {again}")
    return again


def _parse_search(entry: MethodEntry, searches: Sequence[str]) -> dict[str, list[HyperParameter]]:
    """Parse the values that `--search name=value,value` gives; a name alone has an empty list."""
    grid: dict[str, list[HyperParameter]] = {}
    where = f"--search {entry.label}"
    for text in searches:
        name, equals, words = (part.strip() for part in text.partition("="))
        if not name or (equals and not words):
            raise InputError(f"--search {text!r}: expected name or name=value,value,...")
        name = name.replace("-", "_")
        source = _STEPS if name in ("step", "rho") else entry.cls
        for word in words.split(",") if words else ():
            ((name, value),) = field_values(source, {name: word.strip()}, where, words=True).items()
            grid.setdefault(name, []).append(value)
        grid.setdefault(name, [])
    return grid
