"""Docstrings as Markdown: doctests in them become blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_DOCTEST = re.compile(
    r"(?:^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)(?:\n?^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)*",
    flags=re.MULTILINE,
)


def fenced(text: str) -> str:
    """A docstring with its doctests in fences, so that three angles are no quotation."""
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)


class Doctests(Extension):
    """Fences the doctests of every docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
