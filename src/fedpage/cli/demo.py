"""`fedpage demo`: a first comparison of methods."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import options
from fedpage.cli.compare import CompareCommand, CompareConfig, CompareFiles, execute
from fedpage.cli.options import Document
from fedpage.core.columns import Target
from fedpage.runs.config import ProblemConfig, setting

app = options.make_app()
_OUT = Path("demo-report")


@dataclass(frozen=True)
class DemoConfig:
    """Describe how long the demo takes."""

    rounds: int = setting(3000, "Communication rounds.", at_least=1, at_most=10_000_000)
    seeds: int = setting(3, "Runs of each method.", at_least=1, at_most=100_000)


@options.command(app, "demo")
def demo(
    config: DemoConfig,
    out: Annotated[Path, typer.Option("--out", help="Directory for the report.")] = _OUT,
    force: options.Force = False,
) -> Document:
    """Compare four methods on the embedded census data.

    SecantPAGE, FedPAGE, SCAFFOLD and FedAvg run; a table and a report show the results.
    """
    methods = "secantpage,fedpage,scaffold,fedavg"
    compared = CompareConfig(methods=methods, target=Target(value=5e-3), **vars(config))
    asked = CompareCommand(ProblemConfig(), compared, checkpoint_every="10s")
    print("The embedded census data is synthetic.")
    document = execute(asked, out, CompareFiles(force=force or out == _OUT))
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
