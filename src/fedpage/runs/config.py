"""Configuration: one dataclass a subject, and `structure`, which builds dataclasses from outside.

A field declared here is at once an option of the command line, a key of run.toml and a key of
Flower's run config. The module imports no numpy, so that `fedpage --help` is fast.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from fedpage.core.errors import InputError, did_you_mean, short_repr

T = TypeVar("T")
Table: TypeAlias = dict[str, Any]
"""Keys and values, as TOML has them."""
Kind: TypeAlias = Any
"""A type such as `int | None`, which Python cannot express as a type."""
AnyClass: TypeAlias = type[Any]
AnyField: TypeAlias = Field[Any]
_NONE_WORDS = ("none", "all", "default")
"""Words for None: an optional hyper-parameter at its default, or a minibatch of all rows."""
_BOOLEAN_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def setting(
    default: object = MISSING,
    help: str = "",
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    option: bool = True,
) -> Any:
    """Declare a field of a configuration dataclass.

    Args:
        default: its value where none is given; without one the field must be given.
        help: what it means, in a few words, for the command line.
        at_least: the smallest number that is accepted.
        above: the largest number that is too small.
        at_most: the largest number that is accepted.
        option: whether the command line has an option for it.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most}
    metadata = {"help": help, "option": option, "limits": limits}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DataConfig:
    """Describe data, how the columns of a table are used, and who holds which rows.

    What is None is chosen when the data is known (`build.settle`).
    """

    data: str = setting(
        "census",
        "Data set, or a file: .csv, .tsv, .parquet, .npz or LIBSVM; census:skew=1 changes a "
        "setting.",
    )
    label: str | None = setting(None, "Column of a table that holds the labels.")
    client_column: str | None = setting(
        None, "Column of a table that says whose row each is; every id is a client."
    )
    standardise: bool = setting(
        False, "Give the number columns of a table mean 0 and standard deviation 1."
    )
    missing: Literal["error", "drop", "mean"] = setting(
        "error", "Missing cells of a table: an error, drop the row, or fill in the column's mean."
    )
    drop: str = setting("", "Columns of a table to leave out, separated by commas.")
    categorical: str = setting(
        "", "Columns of a table that are categories although they hold numbers."
    )
    clients: int | None = setting(
        None, "Number of clients, N (default 3250, or the ids of the data).", at_least=1
    )
    partition: str | None = setting(
        None,
        "How clients divide the rows: {partitions} (default by-id:drop if the data has ids, else "
        "blocks).",
    )
    min_rows: int | None = setting(None, "The fewest rows that a client has.", at_least=0)
    partition_seed: int = setting(0, "Seed of a random partition, and of --held-out.")


@dataclass(frozen=True)
class ProblemConfig(DataConfig):
    """Describe an objective over data that is divided among clients."""

    objective: str | None = setting(
        None,
        "Loss: {losses}, or your own as file.py@Class; with a regulariser: {regularisers} after "
        "it, as in logistic-l2 (default robust; for tables logistic, softmax or squares, by their "
        "labels).",
    )
    alpha: float | None = setting(None, "Weight of an objective's regulariser (default 0.1).")
    intercept: bool | None = setting(
        None, "Whether the model has an intercept (default: for tables)."
    )
    weights: Literal["uniform", "size"] = setting(
        "uniform", "Weight of a client: uniform, as in the paper, or its size."
    )
    metrics: str = setting(
        "", "Metrics to record, separated by commas, such as accuracy; a target's is recorded too."
    )
    held_out: float = setting(
        0.0, "Share of the rows that no client gets, on which metrics are recorded too, as 0.2.",
        at_least=0, at_most=1,
    )  # fmt: skip
    held_out_by: Literal["rows", "clients"] = setting(
        "rows", "Hold out rows of every client, or all rows of some clients (with ids)."
    )


