"""`fedpage demo`: a first comparison of methods."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli.common import check_count
from fedpage.cli.compare import CompareCommand, CompareConfig, execute
from fedpage.cli.options import ForceOption
from fedpage.cli.output import Document, with_json
from fedpage.core.target import Target
from fedpage.runs.config import ProblemConfig

_OUT = Path("demo-report")


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
    check_count("--seeds", seeds)
    check_count("--rounds", rounds, high=10_000_000)
    config = CompareConfig(
        methods="secantpage,fedpage,scaffold,fedavg",
        rounds=rounds,
        seeds=seeds,
        target=Target(value=5e-3),
    )
    command = CompareCommand(ProblemConfig(), config, checkpoint_every="10s")
    print("The embedded census data is synthetic.")
    document = execute(command, out, 1, None, force=force or out == _OUT)
    print("Next:")
    activate = Path(sys.executable).parent / "activate"
    if shutil.which("fedpage") is None and activate.is_file():
        if activate.is_relative_to(Path.cwd()):
            activate = activate.relative_to(Path.cwd())
        print(f"  . {activate}  # puts `fedpage` on the PATH")
    print(
        "  fedpage run secantpage --clients 325 --rounds 500 --out my-run\n"
        "  fedpage choose --clients 325 --target 0.02 --budget 1m  # the best method for a task\n"
        "  fedpage watch my-run  # in another terminal, while the run goes on\n"
        "  fedpage --help"
    )
    return document
