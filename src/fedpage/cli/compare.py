"""`fedpage compare`: run several methods on equal terms."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    check_runs,
    check_target,
    config_options,
    handle_signals,
    parse_cost,
    prepare_out,
    problem_options,
    repeat_command,
    unused_path,
    with_absolute_paths,
)
from fedpage.cli.options import (
    CheckpointOption,
    FaultsOption,
    ForceOption,
    JobsOption,
    ReportOption,
    with_config_options,
)
from fedpage.cli.output import (
    print_divergence_hint,
    print_judgements,
    print_metrics,
    print_problem,
    print_summary,
    write_reports,
)
from fedpage.cli.sweep import sweep
from fedpage.core.errors import InputError
from fedpage.runs.config import CompareCommand, CompareConfig, ProblemConfig, to_table

if TYPE_CHECKING:
    from fedpage.core.types import AnyMethod
    from fedpage.problems import LinearModel


@with_config_options
def compare(
    problem: ProblemConfig,
    compare: CompareConfig,
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
    force: ForceOption = False,
) -> None:
    """Compare methods on equal terms.

    They have the same effective step, number of clients, local work and seeds.
    """
    from fedpage.runs import toml
    from fedpage.runs.store import parse_interval

    parse_interval(checkpoint_every)
    command = CompareCommand(
        with_absolute_paths(problem),
        compare,
        checkpoint_every,
        None if faults is None else toml.read(faults),
    )
    place = unused_path(Path("runs") / "compare") if out is None else out
    execute(command, place, jobs, report, force=force)


def execute(
    command: CompareCommand,
    out: Path,
    jobs: int,
    report: Path | None,
    *,
    resume: bool = False,
    force: bool = False,
) -> None:
    """Run a comparison, or continue it from `out`, and print its results."""
    from dataclasses import replace

    from fedpage.core.atomic import put
    from fedpage.engine import faults
    from fedpage.engine.simulate import RunOptions
    from fedpage.runs import build, toml
    from fedpage.studies.sweep import run_names

    config = command.compare
    cost = parse_cost(config.cost)
    jobs = min(jobs, os.cpu_count() or 1)  # more processes than cores only cost their start
    settled, problem = build.open_problem(build.record_target(command.problem, config.target))
    config = replace(config, S=min(10, problem.N) if config.S is None else config.S)
    command = replace(command, problem=settled, compare=config)
    methods = _build_methods(config, problem)
    check_target(problem, config.target)
    check_runs(problem, methods)
    options = RunOptions(resume=True, checkpoint_every=command.checkpoint_every)
    if command.faults is not None:
        failing, policy = faults.parse(command.faults, "--faults")
        faults.FaultSampler(failing, problem, 0)  # checks that they fit the problem
        options = replace(options, faults=failing, policy=policy)
    if not resume:
        prepare_out(out, force, report)
        shutil.rmtree(out / "runs", ignore_errors=True)  # of an older comparison, with --force
        text = toml.dumps({"format": 1, "command": to_table(command)})
        put(out / "compare.toml", text.encode("utf-8"))
    print_problem(settled, problem)
    seeds = range(config.seed, config.seed + config.seeds)
    with handle_signals(out, jobs):
        runs = sweep(
            problem,
            methods,
            rounds=config.rounds,
            seeds=seeds,
            record_every=config.record_every,
            jobs=jobs,
            out=out / "runs",
            options=options,
        )
    print_summary(runs, config.target, cost)
    print_metrics(runs)
    print_judgements(runs, config.target, cost)
    print_divergence_hint(runs, settled)
    for history, name in zip(runs, run_names(methods, seeds), strict=True):
        history.to_csv(out / "runs" / name / "history.csv")
    title = (
        f"{problem.name.capitalize()} on {problem.data.name}, {problem.N:,} clients, "
        f"step {config.step:g}"
    )
    write_reports(
        runs, out, title, config.target, report, cost,
        command=repeat_command(
            "fedpage compare", problem_options(settled), config_options(config),
            has_faults=command.faults is not None,
        ),
        folders=[out / "runs" / name for name in run_names(methods, seeds)],
    )  # fmt: skip


def _build_methods(config: CompareConfig, problem: LinearModel) -> list[AnyMethod]:
    from fedpage.runs import build

    S = config.S or 1
    if S > problem.N:
        raise InputError(
            f"cannot sample S={S} of N={problem.N} clients; choose --S of at most {problem.N}"
        )
    M = build.median_rows(problem)
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
