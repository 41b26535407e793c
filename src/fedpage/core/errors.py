"""Errors for bad input, and the phrases that their messages share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_MESSAGE = 200
"""The most characters of a message."""


class InputError(ValueError):
    """Report input that cannot be used, in one line: what is wrong, where, and what to do."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(one_line(arg) if isinstance(arg, str) else arg for arg in args))


def one_line(text: str, most: int = LONGEST_MESSAGE) -> str:
    r"""Return a message in one line that a terminal can show, at most `most` characters long.

    The longest words are shortened first, so that the sentence around a quoted value stays. Then
    words in the middle are left out. A path of up to 120 characters stays complete, so that it can
    be copied, and counts as 24.

    >>> one_line("no file " + "x" * 1000 + "; choose\nanother", 50)
    'no file xxxxxxxxxxxx...xxxxxxxxxxx; choose another'
    >>> one_line("known are one, two, three, four, five, six", 32)
    'known are ... five, six'
    """
    text = " ".join(text.splitlines())
    if not text.isprintable():  # control characters, and surrogates, which cannot be printed
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    words = text.split(" ")
    paths = {w for w in words if ("/" in w or os.sep in w) and len(w) <= 120}
    if most == LONGEST_MESSAGE:
        most += sum(max(0, len(word) - 24) for word in words if word in paths)
    for place in sorted(range(len(words)), key=lambda i: -len(words[i])):
        beyond = len(text) - most
        if beyond <= 0 or len(words[place]) <= 24:
            break
        if words[place] not in paths:
            words[place] = _shorten(words[place], max(24, len(words[place]) - beyond))
            text = " ".join(words)
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    first, last = text[: half + 1].rpartition(" ")[0], text[-half - 1 :].partition(" ")[2]
    return f"{first} ... {last}" if first and last else _shorten(text, most)


def short_repr(value: object) -> str:
    """Quote a value in an error message, in one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its repr fails, or it has more digits than Python writes
        return f"this {type(value).__name__}"
    return one_line(text, 60)


def _shorten(text: str, most: int) -> str:
    """Cut the middle out of a text that is longer than `most` characters."""
    if len(text) <= most:
        return text
    end = (most - 3) // 2
    return f"{text[: most - 3 - end]}...{text[-end:]}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Suggest the known word that is closest to a misspelt one.

    Args:
        word: what the user wrote.
        known: the words that would have been understood.

    Returns:
        " did you mean 'x'?" with a leading space, or "" if no known word is close.

    >>> did_you_mean("scafold", ["fedavg", "scaffold"])
    " did you mean 'scaffold'?"
    """
    if not isinstance(word, str):
        return ""
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


def find_memory_error(error: BaseException | None) -> MemoryError | None:
    """Return the MemoryError that an error is, or while which it was raised; None if there is none.

    Closing a file after a failed write may raise a ValueError that hides the MemoryError before it.
    An InputError explains itself.
    """
    while isinstance(error, Exception) and not isinstance(error, InputError):
        if isinstance(error, MemoryError):
            return error
        error = error.__context__
    return None
