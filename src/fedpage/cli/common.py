"""Helpers of several commands: output directories, hyper-parameters, paths, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fedpage.callbacks.checkpointing import request_interrupt
from fedpage.callbacks.progress import progress_bars
from fedpage.core.errors import InputError, did_you_mean
from fedpage.data.registry import DATASETS
from fedpage.engine.loop import Interrupted
from fedpage.methods import METHODS, MethodEntry
from fedpage.runs import build, toml
from fedpage.runs.config import dataclass_fields, structure
from fedpage.runs.lock import LOCK, DirectoryLock

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
C = TypeVar("C", bound="DataclassInstance")
_PATHS = {"name", "data", "devices", "objective", "partition", "metrics"}
"""Settings that may be files."""


# --- directories and files ------------------------------------------------------------------------


def prepare_out(out: Path | None, force: bool, report: Path | None = None) -> None:
    """Create the output directory, and check before a run that it and the report can be written.

    Raises:
        InputError: A path cannot be written, or the directory is in use and `force` is False.
    """
    check_file("--report", report)
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
    """Return whether a directory has more than a command leaves that wrote nothing."""
    found = out.iterdir() if out.is_dir() else ()
    left = (path for path in found if path.name != LOCK)
    return any(path.name != "checkpoints" or any(path.iterdir()) for path in left)


def check_file(option: str, path: Path | None) -> None:
    """Check before a run that the file of an option can be written, if it is given.

    Raises:
        InputError: It is a directory, or its directory cannot be written.
    """
    if path is not None:
        if path.is_dir():
            raise InputError(f"{option} {path}: is a directory; give the name of a file")
        _probe(path.parent, f"{option} {path}")


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


@contextmanager
def write_search(out: Path, force: bool, report: Path | None) -> Iterator[None]:
    """Lock the directory of a search, which the same command continues.

    If the search is refused, a directory that was created for it is removed again.
    """
    missing = [path for path in (out, *out.parents) if not path.exists()]
    prepare_out(out, force or (out / "trials.jsonl").exists(), report)
    try:
        with DirectoryLock(out), continues(out):
            yield
    except InputError:
        if missing:
            (out / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # it has trials
            for path in missing:
                path.rmdir()
        raise


def read_command(cls: type[T], path: Path) -> T:
    """Read what a command was given from its run.toml or compare.toml.

    Raises:
        InputError: The file is not one that this version has written, or was edited by hand.
    """
    table = toml.read_settings(path)
    if not isinstance(table.get("command"), dict):
        raise InputError(f"{path}: not the settings of a run of this version of fedpage")
    return structure(cls, table["command"], f"{path}, [command]")


def with_absolute_paths(config: C) -> C:
    """Make paths in a configuration absolute, so that its run can be resumed from anywhere.

    They are the paths of data, of devices, and of a user's method, loss, partition and metrics.
    """
    changes: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            changes[field.name] = with_absolute_paths(value)
        elif value and field.name in _PATHS:
            words = value.split(",") if field.name == "metrics" else [value]
            changes[field.name] = ",".join(map(_absolute, words))
    return replace(config, **changes)


def _absolute(text: str) -> str:
    """Return data.csv, devices.csv:seed=1 or file.py@Class with an absolute path, if it exists."""
    if text.partition(":")[0] in DATASETS:
        return text
    for path in (text, text.rpartition("@")[0], f"{text.partition('.csv')[0]}.csv"):
        if path and os.path.exists(path.strip()):
            return f"{Path(path.strip()).resolve()}{text.removeprefix(path)}"
    return text


# --- methods --------------------------------------------------------------------------------------


def read_hyper_parameters(context: typer.Context, entry: MethodEntry) -> dict[str, str]:
    """Parse the words that are not options of the command, such as `--eta-g 0.1 --S=10`.

    Returns:
        The given hyper-parameters of the method, as words.

    Raises:
        InputError: A name is neither a hyper-parameter nor an option, or a value cannot be used.
    """
    own = {f"--{name.replace('_', '-')}": name for name in dataclass_fields(entry.cls)}
    spelling = {option.lower(): name for option, name in own.items()}
    found: dict[str, str] = {}
    words = list(context.args)
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("--") or len(option) < 3:
            raise InputError(f"unexpected {word!r}; hyper-parameters are given as --name value")
        name = spelling.get(option.lower().replace("_", "-"))
        if name is None:
            field = option[2:].replace("-", "_")
            variants = [
                variant
                for variant, other in METHODS.items()
                if METHODS.get(other.variant_of) == entry and field in other.hyper_parameters
            ]
            options = [opt for parameter in context.command.params for opt in parameter.opts]
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
        if name in found:
            raise InputError(f"option {option} is given twice; give it once")
        found[name] = value
    build.parse_hyper_parameters(entry, found)
    return found


def split_methods(text: str) -> list[str]:
    """Return the words of `--methods`.

    Raises:
        InputError: There is none.
    """
    names = [name for word in text.split(",") if (name := word.strip())]
    if not names:
        raise InputError(f"--methods {text!r}: no method is named; give at least one")
    return names


# --- progress and interruptions -------------------------------------------------------------------


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr, from the first call of the function that the block gets.

    Its arguments are the number of steps done, the total if it is known, and a note.
    """
    bars = progress_bars()
    task = bars.add_task(name, total=None)

    def show(done: int, total: int | None = None, note: str = "") -> None:
        bars.start()
        bars.update(task, completed=done, total=total or None, note=note)

    try:
        yield show
    finally:
        if bars.live.is_started:
            bars.stop()


@contextmanager
def handle_signals(out: Path | None, jobs: int = 1) -> Iterator[None]:
    """End the run after its round at Ctrl-C or SIGTERM, and immediately at a second signal.

    The run writes a checkpoint first. With several processes the first signal ends them
    immediately, and runs resume from their last checkpoints.
    """
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
def continues(out: Path, advice: str = "the same command continues") -> Iterator[None]:
    """Explain after Ctrl-C, or an error such as a full disk, how to continue a command.

    The advice of the store of a single run is left out, because the run belongs to the command.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {advice} with the finished runs in {out}") from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.errno:
            raise
        text = f"{os.strerror(error.errno)}; finished runs are safe: with that mended, {advice}"
        raise OSError(error.errno, text, str(out)) from None
