"""Files with the settings of a run, which `fedpage run --config` takes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from fedpage.cli.common import with_absolute_paths
from fedpage.cli.options import RunConfig
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import AnyMethod
from fedpage.runs import build, toml
from fedpage.runs.config import (
    MethodConfig,
    ProblemConfig,
    Settings,
    dataclass_fields,
    drop_none,
    structure,
    to_table,
)

_TABLES = ("method", "problem", "run", "faults")
OWNERS = dict.fromkeys(dataclass_fields(ProblemConfig), "problem")
OWNERS |= dict.fromkeys(dataclass_fields(RunConfig), "run")
"""The table of each setting that --set may name without its table."""


@dataclass(frozen=True)
class RunCommand:
    """The settings of `fedpage run`, as run.toml keeps them for `fedpage resume`."""

    method: MethodConfig
    problem: ProblemConfig
    run: RunConfig
    faults: Settings | None = None
    """The content of the --faults file."""


def read_run_command(path: Path, changes: Sequence[str]) -> RunCommand:
    """Read the settings of a run from a run.toml, or from a file with the same tables.

    Args:
        path: The file, or the directory of a run. The tables [method], [problem], [run] and
            [faults] are below [command], as in run.toml, or at the top. [method] has the name, and
            hyper-parameters beside it or in [method.hyper].
        changes: The values of --set, such as "run.rounds=4000", "rounds=4000" or "S=20".

    Returns:
        The command; it is not checked that data and method exist.

    Raises:
        InputError: The file or a change cannot be used.
    """
    path = path / "run.toml" if path.is_dir() else path
    table = toml.read(path)
    if "fingerprint" in table and "command" not in table:
        raise InputError(
            f"{path}: of a run that was not started by `fedpage run`; it has no [command]"
        )
    if isinstance(table.get("command"), Mapping):
        table = table["command"]
        if "compare" in table:
            raise InputError(f"{path}: of a comparison; --config takes the run.toml of a run")
    for name in ("method", "problem", "run"):
        if not isinstance(table.setdefault(name, {}), dict):
            raise InputError(f"{path}: {name} must be a table, [{name}]")
    source = f"{path} with --set" if changes else str(path)
    name = table["method"].pop("name", None)
    hyper = table["method"].pop("hyper", {})
    if not isinstance(hyper, Mapping):
        raise InputError(f"{source}: method.hyper must be a table, [method.hyper]")
    table["method"] = {"name": name, "hyper": {**hyper, **table["method"]}}
    toml.apply_changes(table, [_full_key(change, name) for change in changes])
    words = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in table["method"]["hyper"].items()
    }
    table["method"] = {**table["method"], "hyper": words}
    return structure(RunCommand, drop_none(table), source)


def _full_key(change: str, method: object) -> str:
    """Add the table to a change of --set: `rounds=5` is about run.rounds, `S=5` about the method.

    Raises:
        InputError: There is no such setting.
    """
    key, equals, value = change.partition("=")
    first, dot, rest = key.strip().replace("-", "_").partition(".")
    if first == "method" and rest.partition(".")[0] not in ("", "name", "hyper"):
        return f"method.hyper.{rest}{equals}{value}"
    if first in _TABLES or not (first and equals):
        return change
    if first in OWNERS:
        return f"{OWNERS[first]}.{first}{dot}{rest}={value}"
    hyper = dataclass_fields(build.find_method(method).cls) if isinstance(method, str) else {}
    for name in hyper:
        if name.lower() == first.lower() and not dot:
            return f"method.hyper.{name}={value}"
    hint = did_you_mean(first, [*OWNERS, *hyper, *_TABLES]) or " for example rounds or method.name"
    raise InputError(f"--set {change}: there is no such setting;{hint}")


def write_run_command(
    path: Path, name: str, method: AnyMethod, problem: ProblemConfig, run: RunConfig
) -> str:
    """Write a file for `fedpage run --config`, and return the command that takes it."""
    command = RunCommand(MethodConfig(name, build.hyper_words(method)), problem, run)
    path.write_text(toml.dumps(to_table(with_absolute_paths(command))), encoding="utf-8")
    return shlex.join(["fedpage", "run", "--config", str(path)])


def check_no_settings(context: typer.Context, settings: Collection[str], advice: str) -> None:
    """Refuse options that the file of --config sets, by the names of their parameters."""
    given = [word for word in context.args if word.startswith("-")]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given += [parameter.opts[0]] if name in settings else []
            given += [context.params[name]] if name == "method" else []
    if given:
        raise InputError(f"{given[0]} cannot be given with --config; {advice}")
