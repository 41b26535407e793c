"""Show objects: numbers and settings in a line of text, tables as HTML for notebooks."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def repr_settings(value: object) -> str:
    """Write a dataclass with the fields that are not at their defaults, and arrays by their shape.

    >>> @dataclasses.dataclass(repr=False)
    ... class Options:
    ...     start: object = None
    ...     threads: int = 1
    ...     __repr__ = repr_settings
    >>> import numpy as np
    >>> Options(), Options(start=np.zeros(1000))
    (Options(), Options(start=array of shape (1000,)))
    """
    parts = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        own = getattr(value, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if shape := getattr(own, "shape", ()):
            parts.append(f"{field.name}=array of shape {shape}")
        elif type(own) is not type(default) or own != default:
            parts.append(f"{field.name}={own!r}")
    return f"{type(value).__name__}({', '.join(parts)})"


def format_number(value: float | None) -> str:
    """Format a number to four digits, and a whole number with its thousands.

    >>> format_number(1234567), format_number(0.123456), format_number(None)
    ('1,234,567', '0.1235', '')
    """
    if value is None or math.isnan(value):
        return ""
    is_whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
    return f"{int(value):,}" if is_whole else f"{value:.4g}"


def html_table(
    title: str, head: Sequence[object], rows: Iterable[Sequence[object]], *notes: str
) -> str:
    """Return HTML for a notebook: a title, a table and notes below it. All texts are escaped.

    Args:
        title: The title.
        head: The headings, or () for a table without them.
        rows: The cells. All columns but the first are aligned to the right if there are headings.
        *notes: Paragraphs below the table.
    """

    def line(cells: Iterable[object], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"right" if head and i else "left"}">{escape(str(cell))}'
            f"</{tag}>"
            for i, cell in enumerate(cells)
        )

    top = f"<thead><tr>{line(head, 'th')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    table = f"<table>{top}<tbody>{body}</tbody></table>" if body else ""
    below = "".join(f"<p>{escape(note)}</p>" for note in notes if note)
    return f'<div class="fedpage"><strong>{escape(title)}</strong>{table}{below}</div>'


def html_description(value: Any) -> str:
    """Return HTML for a notebook: a value's repr above a table of its `describe()`.

    A class uses it as its `_repr_html_`. Digests are left out.
    """
    facts = {key: fact for key, fact in value.describe().items() if not key.endswith("digest")}
    return html_table(repr(value), (), facts.items())


def new_figure(**options: Any) -> Figure:
    """Return an empty figure of matplotlib, which a notebook shows although pyplot did not make it.

    Args:
        options: The arguments of `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    formatters = getattr(shell, "display_formatter", None)
    if formatters and not any(Figure in f.type_printers for f in formatters.formatters.values()):
        import_module("IPython.core.pylabtools").select_figure_formats(shell, {"png"})
    return Figure(**options)
