"""`fedpage resume`: continue a run or a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import compare, options, run
from fedpage.cli.common import read_command
from fedpage.cli.options import Document
from fedpage.cli.run_config import RunCommand
from fedpage.core.errors import InputError
from fedpage.runs import toml

app = options.make_app()


@options.command(app, "resume")
def resume(
    directory: Annotated[
        Path, typer.Argument(help="The --out of a `fedpage run` or `fedpage compare`.")
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", help="Change the number of rounds: more extend a finished run.", min=1
        ),
    ] = None,
    threads: options.Threads = 1,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-every", help="Change the interval of checkpoints: 100 rounds, or 30s."
        ),
    ] = None,
    jobs: options.Jobs = 1,
    report: options.Report = None,
) -> Document:
    """Continue or extend a run or a comparison.

    The result is the same, bit for bit, as without the interruption, or as that of a longer run.
    """
    path = directory / "compare.toml"
    if path.is_file():
        comparison = read_command(compare.CompareCommand, path)
        if rounds is not None:
            comparison = compare.extend(comparison, directory, rounds)
        places = compare.CompareFiles(jobs=jobs, report=report)
        return compare.execute(comparison, directory, places, resume=True)
    path = directory / "run.toml"
    if not path.is_file():
        problem = "has no run in it" if directory.is_dir() else "is not a directory"
        raise InputError(
            f"{directory}: {problem}; give the --out of a `fedpage run` or `fedpage compare`"
        )
    table = toml.read(path)
    if "federation" in table.get("fingerprint", {}):
        raise InputError(f"{path}: a Flower run; start the same `flwr run` again to continue it")
    if "fingerprint" in table and "command" not in table:
        raise InputError(
            f"{path}: started from Python; continue it with "
            f"simulate(..., out={str(directory)!r}, options=RunOptions(resume=True))"
        )
    asked = read_command(RunCommand, path)
    if rounds is not None:
        asked = replace(asked, run=replace(asked.run, rounds=rounds))
    every = checkpoint_every or str(table.get("checkpoint_every", "10s"))
    files = run.RunFiles(threads=threads, out=directory, checkpoint_every=every, report=report)
    return run.execute(asked, files, source=str(path), resume=True)
