"""Errors for bad input, and the phrases that their messages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NoReturn


class InputError(ValueError):
    """Report input that cannot be used, in one line: what is wrong, where, and what to do."""


def short_repr(value: object) -> str:
    """Quote a value in an error message, in one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # too deep, or an integer of thousands of digits
        return f"this {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is closest to a misspelt one.

    Args:
        word: what the user wrote.
        known: the words that would have been understood.

    Returns:
        " did you mean 'x'?" with a leading space, or "" if no known word is close.

    >>> did_you_mean("scafold", ["fedavg", "scaffold"])
    " did you mean 'scaffold'?"
    """
    names = {name.lstrip("-").lower(): name for name in known}  # options begin with dashes
    near = get_close_matches(word.lstrip("-").lower(), names, n=1)
    return f" did you mean {names[near[0]]!r}?" if near else ""


def attribute_error(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module does not have, with a suggestion.

    >>> str(attribute_error("fedpage", "FedPage", ["FedPAGE", "FedAvg"]))
    "module 'fedpage' has no attribute 'FedPage': did you mean 'FedPAGE'?"
    """
    hint = "" if name.startswith("_") else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{':' if hint else ''}{hint}")


def suggest_names(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module: it suggests the name that is closest to an unknown one.

    Args:
        module: the module's name.
        known: its public names.
    """

    def __getattr__(name: str) -> NoReturn:
        raise attribute_error(module, name, known)

    return __getattr__
