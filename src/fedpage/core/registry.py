"""Registries: tables of named entries that are filled by a decorator where an entry is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar, overload

from fedpage.core.errors import InputError, did_you_mean, short_repr

T = TypeVar("T")
E = TypeVar("E")
D = TypeVar("D")


class UnknownName(InputError, KeyError):
    """Report a name that is not in a registry. It is a KeyError too, as for any mapping."""

    __str__ = ValueError.__str__  # a KeyError would quote its message


class Registry(Mapping[str, T], Generic[T]):
    """Map names to entries, such as methods, partitions or metrics.

    An entry registers itself where it is defined, so adding one touches one file. A lookup of an
    unknown name raises an InputError that suggests a known name.

    Args:
        noun: what the entries are, for error messages, such as "partition".

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... def square(side):
    ...     return side * side
    >>> shapes["square"](3), list(shapes)
    (9, ['square'])
    >>> shapes["sqare"]
    Traceback (most recent call last):
    fedpage.core.registry.UnknownName: unknown shape 'sqare': did you mean 'square'? ...
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[E], E]:
        """Return a decorator that adds the decorated function or class under `name`.

        Raises:
            InputError: the name is taken by another entry.
        """

        def decorate(entry: E) -> E:
            self.add(name, entry)  # type: ignore[arg-type]
            return entry

        return decorate

    def add(self, name: str, entry: T) -> None:
        """Add an entry that is a value, for which a decorator would not do.

        Raises:
            InputError: the name is taken by another entry.
        """
        if self._entries.get(name, entry) is not entry:
            raise InputError(f"{self.noun} {name!r} is registered already")
        self._entries[name] = entry

    def remove(self, name: str) -> None:
        """Remove an entry, such as one that a test has added."""
        del self._entries[name]

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except (KeyError, TypeError):  # TypeError: the name cannot be a key at all
            raise UnknownName(self.unknown(name)) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    @overload
    def get(self, name: str, /) -> T | None: ...
    @overload
    def get(self, name: str, default: T | D, /) -> T | D: ...
    def get(self, name: str, default: object = None, /) -> object:
        """Return the entry, or `default` without building the message of an unknown name."""
        return self._entries[name] if name in self else default

    def unknown(self, name: object) -> str:
        """Write the message for a name that is not in the registry."""
        hint = did_you_mean(name, self) if isinstance(name, str) else ""
        return f"unknown {self.noun} {short_repr(name)}:{hint} known are {', '.join(self)}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.noun!r}: {', '.join(self)})"
