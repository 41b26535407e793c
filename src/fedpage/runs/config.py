"""Configuration: one dataclass a subject, and `structure`, which builds dataclasses from outside.

A field declared here is at once an option of the command line, a key of run.toml and a key of
Flower's run config. The module imports no numpy, so that `fedpage --help` is fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakKeyDictionary

import msgspec

from fedpage.core.errors import InputError, did_you_mean, short_repr

T = TypeVar("T")
_TYPES: WeakKeyDictionary[type[Any], Settings] = WeakKeyDictionary()
Settings: TypeAlias = dict[str, Any]
"""Keys and values, as TOML has them."""
_NONE_WORDS = ("none", "all", "default")
"""Words for None: an optional hyper-parameter at its default, or a minibatch of all rows."""


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
        default: The default; a field without one must be given.
        help: The meaning in a few words, for the command line.
        at_least: The smallest number that is accepted.
        above: A bound that a number must exceed.
        at_most: The largest number that is accepted.
        option: Whether the command line has an option for it.
    """
    limits = {"ge": at_least, "gt": above, "le": at_most}
    metadata = {"help": help, "option": option, "limits": limits}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DataConfig:
    """Describe data, how the columns of a table are used, and who holds which rows.

    What is None is chosen when the data is known (`build.open_problem`).
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
        "How clients divide the rows: {partitions}, or your own as file.py@name (default "
        "by-id:drop if the data has ids, else blocks).",
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
        "",
        "Metrics to record, separated by commas, such as accuracy, or your own as file.py@name; a "
        "target's is recorded too.",
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


# --- from tables and words to dataclasses ---------------------------------------------------------


def structure(cls: type[T], table: object, where: str, *, words: bool = False) -> T:
    """Build a dataclass from a TOML table, from Flower's run config or from words.

    msgspec converts the values. A nested dataclass is a table. A class with a classmethod
    `from_text` may be given as text. A key may have dashes where the field has underscores. A float
    may be written without a point, and must be finite.

    Args:
        cls: The dataclass.
        table: Keys and values.
        where: The place that an error names, such as "run.toml, [command]", or "--" if the keys
            are options of the command line.
        words: Whether values are text, as on a command line: "1" is a number, "true" a boolean,
            "a,b" a list, "all" None if the field is optional. Capitals in a key do not matter.

    Returns:
        An instance of `cls`.

    Raises:
        InputError: If a key is unknown or missing, or a value has another type or is out of range.

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
        is_named = where == "--" or str(error).startswith(where)
        raise InputError(str(error) if is_named else f"{where}: {error}") from None


def field_values(cls: type[Any], table: object, where: str, *, words: bool = False) -> Settings:
    """Convert the given values of a dataclass's fields as `structure` does, without building it."""
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: must be a table of keys, not {short_repr(table)}")
    known, kinds = dataclass_fields(cls), field_types(cls)
    spelling = {name.lower() if words else name: name for name in known}
    values: Settings = {}
    for key, value in table.items():
        name = str(key).replace("-", "_")
        name = name if name in known else spelling.get(name.lower() if words else name, "")
        if not name:
            hint = did_you_mean(str(key), known) or f" known are {', '.join(known)}"
            raise InputError(f"{where}: unknown key {short_repr(key)};{hint}")
        if name in values:
            raise InputError(f"{where}: {name} is given twice")
        place = f"--{key.replace('_', '-')}" if where == "--" else f"{where}: {key}"
        limits = known[name].metadata.get("limits", {})
        try:
            values[name] = _convert(kinds[name], value, f"{where}, [{key}]", words)
            if type(values[name]) in (int, float):
                msgspec.convert(values[name], Annotated[float, msgspec.Meta(**limits)])
        except msgspec.ValidationError:
            wanted = _describe(kinds[name], **limits)
            hint = did_you_mean(value, _choices(kinds[name])) if isinstance(value, str) else ""
            raise InputError(
                f"{place} must be {wanted}, not {short_repr(value)}{';' if hint else ''}{hint}"
            ) from None
        except InputError as error:
            if not isinstance(value, (str, float)):
                raise  # the error of a nested table names its place
            colon = "" if str(error).startswith("must ") else ":"
            raise InputError(f"{place}{colon} {error}") from None
    return values


