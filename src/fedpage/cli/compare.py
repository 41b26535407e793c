"""`fedpage compare`: run several methods on equal terms."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    absolute_devices,
    check_runs,
    check_table,
    check_target,
    explain_os_errors,
    handle_signals,
    parse_cost,
    prepare_out,
    read_command,
    read_devices,
    unused_path,
    with_absolute_paths,
)
from fedpage.cli.options import (
    CheckpointOption,
    FaultsOption,
    FigureCostOption,
    FigureOption,
    FigureWidthOption,
    ForceOption,
    JobsOption,
    ReportOption,
    RoundsConfig,
    with_config_options,
)
from fedpage.cli.output import (
    Document,
    FigureFile,
    describe_runs,
    print_comparison,
    print_metrics,
    print_problem,
    print_scale_hint,
    print_summary,
    with_json,
    write_reports,
)
from fedpage.cli.run_config import check_no_settings
from fedpage.core.errors import InputError
from fedpage.runs.config import ProblemConfig, Settings, dataclass_fields, setting, to_table

if TYPE_CHECKING:
    from fedpage.core.types import AnyMethod
    from fedpage.problems import LinearModel
    from fedpage.runs.history import History
    from fedpage.studies.study import Study


@dataclass(frozen=True)
class CompareConfig(RoundsConfig):
    """Describe a comparison: methods with the same effective step, clients and local work."""

    methods: str = setting(
        "fedpage,scaffold,fedavg", "Names with commas; fedpage:eta_l=0.01 sets a hyper-parameter."
    )
    S: int | None = setting(
        None,
        "Clients that FedPAGE samples; methods without full rounds sample 2S (default 10, or all "
        "if there are fewer).",
        at_least=1,
    )
    K: int = setting(10, "Local steps.", at_least=1)
    step: float = setting(0.1, "Effective step of every method.")
    cost: str = setting(
        "bytes", "Cost to the target: bytes, bits, bytes_up, clients, ..., or a sum: up+0.1*down."
    )
    seeds: int = setting(
        3, "Runs of each method, with consecutive seeds.", at_least=1, at_most=100_000
    )
    seed: int = setting(0, "The first seed.", at_least=0)

    @property
    def seed_list(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class CompareCommand:
    """The settings of `fedpage compare`, as compare.toml keeps them for `fedpage resume`."""

    problem: ProblemConfig
    compare: CompareConfig
    checkpoint_every: str
    faults: Settings | None = None
    """The content of the --faults file."""


@with_json
@with_config_options
def compare(
    context: typer.Context,
    problem: ProblemConfig,
    compare: CompareConfig,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Repeat the comparison in a directory, with its settings."),
    ] = None,
    jobs: JobsOption = 1,
    faults: FaultsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Directory for runs, plot and report (default: a new one in runs/)."
        ),
    ] = None,
    checkpoint_every: CheckpointOption = "10s",
    report: ReportOption = None,
    figure: FigureOption = None,
    x: FigureCostOption = None,
    figure_width: FigureWidthOption = "screen",
    table: Annotated[
        Path | None,
        typer.Option("--table", help="Write the costs to a file .tex, .md, .csv or .txt."),
    ] = None,
    force: ForceOption = False,
) -> Document:
    """Compare methods on equal terms.

    They have the same effective step, number of clients, local work and seeds.
    """
    from fedpage.runs import toml
    from fedpage.runs.store import parse_interval

    parse_interval(checkpoint_every)
    command = CompareCommand(
        with_absolute_paths(problem),
        replace(compare, devices=absolute_devices(compare.devices)),
        checkpoint_every,
        None if faults is None else toml.read(faults),
    )
    if config is not None:
        names = (*dataclass_fields(ProblemConfig), *dataclass_fields(CompareConfig), "faults")
        check_no_settings(context, names, "give all settings as options instead")
        path = config / "compare.toml" if config.is_dir() else config
        command = read_command(CompareCommand, path)
    place = unused_path(Path("runs") / "compare") if out is None else out
    picture = None
    if figure is not None:
        picture = FigureFile(figure, x or command.compare.cost, figure_width)
    elif x is not None or figure_width != "screen":
        raise InputError("--x and --figure-width are about --figure; say which file to draw")
    return execute(command, place, jobs, report, table=table, force=force, figure=picture)


def extend(command: CompareCommand, out: Path, rounds: int) -> CompareCommand:
    """Give a comparison more rounds, and write them to its compare.toml.

    Raises:
        InputError: It has more rounds already.
    """
    from fedpage.runs import toml

    if rounds < command.compare.rounds:
        raise InputError(
            f"--rounds {rounds}: the comparison in {out} has {command.compare.rounds} rounds; "
            "give at least as many, or start another one"
        )
    command = replace(command, compare=replace(command.compare, rounds=rounds))
    toml.write_settings(out / "compare.toml", {"command": to_table(command)})
    return command


def execute(
    command: CompareCommand,
    out: Path,
    jobs: int,
    report: Path | None,
    *,
    table: Path | None = None,
    resume: bool = False,
    force: bool = False,
    figure: FigureFile | None = None,
) -> Document:
    """Run a comparison, or continue it from `out`, and print and return its results."""
    from fedpage.engine import faults
    from fedpage.engine.devices import check_time
    from fedpage.report.titles import describe_problem
    from fedpage.runs import build, toml
    from fedpage.runs.lock import DirectoryLock
    from fedpage.runs.spec import RunOptions
    from fedpage.studies.comparison import compare_costs
    from fedpage.studies.sweep import study_of_methods

    if table is not None:
        check_table(table)
    config, cost = command.compare, parse_cost(command.compare.cost)
    target = config.target
    settled, problem = build.open_problem(build.record_target(command.problem, target))
    config = replace(config, S=min(10, problem.N) if config.S is None else config.S)
    command = replace(command, problem=settled, compare=config)
    methods = _build_methods(config, problem)
    check_target(problem, target)
    check_runs(problem, methods)
    devices = read_devices(config.devices)
    check_time(cost, devices)
    options = RunOptions(resume=True, checkpoint_every=command.checkpoint_every, devices=devices)
    if command.faults is not None:
        failing, policy = faults.parse(command.faults, "--faults")
        faults.FaultSampler(failing, problem, 0)  # checks that they fit the problem
        options = replace(options, faults=failing, policy=policy)
    study = study_of_methods(
        problem, methods, config.seed_list, out=out / "runs", rounds=config.rounds,
        record_every=config.record_every, options=options,
    )  # fmt: skip
    if not resume:
        prepare_out(out, force, report)
    with DirectoryLock(out) as lock, explain_os_errors(out, f"`fedpage resume {out}` continues"):
        if not resume:
            lock.clear("runs")  # of an older comparison, with --force
            toml.write_settings(out / "compare.toml", {"command": to_table(command)})
        print_problem(settled, problem)
        with handle_signals(out, jobs):
            runs = _run_all(study, methods, config, jobs)
        comparison = compare_costs(runs, target=target, cost=cost)
        print_summary(runs, target, cost, comparison.tied)
        print_metrics(runs)
        print_comparison(comparison)
        print_scale_hint(runs, settled, target)
        if table is not None:
            print(f"Table: {comparison.table().write(table)}")
        folders = [plan.place for plan in study.plans.values() if plan.place is not None]
        for history, folder in zip(runs, folders, strict=True):
            history.to_csv(folder / "history.csv")
        title = f"{describe_problem(problem.describe())}, step {config.step:g}"
        repeat = shlex.join(["fedpage", "compare", "--config", str(out)])
        write_reports(
            runs, out, title, target, report, cost, comparison, command=repeat, folders=folders
        )
        if figure is not None:
            print(f"Figure: {figure.write(runs, target.column)}")
    return {**describe_runs(runs, target, cost), "out": out}


def _run_all(
    study: Study, methods: list[AnyMethod], config: CompareConfig, jobs: int
) -> list[History]:
    """Run every method with every seed, with a progress bar for each method."""
    from fedpage.callbacks.progress import Progress, progress_bars, summarise_record

    seeds, rounds = config.seed_list, config.rounds
    jobs = min(jobs, os.cpu_count() or 1)  # more processes than cores only cost their start
    runs: list[History] = []
    with progress_bars() as bars:
        tasks = [bars.add_task(method.name, total=rounds * len(seeds)) for method in methods]

        def show_rounds(method: AnyMethod, seed: int) -> list[Progress]:
            return [Progress(bars, tasks[methods.index(method)], offset=seeds.index(seed) * rounds)]

        for history in study.iterate(jobs=jobs, callbacks=show_rounds if jobs == 1 else None):
            runs.append(history)
            method, seed = divmod(len(runs) - 1, len(seeds))
            note = summarise_record(history.rows[-1])
            bars.update(tasks[method], completed=(seed + 1) * rounds, note=note)
    return runs


def _build_methods(config: CompareConfig, problem: LinearModel) -> list[AnyMethod]:
    import numpy as np

    from fedpage.runs import build

    S = config.S or 1
    if S > problem.N:
        raise InputError(
            f"cannot sample S={S} of N={problem.N} clients; choose --S of at most {problem.N}"
        )
    M = int(np.median(problem.sizes))
    methods = [
        build.build_fair_method(text.strip(), N=problem.N, M=M, S=S, K=config.K, step=config.step)
        for text in config.methods.split(",")
        if text.strip()
    ]
    if not methods:
        raise InputError(f"--methods {config.methods!r}: no method is named; give at least one")
    twice = [method.name for i, method in enumerate(methods) if method in methods[:i]]
    if twice:
        raise InputError(
            f"--methods {config.methods!r}: {twice[0]} occurs twice with the same hyper-parameters"
        )
    return methods
