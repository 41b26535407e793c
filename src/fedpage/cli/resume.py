"""`fedpage resume`: continue a run or a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import compare, run
from fedpage.cli.common import read_command
from fedpage.cli.options import JobsOption, ReportOption, ThreadsOption
from fedpage.cli.output import Document, with_json
from fedpage.cli.run_config import RunCommand
from fedpage.core.errors import InputError


@with_json
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
    threads: ThreadsOption = 1,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-every", help="Change the interval of checkpoints: 100 rounds, or 30s."
        ),
    ] = None,
    jobs: JobsOption = 1,
    report: ReportOption = None,
) -> Document:
    """Continue or extend a run or a comparison.

    The result is the same, bit for bit, as without the interruption, or as that of a longer run.
    """
    from fedpage.runs import toml

    path = directory / "compare.toml"
    if path.is_file():
        comparison = read_command(compare.CompareCommand, path)
        if rounds is not None:
            comparison = compare.extend(comparison, directory, rounds)
        return compare.execute(comparison, directory, jobs, report, resume=True)
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
    command = read_command(RunCommand, path)
    if rounds is not None:
        command = replace(command, run=replace(command.run, rounds=rounds))
    every = checkpoint_every or str(table.get("checkpoint_every", "10s"))
    command, prepared = run.prepare_run(command, threads, str(path))
    return run.execute(prepared, command, directory, every, report, resume=True)
