"""`fedpage compare`: run several methods on equal terms."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import typer

from fedpage.callbacks.progress import Progress, progress_bars, summarise_record
from fedpage.cli import common, options, output
from fedpage.cli.options import Document, RoundsConfig
from fedpage.cli.run_config import check_no_settings
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod
from fedpage.engine import faults
from fedpage.engine.devices import check_time
from fedpage.engine.simulate import Simulation
from fedpage.engine.stopping import check_target
from fedpage.problems import LinearModel
from fedpage.report import summary
from fedpage.report.figure_file import check_figure_path
from fedpage.report.plots import plot
from fedpage.report.tables import table_format
from fedpage.report.titles import describe_problem
from fedpage.runs import build, toml
from fedpage.runs.config import ProblemConfig, Settings, dataclass_fields, setting, to_table
from fedpage.runs.history import History
from fedpage.runs.lock import DirectoryLock
from fedpage.runs.spec import RunOptions
from fedpage.runs.store import parse_interval
from fedpage.studies.comparison import compare_costs
from fedpage.studies.study import Study, study_of_methods

app = options.make_app()


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


@dataclass(frozen=True)
class CompareFiles:
    """Describe the files of a comparison, and the processes that run it."""

    config: Path | None = setting(None, "Repeat the comparison in a directory, with its settings.")
    jobs: options.Jobs = 1
    faults: options.Faults = None
    out: Path | None = setting(
        None, "Directory for runs, plot and report (default: a new one in runs/)."
    )
    checkpoint_every: options.Checkpoint = "10s"
    report: options.Report = None
    figure: Path | None = setting(
        None, "Draw the curves into this file too: .pdf, .svg, .pgf or .png."
    )
    x: str | None = setting(
        None, "Horizontal axis of --figure, such as bytes or contacts (default: --cost)."
    )
    figure_width: Literal["single", "double", "screen"] = setting(
        "screen",
        "Width of --figure: a column (3.5 in) or a page (7.16 in) of a paper, or larger.",
    )
    table: Path | None = setting(None, "Write the costs to a file .tex, .md, .csv or .txt.")
    force: options.Force = False

    def __post_init__(self) -> None:
        parse_interval(self.checkpoint_every)
        if self.figure is not None:
            check_figure_path(self.figure)
        elif self.x is not None or self.figure_width != "screen":
            raise InputError("--x and --figure-width are about --figure; say which file to draw")
        if self.table is not None:
            table_format(self.table)
            common.check_file("--table", self.table)


@options.command(app, "compare")
def compare(
    context: typer.Context, problem: ProblemConfig, compare: CompareConfig, files: CompareFiles
) -> Document:
    """Compare methods on equal terms.

    They have the same effective step, number of clients, local work and seeds.
    """
    failing = None if files.faults is None else toml.read(files.faults)
    asked = CompareCommand(problem, compare, files.checkpoint_every, failing)
    asked = common.with_absolute_paths(asked)
    if files.config is not None:
        names = (*dataclass_fields(ProblemConfig), *dataclass_fields(CompareConfig), "faults")
        check_no_settings(context, names, "give all settings as options instead")
        path = files.config / "compare.toml" if files.config.is_dir() else files.config
        asked = common.read_command(CompareCommand, path)
    place, number = files.out or Path("runs/compare"), 1
    while files.out is None and place.exists():
        number += 1
        place = Path(f"runs/compare-{number}")
    return execute(asked, place, files)


def extend(asked: CompareCommand, out: Path, rounds: int) -> CompareCommand:
    """Give a comparison more rounds, and write them to its compare.toml.

    Raises:
        InputError: It has more rounds already.
    """
    if rounds < asked.compare.rounds:
        raise InputError(
            f"--rounds {rounds}: the comparison in {out} has {asked.compare.rounds} rounds; "
            "give at least as many, or start another one"
        )
    asked = replace(asked, compare=replace(asked.compare, rounds=rounds))
    toml.write_settings(out / "compare.toml", {"command": to_table(asked)})
    return asked


def execute(
    asked: CompareCommand, out: Path, files: CompareFiles, *, resume: bool = False
) -> Document:
    """Run a comparison, or continue it from `out`, and print and return its results."""
    config, target = asked.compare, asked.compare.target
    cost = Cost.parse(config.cost).name
    axis = Cost.parse(files.x or cost).name
    settled, problem = build.open_problem(build.record_target(asked.problem, target))
    config = replace(config, S=min(10, problem.N) if config.S is None else config.S)
    asked = replace(asked, problem=settled, compare=config)
    methods = _build_methods(config, problem)
    check_target(problem, target)
    devices = options.read_devices(config.devices)
    check_time(cost, devices)
    running = RunOptions(resume=True, checkpoint_every=asked.checkpoint_every, devices=devices)
    if asked.faults is not None:
        failing, policy = faults.parse(asked.faults, "--faults")
        running = replace(running, faults=failing, policy=policy)
    for method in methods:  # before anything is printed or written
        Simulation(problem, method, seed=0, options=running)
    study = study_of_methods(
        problem, methods, config.seed_list, out=out / "runs", rounds=config.rounds,
        record_every=config.record_every, options=running,
    )  # fmt: skip
    if not resume:
        common.prepare_out(out, files.force, files.report)
    with DirectoryLock(out) as lock, common.continues(out, f"`fedpage resume {out}` continues"):
        if not resume:
            lock.clear("runs")  # of an older comparison, with --force
            toml.write_settings(out / "compare.toml", {"command": to_table(asked)})
        output.print_problem(settled, problem)
        with common.handle_signals(out, files.jobs):
            runs = _run_all(study, methods, config, files.jobs)
        comparison = compare_costs(runs, target=target, cost=cost)
        output.print_summary(runs, target, cost, comparison.tied)
        output.print_metrics(runs)
        for line in comparison.lines():
            output.print_line(line)
        output.print_scale_hint(runs, settled, target)
        if files.table is not None:
            print(f"Table: {comparison.table().write(files.table)}")
        folders = [plan.place for plan in study.plans.values() if plan.place is not None]
        for history, folder in zip(runs, folders, strict=True):
            history.to_csv(folder / "history.csv")
        title = f"{describe_problem(problem.describe())}, step {config.step:g}"
        again = shlex.join(["fedpage", "compare", "--config", str(out)])
        output.write_reports(
            runs, out, title, target, files.report, cost, comparison, command=again, folders=folders
        )
        if files.figure is not None:
            plot(runs, files.figure, x=axis, y=target.column, width=files.figure_width)
            print(f"Figure: {files.figure}")
    return {**summary.document(runs, target, cost), "out": out}


def _run_all(
    study: Study, methods: list[AnyMethod], config: CompareConfig, jobs: int
) -> list[History]:
    """Run every method with every seed, with a progress bar for each method."""
    seeds, rounds = config.seed_list, config.rounds
    jobs = min(jobs, os.cpu_count() or 1)  # more processes than cores only cost their start
    with progress_bars() as bars:
        tasks = [bars.add_task(method.name, total=rounds * len(seeds)) for method in methods]

        def show_rounds(method: AnyMethod, seed: int) -> list[Progress]:
            return [Progress(bars, tasks[methods.index(method)], offset=seeds.index(seed) * rounds)]

        def show_run(done: int, total: int) -> None:
            if done:
                method, seed = divmod(done - 1, len(seeds))
                note = summarise_record(list(study.runs().values())[-1].rows[-1])
                bars.update(tasks[method], completed=(seed + 1) * rounds, note=note)

        study.run(jobs=jobs, progress=show_run, callbacks=show_rounds if jobs == 1 else None)
    return list(study.runs().values())


def _build_methods(config: CompareConfig, problem: LinearModel) -> list[AnyMethod]:
    S = config.S or 1
    if S > problem.N:
        raise InputError(
            f"cannot sample S={S} of N={problem.N} clients; choose --S of at most {problem.N}"
        )
    M = int(np.median(problem.sizes))
    methods = [
        build.build_fair_method(text, N=problem.N, M=M, S=S, K=config.K, step=config.step)
        for text in common.split_methods(config.methods)
    ]
    twice = [method.name for i, method in enumerate(methods) if method in methods[:i]]
    if twice:
        raise InputError(
            f"--methods {config.methods!r}: {twice[0]} occurs twice with the same hyper-parameters"
        )
    return methods
