"""Options of the command line: derived from configuration dataclasses, and shared by commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from fedpage.runs.config import (
    AnyClass,
    AnyField,
    RoundsConfig,
    dataclass_fields,
    field_types,
    structure,
)


def _data_names() -> list[str]:
    from fedpage.data.registry import DATASETS

    return list(DATASETS)


def _method_names() -> list[str]:
    from fedpage.methods import METHODS

    return list(METHODS)


def _objective_names() -> list[str]:
    from fedpage.problems import OBJECTIVES

    return list(OBJECTIVES)


def _partition_names() -> list[str]:
    from fedpage.data.partition import usage

    return usage().split(", ")


_NAMES: dict[str, Callable[[], list[str]]] = {
    "data": _data_names,
    "objective": _objective_names,
    "partition": _partition_names,
}
"""The names that an option takes, for the shell's completion and for the help."""


class Command(TyperCommand):
    """A command whose help lists the registered names for `{objectives}` and `{partitions}`.

    The registries are imported when the help is printed, because importing them takes a second.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:  # of click or of typer's copy of it
        """Fill in the names and print the help."""
        for option in self.params:
            for name, names in _NAMES.items():
                placeholder = f"{{{name}s}}"
                if isinstance(option, TyperOption) and placeholder in (option.help or ""):
                    option.help = str(option.help).replace(placeholder, ", ".join(names()))
        super().format_help(ctx, formatter)
        # typer escapes brackets for rich, which does not print this help
        formatter.buffer = [part.replace("\\[", "[") for part in formatter.buffer]


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's dataclass parameters by one option for each of their fields.

    `def run(problem: ProblemConfig)` then takes `--data`, `--clients` and so on, and is called with
    a ProblemConfig that `structure` has checked. Field metadata gives the help texts.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, AnyClass] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            parameters.append(
                parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            )

    @wraps(command)
    def call(**given: Any) -> None:
        for name, cls in groups.items():
            table = {option.name: given.pop(option.name) for option in _options(cls)}
            given[name] = structure(cls, table, "--")
        command(**given)

    del call.__wrapped__  # typer would read the signature of the command itself
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(cls: AnyClass) -> list[Parameter]:
    kinds = field_types(cls)
    return [
        _option(field, kinds[name])
        for name, field in dataclass_fields(cls).items()
        if field.metadata.get("option", True)
    ]


def _option(field: AnyField, kind: Any) -> Parameter:
    option = typer.Option(
        f"--{field.name.replace('_', '-')}",
        help=field.metadata.get("help", ""),
        autocompletion=_NAMES.get(field.name),
    )
    if get_origin(kind) is Literal:
        option.metavar = f"[{'|'.join(get_args(kind))}]"
        kind = str
    default = Parameter.empty if field.default is MISSING else field.default
    if hasattr(kind, "from_text"):
        kind, default = str, str(default)
    return Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


MethodArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a method (see `fedpage methods`), or file.py@Class.",
        autocompletion=_method_names,
    ),
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", help="Threads; results do not depend on their number.")
]
JobsOption = Annotated[int, typer.Option("--jobs", help="Processes that run in parallel.", min=1)]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write the report to this HTML file too.")
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint-every", help="Rounds (100) or seconds (30s) between checkpoints in --out."
    ),
]
FaultsOption = Annotated[
    Path | None,
    typer.Option(
        "--faults", help="TOML file that says which clients fail and how (docs/faults.md)."
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option("--devices", help=str(dataclass_fields(RoundsConfig)["devices"].metadata["help"])),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Write into a directory that is not empty.")
]
