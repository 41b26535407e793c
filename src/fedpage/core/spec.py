"""Registries of named entries, and the one parser of texts that name and configure an entry.

Codecs, schedules, optimisers, partitions, devices and aggregations share one grammar:

    name                        natural, iid, mean
    name:value:value            randk:0.1, dirichlet:0.3, cosine:0.1:200
    name:key=value,key=value    phones:deadline=10,seed=1
    first+second                randk:0.1+natural, momentum:0.9+clip:1
    wrapper(inner)              scaled(randk:0.1)

Colons and commas both separate arguments. A part without "=" that follows a key belongs to the
value of the key, so that values may be such texts themselves, as in fedpage:up=randk:0.1:K=5.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, TypeVar

from fedpage.core.errors import InputError, did_you_mean, short_repr

T = TypeVar("T")
E = TypeVar("E")


class UnknownName(InputError, KeyError):
    """Report a name that is not in a registry. It is a KeyError too, as for any mapping."""

    __str__ = ValueError.__str__  # a KeyError would quote its message


class Registry(dict[str, T]):
    """Map names to entries, such as methods, partitions or metrics.

    An entry registers itself where it is defined, so adding one touches one file. A lookup of an
    unknown name raises an InputError that suggests a known name.

    Args:
        noun: The kind of entries, for error messages, such as "partition".

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... def square(side):
    ...     return side * side
    >>> shapes["square"](3), list(shapes)
    (9, ['square'])
    >>> shapes["sqare"]
    Traceback (most recent call last):
    fedpage.core.spec.UnknownName: unknown shape 'sqare': did you mean 'square'? ...
    """

    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun = noun

    def register(self, name: str) -> Callable[[E], E]:
        """Return a decorator that adds a function or a class, and sets a class's `label` to `name`.

        Raises:
            InputError: The name is taken by another entry.
        """

        def decorate(entry: E) -> E:
            self.add(name, entry)  # type: ignore[arg-type]
            if hasattr(entry, "label"):
                entry.label = name
            return entry

        return decorate

    def add(self, name: str, entry: T) -> None:
        """Add an entry; raise an InputError if the name is taken by another one.

        A definition that is executed again, as in a notebook or a file that is imported twice,
        replaces its former entry.
        """
        if name in self and _origin(self[name]) != _origin(entry):
            raise InputError(f"{self.noun} {name!r} is registered already")
        self[name] = entry

    def __getitem__(self, name: str) -> T:
        try:
            return super().__getitem__(name)
        except (KeyError, TypeError):  # TypeError: the name cannot be a key at all
            raise UnknownName(self.unknown(name)) from None

    def unknown(self, name: object) -> str:
        """Write the message for a name that is not in the registry."""
        hint = did_you_mean(name, self) if isinstance(name, str) else ""
        return f"unknown {self.noun} {short_repr(name)}:{hint} known are {', '.join(self)}"

    def __repr__(self) -> str:
        return f"Registry({self.noun!r}: {', '.join(self)})"


def _origin(entry: object) -> object:
    """Return the module and the name of the definition of an entry, or the entry itself."""
    made = getattr(entry, "function", entry)
    name = getattr(made, "__qualname__", None)
    return entry if name is None else (made.__module__, name)


@dataclass(frozen=True)
class Spec:
    """The parts of a text: a name, values in order, and settings by key.

    Attributes:
        text: The text.
        name: The part before the first colon.
        values: The arguments without a key.
        settings: The arguments with a key.
    """

    text: str
    name: str
    values: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    def build(self, make: Callable[..., T], noun: str, **given: Any) -> T:
        """Call a function or a class with the arguments of the text.

        Values fill the parameters in order, settings by name. They are numbers, but text for
        parameters that are annotated as `str`.

        Args:
            make: The function or class.
            noun: The kind of result, for error messages, such as "codec".
            **given: Arguments that do not come from the text.

        Raises:
            InputError: An argument is missing, unknown or not a number.
        """
        known = [p for p in signature(make).parameters.values() if p.name not in given]
        names = [p.name for p in known]
        ordered = [p.name for p in known if p.kind is not Parameter.KEYWORD_ONLY]
        where = f"{noun} {short_repr(self.text)}"
        for key in self.settings:
            if key not in names:
                hint = did_you_mean(key, names) or f" known are {', '.join(names) or 'none'}"
                raise InputError(f"{where}: unknown {short_repr(key)};{hint}")
        texts = dict(zip(ordered, self.values, strict=False)) | self.settings
        is_text = {p.name for p in known if p.annotation in (str, "str")}
        arguments = {
            name: text if name in is_text else number(text) for name, text in texts.items()
        }
        missing = [p.name for p in known if p.default is Parameter.empty and p.name not in texts]
        if missing or len(self.values) > len(ordered) or None in arguments.values():
            form = ":".join([self.name, *(name.upper() for name in ordered)])
            raise InputError(f"{where}: write {form}{', with numbers' if ordered else ''}")
        return make(**given, **arguments)


def parse(text: str) -> Spec:
    """Split a text into a name, values and settings.

    Raises:
        InputError: An argument, a key or its value is empty, or a key is given twice.

    >>> parse("fedpage:up=randk:0.1:K=5").settings
    {'up': 'randk:0.1', 'K': '5'}
    >>> parse("cosine:0.1:200").values
    ('0.1', '200')
    """
    name, colon, rest = text.strip().partition(":")
    if colon and not rest:
        raise InputError(f"{short_repr(text)}: nothing follows the colon")
    values: list[str] = []
    settings: dict[str, str] = {}
    key = ""
    for separator, part in re.findall(r"(^|[:,])([^:,]*)", rest) if rest else ():
        word, equals, value = (piece.strip() for piece in part.partition("="))
        if equals:
            key = word
            if not key or not value or key in settings:
                raise InputError(f"{short_repr(text)}: expected key=value, each key once")
            settings[key] = value
        elif key:
            settings[key] += separator + word
        else:
            values.append(word)
    return Spec(text, name.strip(), tuple(values), settings)


def split_sum(text: str) -> list[str]:
    """Split "first+second" at its plus signs, but not within numbers such as 1e+3.

    >>> split_sum("momentum:0.9+clip:1e+3")
    ['momentum:0.9', 'clip:1e+3']
    """
    return [part.strip() for part in re.split(r"(?<![\d.][eE])\+", text)]


def split_wrapper(text: str) -> tuple[str, str]:
    """Split "wrapper(inner)" into the two names; the wrapper is "" if there is none.

    >>> split_wrapper("scaled(randk:12)"), split_wrapper("randk:12")
    (('scaled', 'randk:12'), ('', 'randk:12'))
    """
    match = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text)
    return (match[1], match[2]) if match else ("", text)


def number(text: str) -> int | float | None:
    """Convert to a number: an int for up to 18 digits, a float for others, None for words.

    >>> number("12"), number("0.1"), number("x")
    (12, 0.1, None)
    """
    try:
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else float(text)
    except ValueError:
        return None