def to_table(config: object) -> Settings:
    """Convert a dataclass to a table for a TOML file, which `structure` reads, without None."""
    return drop_none(asdict(config))  # type: ignore[call-overload]


def drop_none(table: Mapping[str, object]) -> Settings:
    """Return a copy of nested tables without the values that are None."""
    return {
        key: drop_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def dataclass_fields(cls: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that its constructor takes, by name."""
    return {entry.name: entry for entry in fields(cls) if entry.init}


def field_types(cls: type[Any]) -> Settings:
    """Return the types of a dataclass's fields by name, with annotations in quotes resolved."""
    if cls not in _TYPES:
        hints = get_type_hints(cls)
        _TYPES[cls] = {name: hints[name] for name in dataclass_fields(cls)}
    return _TYPES[cls]


def _members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself, without None."""
    is_union = get_origin(kind) in (Union, UnionType)
    return tuple(m for m in get_args(kind) if m is not NoneType) if is_union else (kind,)


def _convert(kind: Any, value: object, where: str, words: bool) -> object:
    """Convert a value to the first type of a union that takes it.

    Raises:
        msgspec.ValidationError: If no type takes the value.
        InputError: If a nested table or a text cannot be used; `where` is the table's place.
    """
    is_none_word = words and isinstance(value, str) and value.lower() in _NONE_WORDS
    if NoneType in get_args(kind) and (value is None or is_none_word):
        return None
    for member in _members(kind):
        if hasattr(member, "from_text") and isinstance(value, (str, float)):
            return member.from_text(str(value))
        if isinstance(member, type) and is_dataclass(member):
            return structure(member, value, where, words=words)
        items, (item, *_) = value, get_args(member) or (None,)
        if words and member is bool:
            items = {"yes": "true", "no": "false"}.get(str(value).lower(), value)
        if get_origin(member) in (list, tuple, Sequence):
            if words and isinstance(value, str):
                items = [part.strip() for part in value.split(",")]
            elif isinstance(value, list) and is_dataclass(item):
                items = [_convert(item, v, f"{where} {i}", words) for i, v in enumerate(value, 1)]
        with suppress(msgspec.ValidationError, UnicodeEncodeError):  # bytes that are not UTF-8
            found = msgspec.convert(items, member, strict=not words, dec_hook=_convert_path)
            if _is_finite(found):
                return found
    raise msgspec.ValidationError


def _convert_path(kind: type, value: object) -> object:
    return Path(value) if kind is Path and isinstance(value, str) else value


def _is_finite(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _describe(
    kind: Any, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> str:
    """Name a type and its limits in the words of an error message."""
    one = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    many = {int: "whole numbers", float: "finite numbers", str: "words"}
    names: list[str] = []
    for member in _members(kind):
        origin, arguments = get_origin(member), get_args(member)
        if choices := _choices(member):
            names += map(repr, choices)
        elif origin in (list, tuple, Sequence):
            count = f"{len(arguments)} " if origin is tuple and arguments[-1] is not ... else ""
            names.append(f"a list of {count}{many.get(arguments[0], 'tables')}")
        else:
            noun = "a table" if origin in (dict, Mapping) else getattr(member, "__name__", "")
            names.append(one.get(member, noun))
    if ge is not None and le is not None:
        return f"{' or '.join(names)} from {ge:,} to {le:,}"
    limits = {f" of at least {ge}": ge, f" above {gt}": gt, f" of at most {le}": le}
    return " or ".join(names) + " and".join(k for k, bound in limits.items() if bound is not None)


def _choices(kind: Any) -> list[str]:
    """Return the words among which a field chooses, or nothing if it takes other values too."""
    member, *others = _members(kind)
    if isinstance(member, type) and issubclass(member, Enum):
        return [] if others else [str(each.value) for each in member]
    is_choice = get_origin(member) is Literal and not others
    return list(map(str, get_args(member))) if is_choice else []
