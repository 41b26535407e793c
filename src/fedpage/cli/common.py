"""Helpers of several commands: check paths, parse hyper-parameters, handle signals."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.target import Target
from fedpage.runs.config import ProblemConfig, dataclass_fields, structure

if TYPE_CHECKING:
    from fedpage.core.types import AnyMethod, Problem
    from fedpage.engine.devices import Devices
    from fedpage.methods import MethodEntry

T = TypeVar("T")


def prepare_out(out: Path | None, force: bool, report: Path | None = None) -> None:
    """Create the output directory, and check before a run that it and the report can be written.

    Raises:
        InputError: a path cannot be written, or the directory is in use and `force` is False.
    """
    if report is not None:
        if report.is_dir():
            raise InputError(f"--report {report}: is a directory; give the name of an HTML file")
        _probe(report.parent, f"--report {report}")
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file, not a directory")
    if not force and any((out / name).is_file() for name in ("run.toml", "compare.toml")):
        raise InputError(
            f"--out {out}: there is a run in it; continue it with `fedpage resume {out}`, "
            "or start again with --force"
        )
    if not force and _has_files(out):
        raise InputError(
            f"--out {out}: is not empty; choose another directory, or --force to write into it"
        )
    _probe(out, f"--out {out}")


def _has_files(out: Path) -> bool:
    """Say whether a directory has more than what is left of a command that wrote nothing."""
    from fedpage.runs.lock import LOCK

    found = list(out.iterdir()) if out.is_dir() else []
    return any(
        path.name != LOCK and not (path.name == "checkpoints" and not any(path.iterdir()))
        for path in found
    )


def check_table(path: Path) -> None:
    """Check before a run that a table can be written.

    Raises:
        InputError: the suffix is unknown, or the path cannot be written.
    """
    from fedpage.report.tables import table_format

    if path.is_dir():
        raise InputError(f"--table {path}: is a directory; give the name of a file")
    table_format(path)
    _probe(path.parent, f"--table {path}")


def _probe(folder: Path, option: str) -> None:
    """Create a directory and a file in it, and remove the file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{option}: cannot be written ({why})") from None


def unused_path(path: Path) -> Path:
    """Return the first of path, path-2, path-3, ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def check_count(option: str, value: int, low: int = 1, high: int = 100_000) -> None:
    """Check a number of runs; the list of more than `high` would fill the memory.

    Raises:
        InputError: the value is not from `low` to `high`.
    """
    if not low <= value <= high:
        raise InputError(f"{option} must be at least {low} and at most {high:,}, not {value:,}")


def read_hyper_parameters(context: typer.Context, entry: MethodEntry) -> dict[str, str]:
    """Parse the words that are no options of the command, such as `--eta-g 0.1 --S=10`.

    Returns:
        The given hyper-parameters of the method, as words.

    Raises:
        InputError: a name is neither a hyper-parameter nor an option, or has no value.
    """
    from fedpage.methods import METHODS
    from fedpage.runs.build import parse_hyper_parameters

    options = [
        word for parameter in context.command.params for word in parameter.opts if word[:2] == "--"
    ]
    own = [f"--{name.replace('_', '-')}" for name in dataclass_fields(entry.cls)]
    found: dict[str, str] = {}
    words = list(context.args)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise InputError(f"unexpected {word!r}; hyper-parameters are given as --name value")
        option, equals, value = word.partition("=")
        if option.lower() not in (name.lower() for name in own):
            field = option[2:].replace("-", "_")
            variants = [
                name
                for name, other in METHODS.items()
                if METHODS.get(other.variant_of) == entry and field in other.hyper_parameters
            ]
            hint = did_you_mean(option, [*options, *own])
            if variants:
                hint = f" {' and '.join(variants)} has it;"
            raise InputError(
                f"{entry.label} has no hyper-parameter {option!r}:{hint} "
                f"{entry.label} has {', '.join(own)}"
            )
        if not equals:
            if not words or words[0].startswith("--"):
                raise InputError(f"option {option} needs a value; see `fedpage methods`")
            value = words.pop(0)
        name = option[2:].replace("-", "_")
        if name.lower() in (known.lower() for known in found):
            raise InputError(f"option {option} is given twice; give it once")
        found[name] = value
    parse_hyper_parameters(entry, found)
    return found


def absolute_path(text: str, separator: str = "") -> str:
    """Make a file's path absolute, so that a run can be resumed from another directory.

    Args:
        text: a path, or a name, which is returned as it is.
        separator: what ends the path, such as the @ of file.py@Class.
    """
    from fedpage.data.registry import DATASETS

    path, found, rest = text.rpartition(separator) if separator else (text, "", "")
    if not path or text.partition(":")[0] in DATASETS or not os.path.exists(path):
        return text
    return f"{Path(path).resolve()}{found}{rest}"


def with_absolute_paths(problem: ProblemConfig) -> ProblemConfig:
    """Make the paths of the data and of a user's loss, partition and metrics absolute."""

    def place(text: str | None) -> str | None:
        return None if text is None else absolute_path(text, "@")

    return replace(
        problem,
        data=absolute_path(problem.data),
        objective=place(problem.objective),
        partition=place(problem.partition),
        metrics=",".join(absolute_path(word.strip(), "@") for word in problem.metrics.split(",")),
    )


