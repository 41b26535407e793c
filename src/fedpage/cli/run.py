"""`fedpage run`, `resume` and `methods`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedpage.cli.common import (
    AlphaOption,
    CheckpointOption,
    ClientsOption,
    DataOption,
    FaultsOption,
    ForceOption,
    MethodArgument,
    ObjectiveOption,
    PartitionOption,
    PartitionSeedOption,
    RecordOption,
    ReportOption,
    RoundsOption,
    TargetOption,
    ThreadsOption,
    WeightsOption,
    bars,
    command_of,
    console,
    default,
    extras,
    flags,
    interruptible,
    lasting,
    note,
    publish,
    remembers,
    say,
    sensible,
    show,
    writable,
)
from fedpage.cli.compare import again
from fedpage.core.types import StopReason


def run(
    context: typer.Context,
    method: MethodArgument,
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    partition_seed: PartitionSeedOption = 0,
    alpha: AlphaOption = None,
    weights: WeightsOption = "uniform",
    rounds: RoundsOption = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result, bit for bit.")] = 0,
    record_every: RecordOption = 10,
    target: TargetOption = 1e-2,
    stop: Annotated[
        bool, typer.Option("--stop", help="End as soon as the target is reached.")
    ] = False,
    threads: ThreadsOption = 1,
    steps: Annotated[
        str, typer.Option("--steps", help="given, or theory: the theorem's step sizes.")
    ] = "given",
    faults: FaultsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Directory that the run is written to, and can be resumed from."
        ),
    ] = None,
    checkpoint_every: CheckpointOption = "10s",
    report: ReportOption = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track", help="tensorboard, mlflow or wandb, or e.g. tensorboard:DIRECTORY."
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Run one method. Its hyper-parameters are options too: --S 10 --K 10 --eta-g 0.1 (see `fedpage methods`)."""
    from fedpage.runs import build as specs
    from fedpage.runs import toml
    from fedpage.runs.store import interval

    interval(checkpoint_every)
    hyper = extras(context.args, flags(context))
    specs.parsed(specs.method_class(method), hyper, flags(context))
    command = {
        "method": lasting(method, at="@"), "hyper": hyper, "data": lasting(data), "clients": clients,
        "objective": objective, "partition": partition, "partition_seed": partition_seed, "alpha": alpha,
        "weights": weights, "rounds": rounds, "seed": seed, "record_every": record_every, "target": target, "stop": stop,
        "steps": steps, "faults": None if faults is None else toml.read(faults),
    }  # fmt: skip
    made = _made(command, threads, "--faults" if faults is None else str(faults))
    writable(out, force, report)
    _do(
        made,
        command,
        out,
        checkpoint_every,
        report,
        resuming=False,
        watchers=_trackers(track or []),
    )


def _trackers(words: list[str]) -> list[Any]:
    """One callback for all trackers that are named; the command has a bar of its own."""
    from fedpage.callbacks.trackers import Track
    from fedpage.core.errors import InputError

    try:
        return [Track(*words, bar=False)] if words else []
    except (ImportError, InputError) as error:
        raise InputError(f"--track: {error}") from None


class _Made(NamedTuple):
    """What a `fedpage run` is about to do."""

    problem: Any
    method: Any
    options: dict[str, Any]
    """`simulate`'s."""


def _made(command: Mapping[str, Any], threads: int, faults_from: str) -> _Made:
    """Objects from words; refuses before anything is shown or written."""
    from fedpage.core.errors import InputError
    from fedpage.engine import faults
    from fedpage.engine.stopping import Stop
    from fedpage.runs import build as specs

    kind = specs.method_class(command["method"])
    hyper = specs.parsed(kind, command["hyper"])
    if command["steps"] not in ("given", "theory"):
        raise InputError(f"--steps must be 'given' or 'theory', not {command['steps']!r}")
    chosen = kind(**hyper)
    problem = specs.problem(
        specs.dataset(command["data"]), command["clients"], command["objective"], command["partition"],
        command.get("alpha"), command["weights"], command["partition_seed"],
    )  # fmt: skip
    if command["steps"] == "theory":
        chosen = specs.with_theory(kind, hyper, problem)
        print(f"By theory: {specs.command_line(command['method'], chosen, {})}")
    plain = {name: command[name] for name in ("rounds", "record_every", "seed")}
    sensible(problem, [chosen], **plain, threads=threads, target=command["target"])
    options = {
        **plain,
        "threads": threads,
        "stop": Stop(grad_norm=command["target"]) if command["stop"] else None,
    }
    if command.get("faults") is not None:
        options["faults"], options["policy"] = faults.parse(command["faults"], faults_from)
        faults.FaultSampler(
            options["faults"], problem, command["seed"]
        )  # refuses what does not fit the problem
    return _Made(problem, chosen, options)


