"""`fedpage run`: run one method, from options or from a file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.callbacks.progress import Progress
from fedpage.callbacks.trackers import Track
from fedpage.cli import common, options, output
from fedpage.cli.options import Document, RunConfig
from fedpage.cli.run_config import OWNERS, RunCommand, check_no_settings, read_run_command
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.engine import faults
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.loop import Run
from fedpage.engine.simulate import prepare
from fedpage.engine.stopping import Stop, check_target
from fedpage.report import summary
from fedpage.runs import build, toml
from fedpage.runs.config import MethodConfig, ProblemConfig, setting, to_table
from fedpage.runs.spec import RunOptions, RunSpec
from fedpage.runs.store import RunStore, parse_interval

app = options.make_app()


@dataclass(frozen=True)
class RunFiles:
    """Describe the files of a run, and the threads that run it."""

    config: Path | None = setting(
        None, "Take the settings from a run.toml, or from a file with its tables."
    )
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting of --config: rounds=4000, S=20, problem.data=a9a."
        ),
    ] = None
    threads: options.Threads = 1
    faults: options.Faults = None
    out: Path | None = setting(None, "Directory to write the run to; it can be resumed from there.")
    checkpoint_every: options.Checkpoint = "10s"
    report: options.Report = None
    track: list[str] | None = setting(
        None, "Log to tensorboard, mlflow or wandb, e.g. tensorboard:DIRECTORY."
    )
    force: options.Force = False

    def __post_init__(self) -> None:
        parse_interval(self.checkpoint_every)


@options.command(app, "run", takes_hyper_parameters=True)
def run(
    context: typer.Context,
    problem: ProblemConfig,
    run: RunConfig,
    files: RunFiles,
    method: Annotated[str | None, options.METHOD] = None,
) -> Document:
    """Run one method.

    Its hyper-parameters are options too: --S 10 --K 10 --eta-g 0.1 (see `fedpage methods`).
    """
    if method is not None and Path(method, "run.toml").is_file():
        raise InputError(f"{method} is a run; continue it with `fedpage resume {method}`")
    if files.config is not None:
        check_no_settings(context, [*OWNERS, "faults"], "change a setting with --set KEY=VALUE")
        asked = read_run_command(files.config, files.changes or [])
    elif files.changes:
        raise InputError("--set changes a setting of a file; give the file with --config")
    elif method is None:
        raise InputError("name a method, such as `fedpage run fedpage`, or give --config run.toml")
    else:
        hyper = common.read_hyper_parameters(context, build.find_method(method))
        failing = None if files.faults is None else toml.read(files.faults)
        asked = RunCommand(MethodConfig(method, hyper), problem, run, failing)
    asked = common.with_absolute_paths(asked)
    return execute(asked, files, source=str(files.faults or files.config))


def execute(asked: RunCommand, files: RunFiles, *, source: str, resume: bool = False) -> Document:
    """Run a method, or continue its run, and print and return the results.

    Args:
        asked: The settings of the run.
        files: Its files. Files of settings have been read already.
        source: The file that errors in the faults name.
        resume: Whether to continue the run in `files.out`.

    Raises:
        InputError: Something does not exist or does not fit; nothing has been written then.
    """
    out, report = files.out, files.report
    try:
        callbacks = [Track(*files.track)] if files.track else []
    except (ImportError, InputError) as error:
        raise InputError(f"--track: {error}") from None
    asked, run = _prepare(asked, files.threads, source)
    observers, target = [*callbacks, Progress()], asked.run.target
    if not resume:
        common.prepare_out(out, files.force, report)
    if out is None:
        history = run.run(observers)
    else:
        store = RunStore(
            out,
            checkpoint_every=files.checkpoint_every,
            command=to_table(asked),
            notify=output.log,
        )
        with common.handle_signals(out), store:
            finished = store.open_run(run, resume=resume, overwrite=not resume)
            history = finished or run.run([*observers, Checkpointing(store)])
        history.to_csv(out / "history.csv")
    output.print_summary([history], target)
    output.print_metrics([history])
    output.print_client_scores(getattr(run.engine, "problem", None), history)
    for event in ("fallback", "rejected", "lost", "back"):
        events = [entry for entry in history.events if entry["event"] == event]
        if events:
            first = events[0]
            print(f"{event}: {len(events)} times, first in round {first['round']}: {first['text']}")
    if history.stop_reason is not StopReason.FINISHED:
        print(f"The run stopped early: {history.stop_text}.")
    output.print_scale_hint([history], asked.problem, target)
    if out or report:
        about = history.meta["problem"]
        title = f"{history.label} on {about['data']}, {about['N']:,} clients"
        again = "" if out is None else shlex.join(["fedpage", "run", "--config", str(out)])
        output.write_reports([history], out, title, target, report, command=again)
    document = summary.document([history], target)
    document |= {"events": history.events, "out": out}
    if history.stop_reason is StopReason.ROUND_FAILED:
        raise options.Failed(document)
    return document


def _prepare(asked: RunCommand, threads: int, source: str) -> tuple[RunCommand, Run]:
    """Build a run, and return it after the settings with all that the data has decided."""
    config = asked.run
    method = build.build_method(asked.method)
    settled, problem = build.open_problem(build.record_target(asked.problem, config.target))
    check_target(problem, config.target)
    default = getattr(method, "S", None)
    if "S" not in asked.method.hyper and isinstance(default, int) and default > problem.N:
        print(f"S = {problem.N}, every client in every round (--S); the default is {default}")
        hyper = {**asked.method.hyper, "S": str(problem.N)}
        asked = replace(asked, method=replace(asked.method, hyper=hyper))
        method = build.build_method(asked.method)
    if config.steps == "theory":
        entry = build.find_method(asked.method.name)
        given = build.parse_hyper_parameters(entry, asked.method.hyper)
        from fedpage.theory.steps import theory_method

        method = theory_method(entry, given, problem)
        sizes = (f"{key}={word}" for key, word in build.hyper_words(method).items())
        print(f"Steps from theory: {asked.method.name} with {', '.join(sizes)}")
    failing, policy = (None, None) if asked.faults is None else faults.parse(asked.faults, source)
    spec = RunSpec(
        problem,
        method,
        rounds=config.rounds,
        seed=config.seed,
        record_every=config.record_every,
        stop=Stop(config.target) if config.stop else None,
        options=RunOptions(
            threads=threads,
            faults=failing,
            policy=policy,
            devices=options.read_devices(config.devices),
            aggregation=Aggregation.from_text(config.aggregation),
        ),
    )
    prepared = prepare(spec)
    output.print_problem(settled, problem)
    return replace(asked, problem=settled), prepared
