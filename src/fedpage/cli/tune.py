"""`fedpage tune`: search hyper-parameters."""

from __future__ import annotations

import math
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
from fedpage.runs.config import ProblemConfig, RoundsConfig, dataclass_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
            help="name=value,value,...: eta_g, eta_l, step, rho, K, b3, p, ...; repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Seeds of the last level of the search.")
    ] = 8,
    fresh: Annotated[
        int, typer.Option("--fresh", help="Other seeds, on which the winner is evaluated.")
    ] = 5,
    jobs: JobsOption = 1,
    out: Annotated[
        Path,
        typer.Option("--out", help="Directory for the trials; a search in it is continued."),
    ] = Path("runs/tune"),
    report: ReportOption = None,
    force: ForceOption = False,
) -> None:
    """Search the step sizes that reach a target at the least cost.

    Other hyper-parameters are options: --S 10 --K 10.
    """
    from fedpage.runs import build
    from fedpage.studies.tune import check_search, default_grid
    from fedpage.studies.tune import tune as search_steps

    entry = build.find_method(method)
    given = build.parse_hyper_parameters(entry, read_hyper_parameters(context, entry))
    objective = build.build_problem(problem)
    base = build.build_default_method(entry, given, objective)
    grid = build.parse_grid(entry, search or []) or default_grid(base, objective)
    parse_cost(cost)
    check_count("--seeds", seeds)
    check_count("--fresh", fresh)
    counts = {
        "--rounds": run.rounds, "--record-every": run.record_every, "--seeds": seeds,
        "--fresh": fresh,
    }  # fmt: skip
    costs = link.costs()
    target = run.target
    check_search(objective, base, target.value, target.column, cost, costs, grid, counts)
    continued = not out.exists() or (out / "trials.jsonl").exists()
    prepare_out(out, force or continued, report)
    from fedpage.callbacks.progress import progress_bars

    with progress_bars() as bars:
        task = bars.add_task("runs", total=None)

        def progress(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total, note=note)

        tuned = search_steps(
            objective, base, target=target.value, column=target.column, cost=cost, grid=grid,
            rounds=run.rounds, record_every=run.record_every, seeds=seeds, fresh=fresh, jobs=jobs,
            costs=costs, store=out / "trials.jsonl", progress=progress,
        )  # fmt: skip
    _print_result(tuned, out)
    if tuned.at_edge:
        print("Widen the grid: " + _widened_command(context, tuned.wider_grid))
    command = build.command_line(method, tuned.method, _options(problem, run.rounds))
    print("Run it: " + command)
    if report:
        _write_report(report, objective, tuned, run, out / "grid.png", command)


def _widened_command(context: typer.Context, grid: Mapping[str, Sequence[object]]) -> str:
    """Return the command line that was given, with another grid; finished runs are reused."""
    import shlex

    words = ["fedpage", "tune"]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name == "search" or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        is_option = parameter.param_type_name == "option"
        words += [parameter.opts[0]] if is_option else []
        words += [] if isinstance(value, bool) else [str(value)]
    words += context.args
    for name, values in grid.items():
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        words += ["--search", f"{name}={','.join(texts)}"]
    return shlex.join(words)


def _options(problem: ProblemConfig, rounds: int) -> dict[str, str]:
    """Return the options of `fedpage run` that describe a problem, where they are not defaults."""
    always = ("data", "clients", "objective", "partition")
    options = {}
    for name, field in dataclass_fields(ProblemConfig).items():
        value = getattr(problem, name)
        if name in always or value != field.default:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            options[f"--{name.replace('_', '-')}"] = text
    return options | {"--rounds": str(rounds)}


def _write_report(
    report: Path,
    problem: LinearModel,
    tuned: Tuning,
    run: RoundsConfig,
    picture: Path,
    command: str,
) -> None:
    """Run the winner on the fresh seeds and write a report with the grid and the command."""
    from fedpage.report import page
    from fedpage.studies.sweep import sweep

    runs = sweep(
        problem,
        [tuned.method],
        rounds=run.rounds,
        seeds=range(10_000, 10_000 + tuned.fresh),
        record_every=run.record_every,
    )
    title = f"{tuned.method.name} tuned on {problem.data.name}, {problem.N:,} clients"
    cost = "round" if "seconds" in tuned.cost else tuned.cost  # estimated: no column has them
    path = page.write_runs(
        runs, report, title=title, target=tuned.target, column=tuned.column, picture=picture,
        cost=cost, command=command,
    )  # fmt: skip
    print(f"Report: {path}")


def _shown_names(tuned: Tuning) -> list[str]:
    """List the hyper-parameters that candidates differ in, and those that describe their work."""
    from dataclasses import fields

    usual = ("eta", "eta_g", "eta_l", "K", "b3", "b", "p")
    return [
        field.name
        for field in fields(tuned.method)
        if field.name in usual
        or len({str(getattr(candidate, field.name)) for candidate, _ in tuned.scores}) > 1
    ]


def _print_result(tuned: Tuning, out: Path) -> None:
    from rich.table import Table

    from fedpage.core.columns import Cost, describe_column
    from fedpage.report import plots
    from fedpage.report.summary import format_cost

    unit = Cost.parse(tuned.cost).column.unit
    table = Table(
        title=f"{tuned.goal}, medians over seeds",
        title_justify="left",
    )
    names = _shown_names(tuned)
    for heading in (*names, tuned.cost, f"best {describe_column(tuned.column).label}", "seeds"):
        table.add_column(heading, justify="right")
    for candidate, score in tuned.scores[:8]:
        values = [getattr(candidate, name) for name in names]
        cells = [
            f"{value:.4g}" if isinstance(value, (int, float)) else str(value or "default")
            for value in values
        ]
        paid = format_cost(score.cost, unit) if math.isfinite(score.cost) else "not reached"
        table.add_row(*cells, paid, f"{score.best:.3g}", str(score.seeds))
    console().print(table)
    low, middle, high = (
        format_cost(value, unit) if math.isfinite(value) else "not reached"
        for value in tuned.judged
    )
    judged = f"{middle} {tuned.cost} (quartiles {low} to {high})"
    if unit in ("B", "bit"):
        judged = f"{middle} ({tuned.cost}, quartiles {low} to {high})"
    if not math.isfinite(tuned.judged[1]):
        judged = "not reached in the median"
    print(f"On {tuned.fresh} fresh seeds: {judged}. {tuned.advice}")
    print(
        f"{tuned.runs} runs, and {tuned.reused} from an earlier search, in {out / 'trials.jsonl'}"
    )
    print(f"Grid: {plots.heat_map(tuned, out / 'grid.png')}")
