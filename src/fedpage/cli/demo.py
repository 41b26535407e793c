"""`fedpage demo`: a first comparison of methods."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli.common import check_count, prepare_out
from fedpage.cli.options import ForceOption
from fedpage.cli.output import (
    Document,
    describe_runs,
    print_summary,
    with_json,
    write_reports,
)
from fedpage.cli.sweep import sweep
from fedpage.core.target import Target
from fedpage.runs.config import ProblemConfig

_OUT = Path("demo-report")
_TARGET = Target(value=5e-3)


@with_json
def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the report.")] = _OUT,
    rounds: Annotated[int, typer.Option("--rounds", help="Communication rounds.")] = 3000,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each method.")] = 3,
    force: ForceOption = False,
) -> Document:
    """Compare four methods on the embedded census data.

    SecantPAGE, FedPAGE, SCAFFOLD and FedAvg run; a table and a report show the results.
    """
    from fedpage.runs import build
    from fedpage.runs.lock import DirectoryLock
    from fedpage.studies.sweep import run_names

    check_count("--seeds", seeds)
    check_count("--rounds", rounds, high=10_000_000)
    problem = build.build_problem(ProblemConfig())
    print(
        f"Robust regression on synthetic census data: {problem.data.rows:,} rows, "
        f"{problem.N:,} clients."
    )
    methods = [
        build.build_fair_method(name, N=problem.N, M=10, S=10, K=10, step=0.1)
        for name in ("secantpage", "fedpage", "scaffold", "fedavg")
    ]
    prepare_out(out, force or out == _OUT)  # its own directory is written again
    with DirectoryLock(out) as lock:
        lock.clear("runs")
        runs = sweep(
            problem, methods, rounds=rounds, seeds=range(seeds), record_every=10, out=out / "runs"
        )
    print_summary(runs, _TARGET)
    title = "SecantPAGE, FedPAGE, SCAFFOLD and FedAvg on synthetic census data"
    names = run_names(methods, range(seeds))
    write_reports(
        runs, out, title, _TARGET,
        command=f"fedpage demo --rounds {rounds} --seeds {seeds}",
        folders=[out / "runs" / name for name in names],
    )  # fmt: skip
    print(_next_steps())
    return {**describe_runs(runs, _TARGET), "out": out}


def _next_steps() -> str:
    """Write the commands to type next, such that they work in the shell that ran the demo."""
    activate = Path(sys.executable).parent / "activate"
    lines = ["Next:"]
    if shutil.which("fedpage") is None and activate.is_file():
        if activate.is_relative_to(Path.cwd()):
            activate = activate.relative_to(Path.cwd())
        lines.append(f"  . {activate}  # puts `fedpage` on the PATH")
    lines += [
        "  fedpage run secantpage --clients 325 --rounds 500 --out my-run",
        "  fedpage choose --clients 325 --target 0.02 --budget 1m  # the best method for a task",
        "  fedpage watch my-run  # in another terminal, while the run goes on",
        "  fedpage --help",
    ]
    return "\n".join(lines)