def absolute_devices(text: str | None) -> str | None:
    """Make the path in the value of `--devices` absolute; a profile is returned as it is."""
    path, is_file, rest = (text or "").partition(".csv")
    return f"{Path(path + is_file).resolve()}{rest}" if is_file else text


def read_devices(text: str | None) -> Devices | None:
    """Return the devices of `--devices`.

    Raises:
        InputError: the profile, the file or an option of it cannot be used.
    """
    from fedpage.engine.devices import Devices

    return None if text is None else Devices.from_text(text)


def check_target(problem: Problem, target: Target) -> None:
    """Check, before a run, that the column of a target will be recorded.

    Raises:
        InputError: the problem does not evaluate this column, or the value is above
            the metric's maximum.
    """
    import numpy as np

    from fedpage.core.metrics import METRICS

    columns = problem.evaluate(np.zeros(problem.d), 1)
    if target.column not in columns:
        hint = did_you_mean(target.column, [*columns, *METRICS])
        if target.column.startswith("held_out_") and getattr(problem, "held_out", None) is None:
            hint = " hold rows out, such as with --held-out 0.2;"
        raise InputError(
            f"--target {target}: no column {target.column!r} is recorded;{hint} "
            f"there are {', '.join(columns)}"
        )
    name = re.sub(r"^held_out_|_(worst|p\d+)$", "", target.column)
    if name in METRICS and target.value > METRICS[name].maximum:
        raise InputError(
            f"--target {target}: {name} is at most {METRICS[name].maximum:g}; "
            f"90 percent is {target.column}:0.9"
        )


def parse_cost(text: str) -> str:
    """Check the value of `--cost`, and return it in full, such as bytes_up+0.1*bytes_down.

    Raises:
        InputError: it is not a cost.
    """
    from fedpage.core.columns import Cost

    try:
        return Cost.parse(text).name
    except InputError as error:
        raise InputError(f"--cost: {error}") from None


def read_command(cls: type[T], path: Path) -> T:
    """Read what a command was given from its run.toml or compare.toml.

    Raises:
        InputError: the file is not one that this version has written, or was edited by hand.
    """
    from fedpage.runs import toml

    table = toml.read_settings(path)
    if not isinstance(table.get("command"), dict):
        raise InputError(f"{path}: not the settings of a run of this version of fedpage")
    return structure(cls, table["command"], f"{path}, [command]")


def check_runs(
    problem: Problem, methods: Sequence[AnyMethod], *, seed: int = 0, threads: int = 1
) -> None:
    """Check that each method can run on the problem, before anything is printed or written."""
    from fedpage.engine.simulate import Simulation
    from fedpage.runs.spec import RunOptions

    for method in methods:
        Simulation(problem, method, seed=seed, options=RunOptions(threads=threads))


@contextmanager
def handle_signals(out: Path | None, jobs: int = 1) -> Iterator[None]:
    """End the run after its round at Ctrl-C or SIGTERM, and immediately at a second signal.

    The run writes a checkpoint first. With several processes the first signal ends them
    immediately, and runs resume from their last checkpoints.
    """
    import signal

    from fedpage.callbacks.checkpointing import request_interrupt
    from fedpage.engine.loop import Interrupted

    if out is None:
        yield
        return
    signals = 0

    def stop(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        request_interrupt()
        if signals > 1 or jobs > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        done = str(error).partition(";")[0] or "interrupted"
        raise Interrupted(f"{done}; continue with `fedpage resume {out}`") from None
    finally:
        request_interrupt(False)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def explain_os_errors(out: Path | None, advice: str) -> Iterator[None]:
    """Say after an error of the file system, such as a full disk, how a command continues.

    What the store of a single run says about it is left out: that run belongs to the command.

    Args:
        out: The directory of the command; None: it writes none, and cannot continue.
        advice: How it continues.
    """
    try:
        yield
    except OSError as error:
        if out is None or isinstance(error, BrokenPipeError) or not error.errno:
            raise
        text = f"{os.strerror(error.errno)}; finished runs are safe: with that mended, {advice}"
        raise OSError(error.errno, text, str(out)) from None


@contextmanager
def continues(out: Path | None) -> Iterator[None]:
    """Say after Ctrl-C, or on a full disk, that the same command continues from a directory."""
    try:
        with explain_os_errors(out, "the same command continues"):
            yield
    except KeyboardInterrupt:
        if out is None:
            raise
        from fedpage.engine.loop import Interrupted

        raise Interrupted(
            f"interrupted; the same command continues with the finished runs in {out}"
        ) from None


@contextmanager
def follow(name: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show a progress bar from the first call of the function on, which updates it."""
    from fedpage.callbacks.progress import progress_bars

    bars = progress_bars()

    def update(done: int, total: int | None, note: str) -> None:
        if not bars.task_ids:
            bars.add_task(name, total=None)
            bars.start()
        bars.update(bars.task_ids[0], completed=done, total=total, note=note)

    try:
        yield update
    finally:
        if bars.task_ids:
            bars.stop()
