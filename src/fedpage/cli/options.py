"""Make commands of functions: options from configuration dataclasses, and `--json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import MISSING, Field, dataclass, field, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import typer
from typer.core import TyperCommand, TyperOption

from fedpage.core.columns import RecordEvery, Target
from fedpage.data.partition import usage
from fedpage.data.registry import DATASETS
from fedpage.engine.devices import Devices
from fedpage.methods import METHODS
from fedpage.problems import OBJECTIVES
from fedpage.problems.losses import REGULARISERS
from fedpage.runs.config import dataclass_fields, setting, structure

T = TypeVar("T", bound=Callable[..., Any])
Document: TypeAlias = dict[str, Any]
"""The results of a command, which `--json` prints."""
DEVICES_HELP = (
    "Simulate time on datacenter, cross-silo, phones or a CSV file; phones:deadline=10 sets an "
    "option."
)


@dataclass(frozen=True)
class RoundsConfig:
    """Describe the length of a run and what it records."""

    rounds: int = setting(2000, "Communication rounds.", at_least=0)
    record_every: Literal["log"] | int = setting(
        10, "Rounds between two records; 0: the end only; log: 1, 2, ..., 10, 12, 14, 17, 20, ...",
        at_least=0,
    )  # fmt: skip
    target: Target = field(
        default=Target(),
        metadata={"help": "Gradient norm that counts as reached, or column:value (loss:0.2)."},
    )
    devices: str | None = setting(None, DEVICES_HELP)


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


def read_devices(text: str | None) -> Devices | None:
    """Return the devices of `--devices`, if it is given."""
    return None if text is None else Devices.from_text(text)


METHOD: Any = typer.Argument(
    help="Name of a method (see `fedpage methods`), or file.py@Class.",
    autocompletion=lambda: list(METHODS),
)
Threads = Annotated[
    int, typer.Option("--threads", help="Threads; results do not depend on their number.")
]
Jobs = Annotated[int, typer.Option("--jobs", help="Processes that run in parallel.", min=1)]
Report = Annotated[
    Path | None, typer.Option("--report", help="Write the report to this HTML file too.")
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint-every", help="Rounds (100) or seconds (30s) between checkpoints in --out."
    ),
]
Faults = Annotated[
    Path | None,
    typer.Option(
        "--faults", help="TOML file that says which clients fail and how (docs/faults.md)."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Write into a directory that is not empty.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the results as JSON, and all else on stderr.")
]


# --- commands -------------------------------------------------------------------------------------

_COMPLETED: dict[str, Callable[[], list[str]]] = {
    "data": lambda: list(DATASETS),
    "objective": lambda: list(OBJECTIVES),
    "partition": lambda: usage().split(", "),
}
"""The names that an option takes, for the shell's completion."""
_IN_HELP: dict[str, Callable[[], str]] = {
    "{losses}": lambda: ", ".join(n for n, entry in OBJECTIVES.items() if entry.reg == "none"),
    "{regularisers}": lambda: ", ".join(f"-{name}" for name in REGULARISERS if name != "none"),
    "{partitions}": usage,
}
"""The registered names that replace a word of a help text."""
_HYPHEN = "\u2011"
"""A hyphen at which the help is not broken into lines, so that names such as by-id stay whole."""


class Failed(typer.Exit):
    """End a command with exit code 1 after its results."""

    def __init__(self, document: Document) -> None:
        super().__init__(1)
        self.document = document


class Command(TyperCommand):
    """A command whose help breaks no name into two lines."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # of click or of typer's copy of it
        """Print the help."""
        for option in self.params:
            if isinstance(option, TyperOption) and option.help:
                for word, names in _IN_HELP.items():
                    option.help = option.help.replace(word, names())
                option.help = option.help.replace("-", _HYPHEN)
        super().format_help(ctx, formatter)
        # typer escapes brackets for rich, which does not print this help
        formatter.buffer = [
            part.replace("\\[", "[").replace(_HYPHEN, "-") for part in formatter.buffer
        ]


def make_app(help: str = "") -> typer.Typer:
    """Return an app for one command, or a group of commands that has a help."""
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def command(
    app: typer.Typer, name: str, *, takes_hyper_parameters: bool = False
) -> Callable[[T], T]:
    """Return a decorator that adds a function to an app as a command.

    A parameter that is a configuration dataclass becomes one option for each of its fields, and the
    function is called with an instance that `structure` has checked. A function that returns a
    document gets the option `--json`. Then standard output has this document and nothing else: what
    the function prints otherwise goes to stderr.

    Args:
        app: The app.
        name: The command's name.
        takes_hyper_parameters: Whether words that are not options are left in the context.
    """
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    def register(function: T) -> T:
        add = app.command(
            name, cls=Command, context_settings=settings if takes_hyper_parameters else None
        )
        add(_with_options(function))
        return function

    return register


def _with_options(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function with the parameters that typer makes options and arguments of."""
    hints = get_type_hints(function, include_extras=True)
    groups = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    options = {name: list(map(_option, *_fields_of(cls))) for name, cls in groups.items()}
    parameters: list[Parameter] = []
    for parameter in signature(function).parameters.values():
        plain = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        parameters += options.get(parameter.name, [plain])
    if hints["return"] == Document:
        json_option = {"default": False, "annotation": Json}
        parameters.append(Parameter("as_json", Parameter.KEYWORD_ONLY, **json_option))

    def call(*, as_json: bool = False, **given: Any) -> None:
        for name, cls in groups.items():
            table = {option.name: given.pop(option.name) for option in options[name]}
            given[name] = structure(cls, table, "--")
        if not as_json:
            function(**given)
            return
        failure: Failed | None = None
        with redirect_stdout(sys.stderr):
            try:
                document = function(**given)
            except Failed as error:
                failure, document = error, error.document
        print(to_json(document))
        if failure is not None:
            raise failure

    call.__doc__ = function.__doc__
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _fields_of(cls: type[Any]) -> tuple[list[Field[Any]], list[Any]]:
    """Return the fields that are options, and their types."""
    hints = get_type_hints(cls, include_extras=True)
    found = [f for f in dataclass_fields(cls).values() if f.metadata.get("option", True)]
    return found, [hints[entry.name] for entry in found]


def _option(field: Field[Any], kind: Any) -> Parameter:
    """Return the parameter of a field. An annotated type says itself which option it is."""
    name, help = field.name.replace("_", "-"), field.metadata.get("help", "")
    is_choice = kind == bool | None  # neither is the default, so that both can be given
    names = f"--{name}/--no-{name}" if is_choice else f"--{name}"
    option = typer.Option(names, help=help, autocompletion=_COMPLETED.get(field.name))
    default = Parameter.empty if field.default is MISSING else field.default
    if get_origin(kind) is Literal:
        option.metavar, kind = f"[{'|'.join(get_args(kind))}]", str
    if kind == RecordEvery:
        option.metavar, option.parser, kind = "[INTEGER|log]", _number_or_word, str
    if hasattr(kind, "from_text"):
        kind, default = str, str(default)
    if get_origin(kind) is not Annotated:
        kind = Annotated[kind, option]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _number_or_word(text: str) -> int | str:
    """Convert a whole number; `structure` checks it and refuses other words."""
    try:
        return int(text)
    except ValueError:
        return text


def to_json(document: object) -> str:
    """Write a document as JSON; NaN and infinities become null, and unknown objects text."""
    text = msgspec.json.encode(document, enc_hook=_plain)
    return msgspec.json.format(text, indent=2).decode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if isinstance(value, np.generic) else str(value)
