"""`fedpage run`, `compare`, `demo` and `methods`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpage.commands.common import (
    AlphaOption,
    ClientsOption,
    DataOption,
    ForceOption,
    ObjectiveOption,
    PartitionOption,
    PartitionSeedOption,
    RecordOption,
    ReportOption,
    RoundsOption,
    TargetOption,
    ThreadsOption,
    WeightsOption,
    at_most,
    bars,
    console,
    default,
    extras,
    flags,
    free,
    keep,
    note,
    publish,
    remembers,
    show,
    sweep,
    writable,
)


def run(
    context: typer.Context,
    method: Annotated[str, typer.Argument(help="A method's name (see `fedpage methods`), or file.py@Class.")],
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    partition_seed: PartitionSeedOption = 0,
    alpha: AlphaOption = None,
    weights: WeightsOption = "uniform",
    rounds: RoundsOption = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result, bit for bit.")] = 0,
    record: RecordOption = 10,
    target: TargetOption = 1e-2,
    stop: Annotated[bool, typer.Option("--stop", help="End as soon as the target is reached.")] = False,
    threads: ThreadsOption = 1,
    steps: Annotated[str, typer.Option("--steps", help="given, or theory: the theorem's step sizes.")] = "given",
    out: Annotated[Path | None, typer.Option("--out", help="Directory for history, CSV, plot and report.")] = None,
    report: ReportOption = None,
    force: ForceOption = False,
) -> None:
    """Run one method. Its hyper-parameters are options too: --S 10 --K 10 --eta-g 0.1 (see `fedpage methods`)."""
    from fedpage import specs
    from fedpage.engine import simulate
    from fedpage.stopping import Stop
    from fedpage.types import InputError

    kind = specs.method_class(method)
    settings = specs.parsed(kind, extras(context.args, flags(context)), flags(context))
    if steps not in ("given", "theory"):
        raise InputError(f"--steps must be 'given' or 'theory', not {steps!r}")
    chosen = kind(**settings)
    problem = specs.problem(specs.dataset(data), clients, objective, partition, alpha, weights, partition_seed)
    if steps == "theory":
        chosen = specs.with_theory(kind, settings, problem)
        print(f"By theory: {specs.command_line(method, chosen, {})}")
    _sensible(problem, [chosen], rounds=rounds, record=record, seed=seed, threads=threads, target=target)
    writable(out, force, report)
    with bars() as shown:
        task = shown.add_task(chosen.title, total=rounds)

        def progress(done: int, _total: int, row: Any) -> None:
            shown.update(task, completed=done, note=note(row))

        history = simulate(
            problem, chosen, rounds=rounds, seed=seed, record=record, threads=threads, progress=progress,
            stop=Stop(grad_norm=target) if stop else None,
        )  # fmt: skip
    show([history], target)
    if history.stopped != "finished":
        print(f"The run stopped early: {history.stopped}.")
    if out:
        history.to_jsonl(out / "history.jsonl")
        history.to_csv(out / "history.csv")
    if out or report:
        publish([history], out, f"{chosen.title} on {problem.data.name}, {problem.N:,} clients", target, report)


def _sensible(
    problem: Any, methods: list[Any], *, rounds: int, record: int, seed: int, threads: int, target: float
) -> None:
    """Refuse before anything is shown or written."""
    import math

    from fedpage.engine import Simulation, check_whole
    from fedpage.types import InputError

    check_whole("--rounds", rounds, 0)
    check_whole("--record", record, 0)
    if not (math.isfinite(target) and target > 0):
        raise InputError(f"--target must be a finite number above 0, not {target!r}")
    for method in methods:
        Simulation(problem, method, seed=seed, threads=threads)


def compare(
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    methods: Annotated[
        str, typer.Option("--methods", help="Names with commas; fedpage:eta_l=0.01 sets a hyper-parameter.")
    ] = "fedpage,scaffold,fedavg",
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    partition_seed: PartitionSeedOption = 0,
    alpha: AlphaOption = None,
    weights: WeightsOption = "uniform",
    S: Annotated[
        int, typer.Option("--S", help="Clients that FedPAGE samples; methods without full rounds 2S, at most N.")
    ] = 10,
    K: Annotated[int, typer.Option("--K", help="Local steps.")] = 10,
    step: Annotated[float, typer.Option("--step", help="Effective step of every method.")] = 0.1,
    rounds: RoundsOption = 2000,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per method, with seeds 0, 1, ...")] = 3,
    record: RecordOption = 10,
    target: TargetOption = 1e-2,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory for histories, plot, report (default: a new one under runs/)."),
    ] = None,
    report: ReportOption = None,
    force: ForceOption = False,
) -> None:
    """Compare methods on equal terms: same effective step, same clients a round, same local work, same seeds."""
    from fedpage import specs
    from fedpage.types import InputError

    if seeds < 1 or jobs < 1:
        raise InputError(f"--seeds and --jobs must be at least 1, not {min(seeds, jobs)}")
    at_most("--seeds", seeds)
    jobs = min(jobs, os.cpu_count() or 1)  # more processes than cores only cost their start
    if S < 1 or K < 1:
        raise InputError(f"--S and --K must be at least 1, not {min(S, K)}")
    problem = specs.problem(specs.dataset(data), clients, objective, partition, alpha, weights, partition_seed)
    M = specs.typical_size(problem)
    if S > problem.N:
        raise InputError(f"cannot sample S={S} of N={problem.N} clients; choose --S of at most {problem.N}")
    chosen = [
        specs.method(text.strip(), N=problem.N, M=M, S=S, K=K, step=step) for text in methods.split(",") if text.strip()
    ]
    if not chosen:
        raise InputError(f"--methods {methods!r}: nothing to run; give at least one name")
    twins = [m.title for i, m in enumerate(chosen) if m in chosen[:i]]
    if twins:
        raise InputError(f"--methods {methods!r}: {twins[0]} is there twice with the same hyper-parameters")
    _sensible(problem, chosen, rounds=rounds, record=record, seed=0, threads=1, target=target)
    out = free(Path("runs") / "compare") if out is None else out
    writable(out, force, report)
    runs = sweep(problem, chosen, rounds, seeds, record, jobs)
    show(runs, target)
    keep(runs, out)
    title = f"{problem.title.capitalize()} on {problem.data.name}, {problem.N:,} clients, step {step:g}"
    publish(runs, out, title, target, report)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the report.")] = Path("demo-report"),
    rounds: RoundsOption = 3000,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per method.")] = 3,
    force: ForceOption = False,
) -> None:
    """FedPAGE, SCAFFOLD and FedAvg on the embedded census data: a table, a plot, a report."""
    from fedpage import specs
    from fedpage.types import InputError

    problem = specs.problem(specs.dataset("census"), 3250, "robust", "blocks")
    print(f"Robust linear regression on `census` (synthetic, {problem.data.rows:,} rows), {problem.N:,} clients.")
    chosen = [specs.method(m, N=problem.N, M=10, S=10, K=10, step=0.1) for m in ("fedpage", "scaffold", "fedavg")]
    if seeds < 1 or rounds < 1:
        raise InputError(f"--seeds and --rounds must be at least 1, not {min(seeds, rounds)}")
    at_most("--seeds", seeds)
    writable(out, force or out == Path("demo-report"))  # its own directory is written anew
    runs = sweep(problem, chosen, rounds, seeds, 10, 1)
    show(runs, 5e-3)
    keep(runs, out)
    publish(runs, out, "FedPAGE, SCAFFOLD and FedAvg on the synthetic census data, 3,250 clients", 5e-3)


def list_methods(
    name: Annotated[str | None, typer.Argument(help="Show only this method.")] = None,
) -> None:
    """Every method: hyper-parameters with their defaults, paper, and what its clients must remember."""
    from rich.table import Table

    from fedpage import specs
    from fedpage.methods import METHODS

    chosen: dict[str, Any] = dict(METHODS) if name is None else {name.lower(): specs.method_class(name)}
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
