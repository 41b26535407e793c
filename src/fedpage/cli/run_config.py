"""Read the settings of `fedpage run` from a file: --config and --set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from fedpage.cli.options import RunConfig
from fedpage.core.errors import InputError, did_you_mean
from fedpage.runs.config import (
    MethodConfig,
    ProblemConfig,
    Settings,
    dataclass_fields,
    structure,
)

_TABLES = ("method", "problem", "run", "faults")


@dataclass(frozen=True)
class RunCommand:
    """The settings of `fedpage run`, as run.toml keeps them for `fedpage resume`."""

    method: MethodConfig
    problem: ProblemConfig
    run: RunConfig
    faults: Settings | None = None
    """The content of the --faults file."""


def read_run_command(path: Path, changes: Sequence[str]) -> RunCommand:
    """Read what `fedpage run` was given from a run.toml, or from a file with the same tables.

    Args:
        path: The file, or the directory of a run. The tables [method], [problem], [run] and
            [faults] are below [command], as in run.toml, or at the top. [method] has the name, and
            hyper-parameters beside it or in [method.hyper].
        changes: What --set was given, such as "run.rounds=4000" or "rounds=4000".

    Returns:
        The command; it is not checked that data and method exist.

    Raises:
        InputError: The file or a change cannot be used.
    """
    from fedpage.runs import toml

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
    source = str(path)
    for change in changes:
        _change(table, change)
        source = f"{path} with --set"
    table["method"] = _sort_hyper_parameters(table["method"], source)
    return structure(RunCommand, table, source)


def _sort_hyper_parameters(method: Settings, source: str) -> Settings:
    """Move hyper-parameters into [method.hyper], as words, which MethodConfig has."""
    hyper = method.get("hyper", {})
    if not isinstance(hyper, Mapping):
        raise InputError(f"{source}: method.hyper must be a table, [method.hyper]")
    beside = {key: value for key, value in method.items() if key not in ("name", "hyper")}
    words = {key: _word(value) for key, value in {**hyper, **beside}.items()}
    return {key: method[key] for key in method if key == "name"} | {"hyper": words}


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _change(table: Settings, change: str) -> None:
    """Set a key of the settings to a value that is written as in TOML."""
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise InputError(f"--set {change!r}: expected KEY=VALUE, such as rounds=4000")
    *tables, name = _full_key(key, table).split(".")
    place = table
    for part in tables:
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {key}: {part} is a value, not a table")
        place = inner
    place[name.replace("-", "_")] = _parse_value(text.strip())


def _full_key(key: str, table: Settings) -> str:
    """Return a key with the table that it belongs to; `rounds` stands for `run.rounds`."""
    first, dot, rest = key.partition(".")
    if first in _TABLES:
        in_hyper = first == "method" and dot and rest.partition(".")[0] not in ("name", "hyper")
        return f"method.hyper.{rest}" if in_hyper else key
    owners = {
        name: owner
        for owner, cls in (("problem", ProblemConfig), ("run", RunConfig))
        for name in dataclass_fields(cls)
    }
    name = first.replace("-", "_")
    if name in owners:
        return f"{owners[name]}.{name}{dot}{rest}"
    hyper = _hyper_parameters(table)
    matches = [each for each in hyper if each.lower() == name.lower()]
    if matches and not dot:
        return f"method.hyper.{matches[0]}"
    hint = did_you_mean(name, [*owners, *hyper, *_TABLES]) or " for example rounds or method.name"
    raise InputError(f"--set {key}: there is no such setting;{hint}")


def _hyper_parameters(table: Settings) -> list[str]:
    """Return the hyper-parameters of the method that the settings name."""
    from fedpage.runs.build import find_method

    name = table["method"].get("name")
    return list(dataclass_fields(find_method(name).cls)) if isinstance(name, str) else []


def _parse_value(text: str) -> object:
    """Parse a value of TOML; other words are text, so that data=a9a needs no quotes."""
    from fedpage.runs import toml

    try:
        table = toml.loads(f"value = {text}", "")
    except InputError:
        return text
    return table["value"] if set(table) == {"value"} else text


def check_no_settings(context: typer.Context) -> None:
    """Refuse options that set what the file of --config sets.

    Raises:
        InputError: One is given; --set changes a setting of the file.
    """
    settings = {*dataclass_fields(ProblemConfig), *dataclass_fields(RunConfig), "faults"}
    words = list(context.args)
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if name == "method" and context.params[name].startswith("-"):
            words.append(context.params[name])  # a hyper-parameter, which is no option to click
        elif name == "method":
            raise InputError(
                "--config names the method; leave out the argument, or use --set method.name=NAME"
            )
        elif name in settings:
            words.append(parameter.opts[0])
    given = [word for word in words if word.startswith("-")] or words
    if given:
        name = given[0].lstrip("-").partition("=")[0].replace("-", "_")
        raise InputError(f"{given[0]}: cannot be given with --config; use --set {name}=VALUE")
