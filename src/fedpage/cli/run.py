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
from fedpage.cli.output import log, print_summary, write_reports
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
    from fedpage.runs.store import parse_interval

    parse_interval(checkpoint_every)
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
        return [Track(*names)] if names else []
    except (ImportError, InputError) as error:
        raise InputError(f"--track: {error}") from None


class PreparedRun(NamedTuple):
    """The objects of a run that has not begun."""

    problem: Any
    method: Any
    arguments: dict[str, Any]
    """Keyword arguments of `prepare`."""


def prepare_run(command: RunCommand, threads: int, faults_source: str) -> PreparedRun:
    """Build the problem, the method and the options of a run, and check that they fit together.

    Args:
        command: what `fedpage run` was given.
        threads: the number of threads.
        faults_source: the file that errors in the faults name.

    Raises:
        InputError: something does not exist or does not fit; nothing has been written yet.
    """
    from dataclasses import replace

    from fedpage.engine import faults
    from fedpage.engine.simulate import RunOptions
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
    options = RunOptions(threads=threads)
    if command.faults is not None:
        failing, policy = faults.parse(command.faults, faults_source)
        faults.FaultSampler(failing, problem, config.seed)  # checks that they fit
        options = replace(options, faults=failing, policy=policy)
    arguments = {
        "rounds": config.rounds,
        "record_every": config.record_every,
        "seed": config.seed,
        "stop": Stop(grad_norm=config.target) if config.stop else None,
        "options": options,
    }
    return PreparedRun(problem, method, arguments)


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
    from fedpage.callbacks.checkpointing import Checkpointing
    from fedpage.callbacks.progress import Progress
    from fedpage.core.types import StopReason
    from fedpage.engine.simulate import prepare
    from fedpage.runs.store import RunStore

    problem, method, arguments = prepared
    prepared_run = prepare(problem, method, **arguments)
    observers = [*callbacks, Progress()]
    if out is None:
        history = prepared_run.run(observers)
    else:
        store = RunStore(
            out, checkpoint_every=checkpoint_every, command=to_table(command), notify=log
        )
        with interruptible(out), store:
            finished = store.open_run(prepared_run, resume=resume)
            if finished is None:
                history = prepared_run.run([*observers, Checkpointing(store)])
            else:
                history = finished
    print_summary([history], command.run.target)
    for event in ("fallback", "rejected", "lost", "back"):
        events = [entry for entry in history.events if entry["event"] == event]
        if events:
            first = events[0]
            print(f"{event}: {len(events)} times, first in round {first['round']}: {first['text']}")
    if history.stop_reason is not StopReason.FINISHED:
        print(f"The run stopped early: {history.stop_text}.")
    if out:
        history.to_csv(out / "history.csv")
    if out or report:
        title = f"{method.name} on {problem.data.name}, {problem.N:,} clients"
        write_reports([history], out, title, command.run.target, report)
    if history.stop_reason is StopReason.ROUND_FAILED:
        raise typer.Exit(1)