@dataclass(frozen=True)
class MethodConfig:
    """Describe a method: its name and the hyper-parameters that are given, as words."""

    name: str
    hyper: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Name a recorded column and the value that counts as reached."""

    column: str = "grad_norm"
    value: float = 1e-2

    def __post_init__(self) -> None:
        if self.column == "grad_norm" and not self.value > 0:
            raise InputError(f"a gradient norm must be above 0, not {self.value:g}")

    @classmethod
    def from_text(cls, text: str) -> Target:
        """Parse "accuracy:0.9", or "0.01", which is about the gradient norm.

        Raises:
            InputError: the value is not a finite number.

        >>> Target.from_text("accuracy:0.9"), str(Target.from_text("0.01"))
        (Target(column='accuracy', value=0.9), '0.01')
        """
        column, _, number = text.rpartition(":")
        try:
            value = _finite(float(number))
        except (ValueError, _Mismatch):
            raise InputError(
                "expected a finite number or column:number, such as 0.01 or accuracy:0.9, "
                f"not {short_repr(text)}"
            ) from None
        return cls(column.strip() or "grad_norm", value)

    def __str__(self) -> str:
        number = f"{self.value:g}"
        number = number if float(number) == self.value else repr(self.value)
        return number if self.column == "grad_norm" else f"{self.column}:{number}"


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


@dataclass(frozen=True)
class CompareConfig(RoundsConfig):
    """Describe a comparison: methods with the same effective step, clients and local work."""

    methods: str = setting(
        "fedpage,scaffold,fedavg", "Names with commas; fedpage:eta_l=0.01 sets a hyper-parameter."
    )
    S: int | None = setting(
        None,
        "Clients that FedPAGE samples; methods without full rounds sample 2S (default 10, or all "
        "if there are fewer).",
        at_least=1,
    )
    K: int = setting(10, "Local steps.", at_least=1)
    step: float = setting(0.1, "Effective step of every method.")
    cost: str = setting(
        "bytes", "Cost to the target: bytes, bits, bytes_up, clients, ..., or a sum: up+0.1*down."
    )
    seeds: int = setting(
        3, "Runs of each method, with consecutive seeds.", at_least=1, at_most=100_000
    )
    seed: int = setting(0, "The first seed.", at_least=0)


@dataclass(frozen=True)
class RunCommand:
    """Hold what `fedpage run` was given, as run.toml keeps it for `fedpage resume`."""

    method: MethodConfig
    problem: ProblemConfig
    run: RunConfig
    faults: Table | None = None
    """The content of the --faults file."""


@dataclass(frozen=True)
class CompareCommand:
    """Hold what `fedpage compare` was given, as compare.toml keeps it for `fedpage resume`."""

    problem: ProblemConfig
    compare: CompareConfig
    checkpoint_every: str
    faults: Table | None = None
    """The content of the --faults file."""


# --- from tables and words to dataclasses ---------------------------------------------------------


def structure(cls: type[T], table: object, where: str, *, words: bool = False) -> T:
    """Build a dataclass from a table of a TOML file, from Flower's run config or from words.

    Fields may be bool, int, float, str, Path, enums, Literal, Optional and other unions, lists,
    tuples, dictionaries with text keys, and dataclasses of these. A class with a classmethod
    `from_text` may be given as text. A key may have dashes where the field has underscores. A float
    may be written without a point, and must be finite.

    Args:
        cls: the dataclass.
        table: keys and values.
        where: the place that an error names, such as "run.toml, [command]", or "--" where the
            keys are options of the command line.
        words: values are text, as on a command line: "1" is a number, "true" a boolean, "a,b" a
            list, "all" None where the field is optional, and capitals in a key do not matter.

    Returns:
        An instance of `cls`.

    Raises:
        InputError: a key is unknown or missing, or a value has another type or is out of range.

    >>> @dataclass
    ... class Server:
    ...     port: int
    ...     name: str = "localhost"
    >>> structure(Server, {"port": 80}, "server.toml")
    Server(port=80, name='localhost')
    >>> structure(Server, {"prt": 80}, "server.toml")
    Traceback (most recent call last):
    fedpage.core.errors.InputError: server.toml: unknown key 'prt'; did you mean 'port'?
    """
    values = field_values(cls, table, where, words=words)
    for name, entry in dataclass_fields(cls).items():
        if name not in values and entry.default is MISSING and entry.default_factory is MISSING:
            raise InputError(f"{where}: {name.replace('_', '-')!r} is missing")
    try:
        return cls(**values)
    except InputError as error:
        named = where == "--" or str(error).startswith(where)
        raise InputError(str(error) if named else f"{where}: {error}") from None


def field_values(cls: AnyClass, table: object, where: str, *, words: bool = False) -> Table:
    """Convert the given values of a dataclass's fields, as `structure` does, and build nothing."""
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: must be a table of keys, not {short_repr(table)}")
    known = dataclass_fields(cls)
    kinds = field_types(cls)
    values: Table = {}
    for key, value in table.items():
        name = _field_name(key, known, words)
        if name is None:
            hint = did_you_mean(str(key), known) or f" known are {', '.join(known)}"
            raise InputError(f"{where}: unknown key {short_repr(key)};{hint}")
        if name in values:
            raise InputError(f"{where}: {name} is given twice")
        values[name] = _field_value(known[name], kinds[name], key, value, where, words)
    return values


