"""Options of the command line: derived from configuration dataclasses, and shared by commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from fedpage.core.columns import RecordEvery
from fedpage.core.target import Target
from fedpage.runs.config import dataclass_fields, field_types, setting, structure

T = TypeVar("T")


@dataclass(frozen=True)
class RoundsConfig:
    """Describe how long a run takes and what is recorded of it."""

    rounds: int = setting(2000, "Communication rounds.", at_least=0)
    record_every: Literal["log"] | int = setting(
        10, "Rounds between two records; 0: the end only; log: 1, 2, ..., 10, 12, 14, 17, 20, ...",
        at_least=0,
    )  # fmt: skip
    target: Target = field(
        default=Target(),
        metadata={"help": "Gradient norm that counts as reached, or column:value (loss:0.2)."},
    )
    devices: str | None = setting(
        None,
        "Simulate time on datacenter, cross-silo, phones or a CSV file; phones:deadline=10 sets "
        "an option.",
    )


@dataclass(frozen=True)
class RunConfig(RoundsConfig):
    """Describe a run of one method."""

    seed: int = setting(0, "Seed of all random numbers; equal seeds give equal bits.")
    stop: bool = setting(False, "End the run as soon as the target is reached.")
    steps: Literal["given", "theory"] = setting(
        "given", "Step sizes: given, or theory for those of the method's theorem."
    )
    aggregation: str = setting(
        "mean",
        "How replies are combined: mean, trimmed:share=0.1, clipped:bound=1, secure:bound=100, "
        "or private:clip=0.1,noise=1",
    )


def _data_names() -> list[str]:
    from fedpage.data.registry import DATASETS

    return list(DATASETS)


def method_names() -> list[str]:
    """Return the names of the methods, for the shell's completion."""
    from fedpage.methods import METHODS

    return list(METHODS)


def _objective_names() -> list[str]:
    from fedpage.problems import OBJECTIVES

    return list(OBJECTIVES)


def _partition_names() -> list[str]:
    from fedpage.data.partition import usage

    return usage().split(", ")


def _loss_names() -> list[str]:
    from fedpage.problems import OBJECTIVES

    return [name for name, entry in OBJECTIVES.items() if entry.reg == "none"]


def _regulariser_names() -> list[str]:
    from fedpage.problems.losses import REGULARISERS

    return [f"-{name}" for name in REGULARISERS if name != "none"]


_NAMES: dict[str, Callable[[], list[str]]] = {
    "data": _data_names,
    "objective": _objective_names,
    "partition": _partition_names,
}
"""The names that an option takes, for the shell's completion."""
_IN_HELP: dict[str, Callable[[], list[str]]] = {
    "{losses}": _loss_names,
    "{regularisers}": _regulariser_names,
    "{partitions}": _partition_names,
}
"""The names that replace a word of a help text."""
_HYPHEN = "\u2011"
"""A hyphen at which the help is not broken into lines, so that names such as by-id stay whole."""


class Command(TyperCommand):
    """A command whose help lists the registered names for words such as `{partitions}`.

    The registries are imported when the help is printed, because importing them takes a second.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:  # of click or of typer's copy of it
        """Fill in the names and print the help."""
        for option in self.params:
            if not isinstance(option, TyperOption) or not option.help:
                continue
            for placeholder, names in _IN_HELP.items():
                if placeholder in option.help:
                    option.help = option.help.replace(placeholder, ", ".join(names()))
            option.help = option.help.replace("-", _HYPHEN)
        super().format_help(ctx, formatter)
        # typer escapes brackets for rich, which does not print this help
        formatter.buffer = [
            part.replace("\\[", "[").replace(_HYPHEN, "-") for part in formatter.buffer
        ]


def with_config_options(command: Callable[..., T]) -> Callable[..., T]:
    """Replace a command's dataclass parameters by one option for each of their fields.

    `def run(problem: ProblemConfig)` then takes `--data`, `--clients` and so on, and is called with
    a ProblemConfig that `structure` has checked. Field metadata gives the help texts.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {
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
    def call(**given: Any) -> T:
        for name, cls in groups.items():
            table = {option.name: given.pop(option.name) for option in _options(cls)}
            given[name] = structure(cls, table, "--")
        return command(**given)

    del call.__wrapped__  # typer would read the signature of the command itself
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(cls: type[Any]) -> list[Parameter]:
    kinds = field_types(cls)
    return [
        _option(field, kinds[name])
        for name, field in dataclass_fields(cls).items()
        if field.metadata.get("option", True)
    ]


def _option(field: Field[Any], kind: Any) -> Parameter:
    name = field.name.replace("_", "-")
    is_choice = kind == bool | None  # neither is the default, so that both can be given
    option = typer.Option(
        f"--{name}/--no-{name}" if is_choice else f"--{name}",
        help=field.metadata.get("help", ""),
        autocompletion=_NAMES.get(field.name),
    )
    if get_origin(kind) is Literal:
        option.metavar = f"[{'|'.join(get_args(kind))}]"
        kind = str
    if kind == RecordEvery:
        option.metavar, option.parser, kind = "[INTEGER|log]", _number_or_word, str
    default = Parameter.empty if field.default is MISSING else field.default
    if hasattr(kind, "from_text"):
        kind, default = str, str(default)
    return Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _number_or_word(text: str) -> int | str:
    """Convert a whole number; `structure` checks it and refuses other words."""
    try:
        return int(text)
    except ValueError:
        return text


MethodArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a method (see `fedpage methods`), or file.py@Class.",
        autocompletion=method_names,
    ),
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", help="Threads; results do not depend on their number.")
]
JobsOption = Annotated[int, typer.Option("--jobs", help="Processes that run in parallel.", min=1)]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write the report to this HTML file too.")
]
FigureOption = Annotated[
    Path | None,
    typer.Option("--figure", help="Draw the curves into this file too: .pdf, .svg, .pgf or .png."),
]
FigureCostOption = Annotated[
    str | None,
    typer.Option(
        "--x", help="Horizontal axis of --figure, such as bytes or contacts (default: --cost)."
    ),
]
FigureWidthOption = Annotated[
    str,
    typer.Option(
        "--figure-width",
        help="Width of --figure: a column (3.5 in) or a page (7.16 in) of a paper, or larger.",
        metavar="[single|double|screen]",
    ),
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
CodecsOption = Annotated[
    bool | None,
    typer.Option(
        "--codecs/--no-codecs",
        help="Search codecs too (default: if bytes, bits or simulated time count).",
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Write into a directory that is not empty.")
]
