"""Parse the short texts that describe codecs, schedules, partitions, devices and the like.

One grammar serves them all:

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

        Values become the parameters in their order, settings become those of their name. All are
        numbers, except where a parameter is annotated as `str`.

        Args:
            make: The function or class.
            noun: What it makes, for error messages, such as "codec".
            **given: Arguments that do not come from the text.

        Raises:
            InputError: An argument is missing, unknown or not a number.
        """
        known = [p for p in signature(make).parameters.values() if p.name not in given]
        ordered = [p.name for p in known if p.kind is not Parameter.KEYWORD_ONLY]
        names = [*ordered, *(p.name for p in known if p.kind is Parameter.KEYWORD_ONLY)]
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
        InputError: A key or its value is empty, or a key is given twice.

    >>> parse("fedpage:up=randk:0.1:K=5").settings
    {'up': 'randk:0.1', 'K': '5'}
    >>> parse("cosine:0.1:200").values
    ('0.1', '200')
    """
    name, _, rest = text.strip().partition(":")
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
    """Split "first+second" at its plus signs, except those of numbers such as 1e+3.

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