def to_table(config: object) -> Table:
    """Convert a dataclass to a table for a TOML file, which `structure` reads; None is left out."""
    table = {}
    for entry in fields(config):  # type: ignore[arg-type]
        value = getattr(config, entry.name)
        if value is not None:
            table[entry.name] = to_table(value) if is_dataclass(value) else value
    return table


def dataclass_fields(cls: AnyClass) -> dict[str, AnyField]:
    """Return the fields of a dataclass that its constructor takes, by name."""
    return {entry.name: entry for entry in fields(cls) if entry.init}


def field_types(cls: AnyClass) -> Table:
    """Return the types of a dataclass's fields by name, with annotations in quotes resolved."""
    if cls not in _TYPES:
        hints = get_type_hints(cls)
        _TYPES[cls] = {name: hints[name] for name in dataclass_fields(cls)}
    return _TYPES[cls]


_TYPES: WeakKeyDictionary[AnyClass, Table] = WeakKeyDictionary()


def _origin(kind: Kind) -> object:
    """Return what a generic type is made of, such as list for list[int], or None."""
    return get_origin(kind)


class _Mismatch(Exception):
    """A value that is not of the wanted type."""


def _field_name(key: object, known: Mapping[str, object], words: bool) -> str | None:
    if not isinstance(key, str):
        return None
    name = key.replace("-", "_")
    if name in known or not words:
        return name if name in known else None
    return next((other for other in known if other.lower() == name.lower()), None)


def _field_value(
    entry: AnyField, kind: Kind, key: str, value: object, where: str, words: bool
) -> object:
    limits: Mapping[str, float | None] = entry.metadata.get("limits", {})
    place = f"--{key.replace('_', '-')}" if where == "--" else f"{where}: {key}"
    try:
        found = _convert(kind, value, f"{where}, [{key}]", words)
        if isinstance(found, (int, float)) and not _within(found, limits):
            raise _Mismatch
        return found
    except InputError as error:
        if not isinstance(value, (str, float)):
            raise
        colon = "" if str(error).startswith("must ") else ":"
        raise InputError(f"{place}{colon} {error}") from None
    except _Mismatch:
        wanted = _describe(kind) + _describe_limits(limits)
        hint = did_you_mean(value, _choices(kind)) if isinstance(value, str) else ""
        raise InputError(
            f"{place} must be {wanted}, not {short_repr(value)}{';' if hint else ''}{hint}"
        ) from None


