"""`fedpage run`: run one method, or continue a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedpage.cli.common import (
    absolute_path,
    check_runs,
    interruptible,
    prepare_out,
    read_hyper_parameters,
)
from fedpage.cli.options import (
    CheckpointOption,
    FaultsOption,
    ForceOption,
    MethodArgument,
    ReportOption,
    ThreadsOption,
    with_config_options,
)
from fedpage.cli.output import format_record, log, print_summary, progress_bars, write_reports
from fedpage.core.errors import InputError
from fedpage.runs.config import MethodConfig, ProblemConfig, RunCommand, RunConfig, to_table


@with_config_options
def run(
    context: typer.Context,
    method: MethodArgument,
    problem: ProblemConfig,
    run: RunConfig,
    threads: ThreadsOption = 1,
    faults: FaultsOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory to write the run to; it can be resumed from there."),
    ] = None,
    checkpoint_every: CheckpointOption = "10s",
    report: ReportOption = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track", help="Log to tensorboard, mlflow or wandb, e.g. tensorboard:DIRECTORY."
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Run one method.

    Its hyper-parameters are options too: --S 10 --K 10 --eta-g 0.1 (see `fedpage methods`).
    """
    from dataclasses import replace

    from fedpage.runs import build, toml
    from fedpage.runs.store import interval

    interval(checkpoint_every)
    command = RunCommand(
        MethodConfig(
            absolute_path(method, "@"), read_hyper_parameters(context, build.find_method(method))
        ),
        replace(problem, data=absolute_path(problem.data)),
        run,
        None if faults is None else toml.read(faults),
    )
    prepared = prepare_run(command, threads, str(faults))
    prepare_out(out, force, report)
    execute(prepared, command, out, checkpoint_every, report, callbacks=_trackers(track or []))


def _trackers(names: list[str]) -> list[Any]:
    """Return a callback for the trackers of `--track`, or none."""
    from fedpage.callbacks.trackers import Track

    try:
        return [Track(*names, bar=False)] if names else []
    except (ImportError, InputError) as error:
        raise InputError(f"--track: {error}") from None


class PreparedRun(NamedTuple):
    """The objects of a run that has not begun."""

    problem: Any
    method: Any
    options: dict[str, Any]
    """Keyword arguments of `simulate`."""


def prepare_run(command: RunCommand, threads: int, faults_source: str) -> PreparedRun:
    """Build the problem, the method and the options of a run, and check that they fit together.

    Args:
        command: what `fedpage run` was given.
        threads: the number of threads.
        faults_source: the file that errors in the faults name.

    Raises:
        InputError: something does not exist or does not fit; nothing has been written yet.
    """
    from fedpage.engine import faults
    from fedpage.engine.stopping import Stop
    from fedpage.runs import build

    config = command.run
    method = build.build_method(command.method)
    problem = build.build_problem(command.problem)
    if config.steps == "theory":
        entry = build.find_method(command.method.name)
        given = build.parse_hyper_parameters(entry, command.method.hyper)
        method = build.build_theory_method(entry, given, problem)
        print(f"Steps from theory: {build.command_line(command.method.name, method, {})}")
    check_runs(problem, [method], seed=config.seed, threads=threads)
    options: dict[str, Any] = {
        "rounds": config.rounds,
        "record_every": config.record_every,
        "seed": config.seed,
        "threads": threads,
        "stop": Stop(grad_norm=config.target) if config.stop else None,
    }
    if command.faults is not None:
        options["faults"], options["policy"] = faults.parse(command.faults, faults_source)
        faults.FaultSampler(options["faults"], problem, config.seed)  # checks that they fit
    return PreparedRun(problem, method, options)


def execute(
    prepared: PreparedRun,
    command: RunCommand,
    out: Path | None,
    checkpoint_every: str,
    report: Path | None,
    *,
    resume: bool = False,
    callbacks: Sequence[Any] = (),
) -> None:
    """Run a prepared run, or continue it from `out`, and print its results."""
    from fedpage.engine.simulate import prepare
    from fedpage.runs.store import RunDirectory

    problem, method, options = prepared
    simulation = prepare(problem, method, **options)
    with progress_bars() as bars:
        task = bars.add_task(method.name, total=options["rounds"])

        def progress(done: int, _rounds: int, record: Any) -> None:
            bars.update(task, completed=done, note=format_record(record))

        if out is None:
            history = simulation.go(progress, None, callbacks)
        else:
            with (
                interruptible(out),
                RunDirectory(
                    out, every=checkpoint_every, command=to_table(command), say=log
                ) as directory,
            ):
                finished = None
                if not resume:
                    directory.begin(simulation)
                else:
                    finished = directory.resume(simulation)
                    log(
                        f"{out}: the run is finished"
                        if finished
                        else f"{out}: resuming after round {simulation.engine.costs.round}"
                    )
                history = finished or directory.finish(
                    simulation.go(progress, directory, callbacks)
                )
            bars.update(task, completed=int(history.last("round")))
    print_summary([history], command.run.target)
    for event in ("fallback", "rejected", "lost", "back"):
        events = [entry for entry in history.events if entry["event"] == event]
        if events:
            first = events[0]
            print(f"{event}: {len(events)} times, first in round {first['round']}: {first['text']}")
    if history.stopped != "finished":
        print(f"The run stopped early: {history.stopped}.")
    if out:
        history.to_csv(out / "history.csv")
    if out or report:
        title = f"{method.name} on {problem.data.name}, {problem.N:,} clients"
        write_reports([history], out, title, command.run.target, report)
    if history.stopped.startswith("gave up"):
        raise typer.Exit(1)
