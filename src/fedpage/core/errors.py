"""Errors for bad input, and how they quote a value."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one line: what was wrong, where, and what to do."""


def short_repr(value: object) -> str:
    """Quote a value in an error message, in one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # too deep, or an integer of thousands of digits
        return f"this {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