def _convert(kind: Kind, value: object, where: str, words: bool) -> object:
    """Convert a value to a type, or raise _Mismatch; `where` is the place of a nested table."""
    origin, arguments = _origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where, words)
    if origin is Literal:
        return _choose({choice: choice for choice in arguments}, value)
    if origin in (list, tuple, Sequence):
        return _convert_items(origin, arguments, value, where, words)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _Mismatch
        return {key: _convert(arguments[1], item, where, words) for key, item in value.items()}
    if isinstance(kind, type) and hasattr(kind, "from_text") and isinstance(value, (str, float)):
        return kind.from_text(str(value))
    if is_dataclass(kind):
        return structure(kind, value, where, words=words)  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choose({member.value: member for member in kind}, value)
    if words and isinstance(value, str) and kind in (bool, int, float):
        value = _parse_word(kind, value)
    if kind is float:
        return _finite(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _Mismatch
    return value


def _convert_union(kinds: Sequence[Kind], value: object, where: str, words: bool) -> object:
    if type(None) in kinds and (
        value is None or (words and isinstance(value, str) and value.lower() in _NONE_WORDS)
    ):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _convert(kind, value, where, words)
            except _Mismatch:
                continue
    raise _Mismatch


def _convert_items(
    origin: Kind, kinds: Sequence[Kind], value: object, where: str, words: bool
) -> list[object] | tuple[object, ...]:
    if words and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, (list, tuple)):
        raise _Mismatch
    fixed = origin is tuple and kinds[-1] is not Ellipsis
    if fixed and len(kinds) != len(value):
        raise _Mismatch
    each = kinds if fixed else [kinds[0]] * len(value)
    items = [
        _convert(kind, item, f"{where} {number}", words)
        for number, (kind, item) in enumerate(zip(each, value, strict=True), start=1)
    ]
    return tuple(items) if origin is tuple else items


def _choose(choices: Mapping[object, object], value: object) -> object:
    for choice, found in choices.items():
        if type(choice) is type(value) and choice == value:
            return found
    raise _Mismatch


def _parse_word(kind: type, text: str) -> object:
    try:
        return _BOOLEAN_WORDS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise _Mismatch from None


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Mismatch
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        raise _Mismatch from None
    if not math.isfinite(number):
        raise _Mismatch
    return number


def _within(value: float, limits: Mapping[str, float | None]) -> bool:
    low, above, high = limits.get("at_least"), limits.get("above"), limits.get("at_most")
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
    )


def _describe_limits(limits: Mapping[str, float | None]) -> str:
    low, above, high = limits.get("at_least"), limits.get("above"), limits.get("at_most")
    if low is not None and high is not None:
        return f" from {low:,} to {high:,}"
    parts = [
        text
        for bound, text in (
            (low, f" of at least {low}"), (above, f" above {above}"), (high, f" of at most {high}"),
        )
        if bound is not None
    ]  # fmt: skip
    return " and".join(parts)


_NAMES = {
    bool: "true or false", int: "a whole number", float: "a finite number", str: "text",
    Path: "a path",
}  # fmt: skip
_PLURALS = {int: "whole numbers", float: "finite numbers", str: "words"}


def _describe(kind: Kind) -> str:
    """Name a type in the words of an error message."""
    origin, arguments = _origin(kind), get_args(kind)
    choices = _choices(kind)
    if choices:
        return " or ".join(repr(choice) for choice in choices)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(each) for each in arguments if each is not type(None))
    if origin in (list, tuple, Sequence):
        fixed = origin is tuple and arguments[-1] is not Ellipsis
        return (
            f"a list of {len(arguments)} " * fixed
            + "a list of " * (not fixed)
            + _PLURALS.get(arguments[0], "tables" if is_dataclass(arguments[0]) else "lists")
        )
    if origin in (dict, Mapping) or is_dataclass(kind):
        return "a table"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _choices(kind: Kind) -> list[str]:
    """Return the words among which a field chooses; none if it takes other values too."""
    if _origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if _origin(kind) in (Union, types.UnionType):
        members = [each for each in get_args(kind) if each is not type(None)]
        return _choices(members[0]) if len(members) == 1 else []
    return []
