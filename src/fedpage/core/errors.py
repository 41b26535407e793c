"""Errors for bad input, and the phrases that their messages share."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
