"""`fedpage tune`: search hyper-parameters."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import check_count, parse_cost, prepare_out, read_hyper_parameters
from fedpage.cli.options import (
    ForceOption,
    JobsOption,
    MethodArgument,
    ReportOption,
    with_config_options,
)
from fedpage.cli.output import console
from fedpage.cli.plan import LinkConfig
from fedpage.core.errors import InputError
from fedpage.runs.config import ProblemConfig, RoundsConfig, dataclass_fields

if TYPE_CHECKING:
    from fedpage.problems import LinearModel
    from fedpage.studies.tune import Tuning


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
            help="rounds, clients, bytes, bits (also bytes_up, ...), gradients, seconds, or a sum: "
            "up+0.1*down.",
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
    seeds: Annotated[int, typer.Option("--seeds", help="The most seeds of a comparison.")] = 6,
    fresh: Annotated[
        int, typer.Option("--fresh", help="Other seeds, on which the winner is judged.")
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
) -> None:
    """Search the hyper-parameters that reach a target at the least cost.

    Those that are given as options keep their values: --S 10 --K 10. The others are searched. A run
    may cost as much as --rounds rounds of the method.
    """
    from fedpage.callbacks.progress import progress_bars
    from fedpage.runs import build
    from fedpage.studies import tune as tuning

    entry = build.find_method(method)
    given = build.parse_hyper_parameters(entry, read_hyper_parameters(context, entry))
    objective = build.build_problem(problem)
    base = build.build_default_method(entry, given, objective)
    values = build.parse_grid(entry, search or []) or None
    parse_cost(cost)
    check_count("--seeds", seeds)
    check_count("--fresh", fresh)
    counts = {"--rounds": run.rounds, "--record-every": run.record_every}
    costs, target = link.costs(), run.target
    tuning.check_question(objective, target.value, target.column, cost, costs, counts)
    seconds = None if budget is None else _parse_seconds(budget)
    base.init(objective.x0_or_zeros() if hasattr(objective, "x0_or_zeros") else _zeros(objective), objective.N)
    continued = not out.exists() or (out / "trials.jsonl").exists()
    prepare_out(out, force or continued, report)
    with progress_bars() as bars:
        task = bars.add_task("runs", total=None)

        def progress(done: int, total: int | None, note: str) -> None:
            bars.update(task, completed=done, total=total, note=note)

        found = tuning.tune(
            objective, base, target=target.value, column=target.column, cost=cost, search=values,
            fixed=[*given, *entry.preset], fixed_grid=fixed_grid, rounds=run.rounds,
            record_every=run.record_every, seeds=seeds, fresh=fresh, jobs=jobs, costs=costs,
            store=out / "trials.jsonl", progress=progress, budget=seconds,
        )  # fmt: skip
    repeat = _repeat_command(method, found, problem, list(entry.preset))
    _print_result(found, out)
    if found.judged is not None:
        print(f"Repeat it: {repeat}")
    command = build.command_line(method, found.method, _options(problem, found.rounds))
    print(f"Run it: {command}")
    if report:
        _write_report(report, objective, found, out / "search.png", command)
