"""`fedpage compare` and `demo`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpage.cli.common import (
    AlphaOption,
    CheckpointOption,
    ClientsOption,
    DataOption,
    FaultsOption,
    ForceOption,
    ObjectiveOption,
    PartitionOption,
    PartitionSeedOption,
    RecordOption,
    ReportOption,
    RoundsOption,
    TargetOption,
    WeightsOption,
    at_most,
    command_of,
    free,
    interruptible,
    lasting,
    publish,
    sensible,
    show,
    sweep,
    writable,
)

_COMPARE: dict[str, type] = {
    "data": str, "clients": int, "methods": str, "objective": str, "partition": str, "partition_seed": int,
    "alpha": float, "weights": str, "S": int, "K": int, "step": float, "rounds": int, "seeds": int, "record_every": int,
    "target": float, "faults": dict, "checkpoint_every": str,
}  # fmt: skip


def compare(
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", help="Names with commas; fedpage:eta_l=0.01 sets a hyper-parameter."
        ),
    ] = "fedpage,scaffold,fedavg",
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    partition_seed: PartitionSeedOption = 0,
    alpha: AlphaOption = None,
    weights: WeightsOption = "uniform",
    S: Annotated[
        int,
        typer.Option(
            "--S", help="Clients that FedPAGE samples; methods without full rounds 2S, at most N."
        ),
    ] = 10,
    K: Annotated[int, typer.Option("--K", help="Local steps.")] = 10,
    step: Annotated[float, typer.Option("--step", help="Effective step of every method.")] = 0.1,
    rounds: RoundsOption = 2000,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Runs per method, with seeds 0, 1, ...")
    ] = 3,
    record_every: RecordOption = 10,
    target: TargetOption = 1e-2,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes.")] = 1,
    faults: FaultsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Directory for runs, plot, report (default: a new one under runs/)."
        ),
    ] = None,
    checkpoint_every: CheckpointOption = "10s",
    report: ReportOption = None,
    force: ForceOption = False,
) -> None:
    """Compare methods on equal terms: same effective step, same clients a round, same local work, same seeds."""
    from fedpage.runs import toml
    from fedpage.runs.store import interval

    interval(checkpoint_every)
    command = {
        "data": lasting(data), "clients": clients, "methods": methods, "objective": objective, "partition": partition,
        "partition_seed": partition_seed, "alpha": alpha, "weights": weights, "S": S, "K": K, "step": step,
        "rounds": rounds, "seeds": seeds, "record_every": record_every, "target": target, "checkpoint_every": checkpoint_every,
        "faults": None if faults is None else toml.read(faults),
    }  # fmt: skip
    place = free(Path("runs") / "compare") if out is None else out
    _compare(command, place, jobs, report, resuming=False, force=force)


def _compare(
    command: dict[str, Any],
    out: Path,
    jobs: int,
    report: Path | None,
    resuming: bool,
    force: bool = False,
) -> None:
    from fedpage.core.atomic import put
    from fedpage.core.errors import InputError
    from fedpage.engine import faults
    from fedpage.runs import build as specs
    from fedpage.runs import toml
    from fedpage.studies.sweep import run_names

    S, K, step, seeds, rounds = (command[name] for name in ("S", "K", "step", "seeds", "rounds"))
    target, methods = command["target"], command["methods"]
    if seeds < 1 or jobs < 1:
        raise InputError(f"--seeds and --jobs must be at least 1, not {min(seeds, jobs)}")
    at_most("--seeds", seeds)
    jobs = min(jobs, os.cpu_count() or 1)  # more processes than cores only cost their start
    if S < 1 or K < 1:
        raise InputError(f"--S and --K must be at least 1, not {min(S, K)}")
    problem = specs.problem(
        specs.dataset(command["data"]), command["clients"], command["objective"], command["partition"],
        command.get("alpha"), command["weights"], command["partition_seed"],
    )  # fmt: skip
    M = specs.typical_size(problem)
    if S > problem.N:
        raise InputError(
            f"cannot sample S={S} of N={problem.N} clients; choose --S of at most {problem.N}"
        )
    chosen = [
        specs.method(text.strip(), N=problem.N, M=M, S=S, K=K, step=step)
        for text in methods.split(",")
        if text.strip()
    ]
    if not chosen:
        raise InputError(f"--methods {methods!r}: nothing to run; give at least one name")
    twins = [m.name for i, m in enumerate(chosen) if m in chosen[:i]]
    if twins:
        raise InputError(
            f"--methods {methods!r}: {twins[0]} is there twice with the same hyper-parameters"
        )
    sensible(
        problem,
        chosen,
        rounds=rounds,
        record_every=command["record_every"],
        seed=0,
        threads=1,
        target=target,
    )
    options: dict[str, Any] = {"resume": True, "checkpoint_every": command["checkpoint_every"]}
    if command.get("faults") is not None:
        options["faults"], options["policy"] = faults.parse(command["faults"], "--faults")
        faults.FaultSampler(options["faults"], problem, 0)
    if not resuming:
        writable(out, force, report)
        if (out / "runs").is_dir():
            shutil.rmtree(out / "runs")  # of an older comparison; --force was given
        text = toml.dumps({"format": 1, "command": command})
        put(out / "compare.toml", text.encode("utf-8"))
    with interruptible(out, jobs):
        runs = sweep(
            problem, chosen, rounds, seeds, command["record_every"], jobs, out / "runs", **options
        )
    show(runs, target)
    for run, name in zip(runs, run_names(chosen, range(seeds)), strict=True):
        run.to_csv(out / "runs" / name / "history.csv")
    title = (
        f"{problem.name.capitalize()} on {problem.data.name}, {problem.N:,} clients, step {step:g}"
    )
    publish(runs, out, title, target, report)


def again(table: Mapping[str, Any], directory: Path, jobs: int, report: Path | None) -> None:
    """Go on with the comparison in a directory, whose settings are in `table`."""
    command = command_of(table, directory / "compare.toml", _COMPARE)
    _compare(command, directory, jobs, report, resuming=True)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the report.")] = Path(
        "demo-report"
    ),
    rounds: RoundsOption = 3000,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per method.")] = 3,
    force: ForceOption = False,
) -> None:
    """FedPAGE, SCAFFOLD and FedAvg on the embedded census data: a table, a plot, a report."""
    from fedpage.core.errors import InputError
    from fedpage.runs import build as specs

    problem = specs.problem(specs.dataset("census"), 3250, "robust", "blocks")
    print(
        f"Robust linear regression on `census` (synthetic, {problem.data.rows:,} rows), {problem.N:,} clients."
    )
    chosen = [
        specs.method(m, N=problem.N, M=10, S=10, K=10, step=0.1)
        for m in ("fedpage", "scaffold", "fedavg")
    ]
    if seeds < 1 or rounds < 1:
        raise InputError(f"--seeds and --rounds must be at least 1, not {min(seeds, rounds)}")
    at_most("--seeds", seeds)
    writable(out, force or out == Path("demo-report"))  # its own directory is written anew
    shutil.rmtree(out / "runs", ignore_errors=True)
    runs = sweep(problem, chosen, rounds, seeds, 10, 1, out / "runs")
    show(runs, 5e-3)
    publish(
        runs, out, "FedPAGE, SCAFFOLD and FedAvg on the synthetic census data, 3,250 clients", 5e-3
    )
