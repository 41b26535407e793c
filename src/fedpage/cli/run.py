"""`fedpage run`: run one method, from options or from a file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    absolute_devices,
    absolute_path,
    check_target,
    handle_signals,
    prepare_out,
    read_devices,
    read_hyper_parameters,
    with_absolute_paths,
)
from fedpage.cli.options import (
    CheckpointOption,
    FaultsOption,
    ForceOption,
    ReportOption,
    RunConfig,
    ThreadsOption,
    method_names,
    with_config_options,
)
from fedpage.cli.output import (
    Document,
    Failed,
    describe_runs,
    log,
    print_client_scores,
    print_metrics,
    print_problem,
    print_scale_hint,
    print_summary,
    with_json,
    write_reports,
)
from fedpage.cli.run_config import OWNERS, RunCommand, check_no_settings, read_run_command
from fedpage.core.errors import InputError
from fedpage.runs.config import MethodConfig, ProblemConfig, to_table

if TYPE_CHECKING:
    from fedpage.callbacks.base import Callback
    from fedpage.engine.loop import Run


@with_json
@with_config_options
def run(
    context: typer.Context,
    problem: ProblemConfig,
    run: RunConfig,
    method: Annotated[
        str | None,
        typer.Argument(
            help="Name of a method (see `fedpage methods`), or file.py@Class.",
            autocompletion=method_names,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Take the settings from a run.toml, or from a file with its tables."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting of --config: rounds=4000, S=20, problem.data=a9a."
        ),
    ] = None,
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
) -> Document:
    """Run one method.

    Its hyper-parameters are options too: --S 10 --K 10 --eta-g 0.1 (see `fedpage methods`).
    """
    from fedpage.runs import build, toml
    from fedpage.runs.store import parse_interval

    parse_interval(checkpoint_every)
    if config is not None:
        advice = "change a setting with --set KEY=VALUE"
        check_no_settings(context, [*OWNERS, "faults"], advice)
        command = read_run_command(config, changes or [])
        name, words = command.method.name, command.method.hyper
        build.parse_hyper_parameters(build.find_method(name), words)
        problem, run, table = command.problem, command.run, command.faults
    elif changes:
        raise InputError("--set changes a setting of a file; give the file with --config")
    elif method is None:
        raise InputError("name a method, such as `fedpage run fedpage`, or give --config run.toml")
    else:
        name, words = method, read_hyper_parameters(context, build.find_method(method))
        table = None if faults is None else toml.read(faults)
    command = RunCommand(
        MethodConfig(absolute_path(name, "@"), words),
        with_absolute_paths(problem),
        replace(run, devices=absolute_devices(run.devices)),
        table,
    )
    command, prepared = prepare_run(command, threads, str(faults or config))
    prepare_out(out, force, report)
    callbacks = _trackers(track or [])
    return execute(prepared, command, out, checkpoint_every, report, callbacks=callbacks)


def _trackers(names: list[str]) -> list[Callback]:
    """Return a callback for the trackers of `--track`, or none."""
    from fedpage.callbacks.trackers import Track

    try:
        return [Track(*names)] if names else []
    except (ImportError, InputError) as error:
        raise InputError(f"--track: {error}") from None


def prepare_run(command: RunCommand, threads: int, faults_source: str) -> tuple[RunCommand, Run]:
    """Build a run from what `fedpage run` was given, and check that its parts fit together.

    Args:
        command: what `fedpage run` was given.
        threads: the number of threads.
        faults_source: the file that errors in the faults name.

    Returns:
        The command with all that the data has decided, and the run.

    Raises:
        InputError: something does not exist or does not fit; nothing has been written yet.
    """
    from fedpage.engine.aggregation import Aggregation
    from fedpage.engine.faults import parse
    from fedpage.engine.simulate import prepare
    from fedpage.engine.stopping import Stop
    from fedpage.runs import build
    from fedpage.runs.spec import RunOptions, RunSpec

    config = command.run
    method = build.build_method(command.method)
    settled, problem = build.open_problem(build.record_target(command.problem, config.target))
    check_target(problem, config.target)
    default = getattr(method, "S", None)
    if "S" not in command.method.hyper and isinstance(default, int) and default > problem.N:
        print(f"S = {problem.N}, every client in every round (--S); the default is {default}")
        hyper = {**command.method.hyper, "S": str(problem.N)}
        command = replace(command, method=replace(command.method, hyper=hyper))
        method = build.build_method(command.method)
    if config.steps == "theory":
        entry = build.find_method(command.method.name)
        given = build.parse_hyper_parameters(entry, command.method.hyper)
        method = build.build_theory_method(entry, given, problem)
        sizes = (f"{key}={word}" for key, word in build.hyper_words(method).items())
        print(f"Steps from theory: {command.method.name} with {', '.join(sizes)}")
    faults, policy = (None, None)
    if command.faults is not None:
        faults, policy = parse(command.faults, faults_source)
    spec = RunSpec(
        problem,
        method,
        rounds=config.rounds,
        seed=config.seed,
        record_every=config.record_every,
        stop=Stop(config.target) if config.stop else None,
        options=RunOptions(
            threads=threads,
            faults=faults,
            policy=policy,
            devices=read_devices(config.devices),
            aggregation=Aggregation.from_text(config.aggregation),
        ),
    )
    prepared = prepare(spec)
    print_problem(settled, problem)
    return replace(command, problem=settled), prepared


def execute(
    run: Run,
    command: RunCommand,
    out: Path | None,
    checkpoint_every: str,
    report: Path | None,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Document:
    """Run a prepared run, or continue it from `out`, and print and return its results."""
    from fedpage.callbacks.checkpointing import Checkpointing
    from fedpage.callbacks.progress import Progress
    from fedpage.core.types import StopReason
    from fedpage.runs.store import RunStore

    observers = [*callbacks, Progress()]
    if out is None:
        history = run.run(observers)
    else:
        store = RunStore(
            out, checkpoint_every=checkpoint_every, command=to_table(command), notify=log
        )
        with handle_signals(out), store:
            finished = store.open_run(run, resume=resume, overwrite=not resume)
            history = run.run([*observers, Checkpointing(store)]) if finished is None else finished
    print_summary([history], command.run.target)
    print_metrics([history])
    print_client_scores(getattr(run.engine, "problem", None), history)
    for event in ("fallback", "rejected", "lost", "back"):
        events = [entry for entry in history.events if entry["event"] == event]
        if events:
            first = events[0]
            print(f"{event}: {len(events)} times, first in round {first['round']}: {first['text']}")
    if history.stop_reason is not StopReason.FINISHED:
        print(f"The run stopped early: {history.stop_text}.")
    print_scale_hint([history], command.problem, command.run.target)
    if out:
        history.to_csv(out / "history.csv")
    if out or report:
        about = history.meta["problem"]
        title = f"{history.label} on {about['data']}, {about['N']:,} clients"
        repeat = "" if out is None else shlex.join(["fedpage", "run", "--config", str(out)])
        write_reports([history], out, title, command.run.target, report, command=repeat)
    document = describe_runs([history], command.run.target)
    document |= {"events": history.events, "out": out}
    if history.stop_reason is StopReason.ROUND_FAILED:
        raise Failed(document)
    return document
