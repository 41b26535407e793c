"""Show objects: a line of text, and HTML for notebooks.

HTML inherits the colours of the notebook's theme, light or dark. Every text is escaped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

from fedpage.core.types import Ints, Vector

_WIDTH, _HEIGHT = 420, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 34
"""The margins of a plot, in which its labels are."""
_COLOUR = "#3584c6"
"""The colour of curves and bars, which is legible on white and on black."""
_POINTS = 200
"""The most points of a curve, and the most bars."""


def repr_settings(value: object) -> str:
    """Write a dataclass with the fields that are not at their defaults; arrays by their shape.

    >>> @dataclasses.dataclass(repr=False)
    ... class Options:
    ...     start: object = None
    ...     threads: int = 1
    ...     __repr__ = repr_settings
    >>> Options(), Options(start=np.zeros(1000))
    (Options(), Options(start=array of shape (1000,)))
    """
    parts = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        own = getattr(value, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if isinstance(own, np.ndarray):
            parts.append(f"{field.name}=array of shape {own.shape}")
        elif type(own) is not type(default) or own != default:
            parts.append(f"{field.name}={own!r}")
    return f"{type(value).__name__}({', '.join(parts)})"


def html_card(title: str, *parts: str) -> str:
    """Return HTML with a title above parts that are HTML already.

    Args:
        title: A text.
        parts: HTML, such as that of `html_table`; "" is left out.
    """
    body = "".join(f'<div style="margin-top:.4em">{part}</div>' for part in parts if part)
    return (
        '<div class="fedpage" style="font-family:sans-serif;font-size:13px;line-height:1.4">'
        f"<strong>{escape(title)}</strong>{body}</div>"
    )


def html_note(text: str) -> str:
    """Return a small paragraph."""
    return f'<div style="opacity:.75;max-width:60em">{escape(text)}</div>'


def html_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns of numbers under headings are right-aligned, but for the first.

    Args:
        head: The headings; () for none.
        rows: The cells.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    is_number = [
        bool(head) and all(_is_number(row[i]) for row in cells if row[i])
        for i in range(len(cells[0]))
    ] if cells else []  # fmt: skip

    def line(row: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"right" if i and right else "left"};padding:1px 10px 1px 0;'
            f'background:none;vertical-align:top">{escape(cell)}</{tag}>'
            for i, (cell, right) in enumerate(zip(row, is_number, strict=True))
        )

    top = f"<thead><tr>{line([str(word) for word in head], 'th')}</tr></thead>" if head else ""
    body = "".join(f'<tr style="background:none">{line(row, "td")}</tr>' for row in cells)
    return (
        f'<table style="border-collapse:collapse;font:inherit">{top}<tbody>{body}</tbody></table>'
    )


def html_facts(facts: Mapping[str, object]) -> str:
    """Return a table of names and values; values None and "" are left out."""
    return html_table(
        (), [(name, value) for name, value in facts.items() if value not in (None, "")]
    )


def html_curve(x: Vector, y: Vector, x_label: str, y_label: str) -> str:
    """Draw a curve as SVG, with a logarithmic axis where all values are positive and vary much.

    Args:
        x: (n,) increasing numbers.
        y: (n,) values; those that are not finite are left out.
        x_label: The horizontal axis.
        y_label: The vertical axis.

    Returns:
        SVG; "" where fewer than two values are finite.
    """
    good = np.isfinite(x) & np.isfinite(y)
    x, y = x[good], y[good]
    if len(x) < 2:
        return ""
    keep = np.unique(np.linspace(0, len(x) - 1, min(_POINTS, len(x))).round().astype(int))
    x, y = x[keep], y[keep]
    is_log = bool(y.min() > 0 and y.max() > 10 * y.min())
    height = np.log10(y) if is_log else y
    points = " ".join(
        f"{_across(a, x):.1f},{_down(b, height):.1f}" for a, b in zip(x, height, strict=True)
    )
    curve = f'<polyline points="{points}" fill="none" stroke="{_COLOUR}" stroke-width="1.8"/>'
    label = f"{y_label} (log)" if is_log else y_label
    ends = (float(y.min()), float(y.max()))
    return _frame(curve, x_label, label, (f"{x[0]:,.4g}", f"{x[-1]:,.4g}"), ends)


def html_bars(values: Sequence[float] | Vector | Ints, x_label: str, y_label: str) -> str:
    """Draw positive numbers as bars from the largest to the smallest, as SVG.

    Of more than 200 numbers, 200 that are equally spaced in their order are drawn.

    Args:
        values: The numbers.
        x_label: The horizontal axis.
        y_label: The vertical axis.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))[::-1]
    count = len(ordered)
    ordered = ordered[np.linspace(0, count - 1, min(count, _POINTS)).round().astype(int)]
    width = (_WIDTH - _LEFT - _RIGHT) / len(ordered)
    bottom, highest = _HEIGHT - _BOTTOM, float(ordered[0])
    bars = "".join(
        f'<rect x="{_LEFT + i * width:.2f}" y="{bottom - size:.2f}" '
        f'width="{max(0.5, 0.85 * width):.2f}" height="{size:.2f}" fill="{_COLOUR}"/>'
        for i, size in enumerate((bottom - _TOP) * ordered / highest)
    )
    return _frame(bars, x_label, y_label, ("1", f"{count:,}"), (0.0, highest))


def _frame(
    body: str, x_label: str, y_label: str, x_ends: tuple[str, str], y_ends: tuple[float, float]
) -> str:
    """Draw axes with a label at both ends around the body of a plot."""
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    middle = (_TOP + bottom) / 2

    def text(x: float, y: float, anchor: str, words: str, extra: str = "") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'

    axes = f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor" '
    return "".join(
        [
            f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(y_label)} against {escape(x_label)}" '
            'style="max-width:100%" font-size="11" fill="currentColor" font-family="sans-serif">',
            f'{axes}stroke-opacity="0.5"/>',
            body,
            text(_LEFT - 5, _TOP + 8, "end", format_number(y_ends[1])),
            text(_LEFT - 5, bottom, "end", format_number(y_ends[0])),
            text(_LEFT, bottom + 14, "start", x_ends[0]),
            text(right, bottom + 14, "end", x_ends[1]),
            text((_LEFT + right) / 2, bottom + 28, "middle", x_label),
            text(12, middle, "middle", y_label, f' transform="rotate(-90 12 {middle})"'),
            "</svg>",
        ]
    )


def _across(value: float, values: Vector) -> float:
    span = float(values[-1] - values[0]) or 1.0
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * float(value - values[0]) / span


def _down(value: float, values: Vector) -> float:
    low = float(values.min())
    span = float(values.max()) - low or 1.0
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (float(value) - low) / span


def format_number(value: float | None) -> str:
    """Format a number to four digits, and a whole number with its thousands.

    >>> format_number(1234567), format_number(0.123456), format_number(None)
    ('1,234,567', '0.1235', '')
    """
    if value is None or math.isnan(value):
        return ""
    is_whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
    return f"{int(value):,}" if is_whole else f"{value:.4g}"


def _is_number(text: str) -> bool:
    return text in ("-", "inf", "-inf", "None") or text.lstrip("~-")[:1].isdigit()