def _do(
    made: _Made, command: Mapping[str, Any], out: Path | None, every: str, report: Path | None, resuming: bool,
    watchers: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Run it, or go on with it, and show what came of it."""
    from fedpage.engine.simulate import prepare
    from fedpage.runs.store import RunDirectory

    prepared = prepare(made.problem, made.method, **made.options)
    title, rounds, target = made.method.name, made.options["rounds"], command["target"]
    with bars() as shown:
        task = shown.add_task(title, total=rounds)

        def progress(done: int, _total: int, row: Any) -> None:
            shown.update(task, completed=done, note=note(row))

        if out is None:
            history = prepared.go(progress, None, watchers)
        else:
            with (
                interruptible(out),
                RunDirectory(out, every=every, command=command, say=say) as directory,
            ):
                ended = None
                if not resuming:
                    directory.begin(prepared)
                else:
                    ended = directory.resume(prepared)
                    where = (
                        "the run had ended"
                        if ended
                        else f"going on after round {prepared.engine.costs.round}"
                    )
                    say(f"{out}: {where}")
                history = ended or directory.finish(prepared.go(progress, directory, watchers))
            shown.update(task, completed=int(history.last("round")))
    show([history], target)
    for event in ("fallback", "rejected", "lost", "back"):
        told = [entry for entry in history.events if entry["event"] == event]
        if told:
            print(
                f"{event}: {len(told)} times, first at round {told[0]['round']}: {told[0]['text']}."
            )
    if history.stop_reason is not StopReason.FINISHED:
        print(f"The run stopped early: {history.stop_text}.")
    if out:
        history.to_csv(out / "history.csv")
    if out or report:
        publish(
            [history],
            out,
            f"{title} on {made.problem.data.name}, {made.problem.N:,} clients",
            target,
            report,
        )
    if history.stop_reason is StopReason.ROUND_FAILED:
        raise typer.Exit(1)


def resume(
    directory: Annotated[
        Path, typer.Argument(help="The --out of a `fedpage run` or `fedpage compare`.")
    ],
    threads: ThreadsOption = 1,
    checkpoint_every: Annotated[
        str | None,
        typer.Option("--checkpoint-every", help="Other than when the run began: 100, or 30s."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes, for a comparison.")] = 1,
    report: ReportOption = None,
) -> None:
    """Go on with a run that was interrupted or killed; the result is that of a run that never was, bit for bit."""
    from fedpage.core.errors import InputError
    from fedpage.runs import toml

    if (directory / "compare.toml").is_file():
        table = toml.read(directory / "compare.toml")
        again(table, directory, jobs, report)
        return
    path = directory / "run.toml"
    if not path.is_file():
        there = "has no run in it" if directory.is_dir() else "is not a directory"
        raise InputError(
            f"{directory}: {there}; give the --out of a `fedpage run` or `fedpage compare`"
        )
    table = toml.read(path)
    if "federation" in table.get("identity", {}):
        raise InputError(f"{path}: this run is a federation's; the same `flwr run` goes on with it")
    if table.get("format") == 1 and "command" not in table:
        raise InputError(
            f"{path}: this run was begun from Python; go on with simulate(..., out={str(directory)!r}, resume=True)"
        )
    command = command_of(table, path, RUN)
    every = checkpoint_every or str(table.get("checkpoint_every", "10s"))
    _do(_made(command, threads, str(path)), command, directory, every, report, resuming=True)


RUN: dict[str, type] = {
    "method": str, "hyper": dict, "data": str, "clients": int, "objective": str, "partition": str,
    "partition_seed": int, "alpha": float, "weights": str, "rounds": int, "seed": int, "record_every": int, "target": float,
    "stop": bool, "steps": str, "faults": dict,
}  # fmt: skip


def list_methods(
    name: Annotated[str | None, typer.Argument(help="Show only this method.")] = None,
) -> None:
    """Every method: hyper-parameters with their defaults, paper, and what its clients must remember."""
    from rich.table import Table

    from fedpage.methods import METHODS
    from fedpage.runs import build as specs

    chosen: dict[str, Any] = (
        dict(METHODS) if name is None else {name.lower(): specs.method_class(name)}
    )
    table = Table(show_lines=True)
    for heading in ("name", "hyper-parameters (defaults)", "paper", "clients remember"):
        table.add_column(heading, overflow="fold")
    for key, kind in chosen.items():
        fields = ", ".join(f"{n}={default(f.default)}" for n, f in specs.parameters(kind).items())
        table.add_row(key, fields, kind.paper, remembers(kind))
    console().print(table)
    if name is not None:
        print((chosen[name.lower()].__doc__ or "").strip())
    else:
        print(
            "None: a default that follows from the others, or all rows for a minibatch. `fedpage methods NAME`: more."
        )
