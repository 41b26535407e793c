"""Choose colours, markers and dashes, so that a method looks the same in every picture.

Methods differ by colour, step sizes by dash, and variants by marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

ACCENT, HIGHLIGHT, PALE = "#0072B2", "#D55E00", "#9CC5E0"
"""Colours of pictures that show no methods: the main one, one that stands out, and a light one."""

_BLUE, _VERMILION, _GREEN, _PINK, _SKY, _ORANGE, _GREY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#808080",
)  # fmt: skip
_PURPLE, _OLIVE, _WINE, _TEAL, _SLATE, _SIENNA = (
    "#AA4499", "#999933", "#882255", "#44AA99", "#6A5ACD", "#A0522D",
)  # fmt: skip

METHOD_STYLES: dict[str, tuple[str, str]] = {
    "FedPAGE": (_BLUE, "o"),
    "SCAFFOLD": (_VERMILION, "s"),
    "FedAvg": (_GREEN, "^"),
    "FedProx": (_PINK, "D"),
    "PAGE": (_SKY, "v"),
    "VRL-SGD": (_ORANGE, "P"),
    "S-Local-SVRG": (_GREY, "X"),
    "SecantPAGE": (_PURPLE, "*"),
}
"""Colour and marker of the methods that most pictures show: Okabe and Ito's palette (2008), without
its black and yellow, which vanish on dark and on light pages. The name of any other method chooses
its colour and marker by a checksum, so that a new method needs no entry here."""

OTHER_COLOURS = (_PURPLE, _OLIVE, _WINE, _TEAL, _SLATE, _SIENNA)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h", "<", ">", "p", "d")
DASHES: tuple[tuple[float, ...], ...] = (
    (), (6, 2.5), (1.5, 2), (8, 2, 1.5, 2), (4, 1.5, 1.5, 1.5, 1.5, 1.5),
)  # fmt: skip

_STEP = re.compile(r"\b(?:eta|eta_g|eta_l|step|lr)(?:=| )([^\s,)]+)")
"""A step size in a label, such as "eta_g=0.1" or "step 0.1"."""
_NUMBER = re.compile(r"\d*\.?\d+(?:e[+-]?\d+)?")
_NEUTRAL = "#666666"


@dataclass(frozen=True)
class Style:
    """How a curve is drawn.

    Attributes:
        colour: "#rrggbb".
        marker: A marker by matplotlib's letter.
        dash: Lengths of dashes and gaps in line widths; empty for a solid line.
    """

    colour: str
    marker: str
    dash: tuple[float, ...] = ()


def method_of(label: str) -> str:
    """Find the method that a curve's label names.

    It is the longest key of `METHOD_STYLES` with which the label begins, or else the label up to a
    bracket or a comma.

    >>> [method_of(label) for label in ("FedPAGE-Full", "FedPAGE (K=5)", "EF21-PP", "FedPAGEx (a)")]
    ['FedPAGE', 'FedPAGE', 'EF21-PP', 'FedPAGEx']
    """
    found = [name for name in METHOD_STYLES if re.match(rf"{re.escape(name)}(?![^\W_])", label)]
    return max(found, key=len) if found else re.split(r" \(|, ", label)[0]


def base_style(method: str) -> tuple[str, str]:
    """Return a method's colour and marker, which depend on its name alone."""
    if method in METHOD_STYLES:
        return METHOD_STYLES[method]
    number = crc32(method.encode())
    colour = OTHER_COLOURS[number % len(OTHER_COLOURS)]
    return colour, MARKERS[number // len(OTHER_COLOURS) % len(MARKERS)]


def assign_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each curve of a picture; no two are equal.

    Curves of one method share its colour. If a method has several step sizes, they differ by dash,
    and equal steps of different methods have equal dashes. Variants, with other hyper-parameters or
    codecs, differ by marker. If no method has several steps, variants differ by dash too.

    >>> styles = assign_styles(["FedAvg", "FedPAGE (eta_g=0.1)", "FedPAGE (eta_g=0.2)"])
    >>> [style.dash for style in styles.values()]
    [(), (), (6, 2.5)]
    >>> styles["FedPAGE (eta_g=0.1)"].colour == styles["FedPAGE (eta_g=0.2)"].colour
    True
    """
    curves = [_Curve.parse(label) for label in dict.fromkeys(labels)]
    methods: dict[str, list[_Curve]] = {}
    for curve in curves:
        methods.setdefault(curve.method, []).append(curve)
    part = "step" if _list_values(methods.values(), "step") else "variant"
    values = _list_values(methods.values(), part)
    styles: dict[str, Style] = {}
    for curve in curves:
        own, value = methods[curve.method], getattr(curve, part)
        # with too many values for one key to all methods, each method has its own
        known = values if len(values) <= len(DASHES) else _list_values([own], part)
        dash = known.index(value) % len(DASHES) if value in known else 0
        variant = list(dict.fromkeys(each.variant for each in own)).index(curve.variant)
        styles[curve.label] = _first_unused(curve.method, variant, dash, set(styles.values()))
    return styles


def factor_styles(labels: Iterable[str]) -> dict[str, Style] | None:
    """Return a shorter legend of methods, then steps, or None unless every method has every step.

    >>> list(factor_styles(f"{m} (eta_g={e})" for m in ("FedPAGE", "FedAvg") for e in (0.1, 0.2)))
    ['FedPAGE', 'FedAvg', 'eta_g=0.1', 'eta_g=0.2']
    """
    styles = assign_styles(labels)
    curves = [_Curve.parse(label) for label in styles]
    methods: dict[str, Style] = {}
    steps: dict[str, Style] = {}
    pairs = set()
    for curve in curves:
        style = styles[curve.label]
        step = ", ".join(match.group(0) for match in _STEP.finditer(curve.label))
        methods.setdefault(curve.method, Style(style.colour, style.marker))
        steps.setdefault(step, Style(_NEUTRAL, "", style.dash))
        pairs.add((curve.method, step))
    is_product = len(pairs) == len(curves) == len(methods) * len(steps)
    is_plain = "" not in steps and not any(curve.variant for curve in curves)
    is_small = min(len(methods), len(steps)) < 2
    return methods | steps if is_product and is_plain and not is_small else None


@dataclass(frozen=True)
class _Curve:
    """A label in its parts: the method, its step sizes, and all the rest."""

    label: str
    method: str
    step: tuple[str, ...]
    variant: str

    @classmethod
    def parse(cls, label: str) -> _Curve:
        method = method_of(label)
        rest = label.removeprefix(method)
        variant = re.sub(r"[(), ]+", " ", _STEP.sub("", rest)).strip()
        return cls(label, method, tuple(_STEP.findall(rest)), variant)


def _list_values(methods: Iterable[Sequence[_Curve]], part: str) -> list[Any]:
    """Return the values of a part, of the methods that have several; steps by their numbers."""

    def numbers(value: str | tuple[str, ...]) -> list[float]:
        texts = value if isinstance(value, tuple) else ()
        return [float(text) if _NUMBER.fullmatch(text) else -1.0 for text in texts]

    groups = [[getattr(curve, part) for curve in own] for own in methods]
    found = [value for group in groups if len(set(group)) > 1 for value in group]
    return sorted(dict.fromkeys(found), key=numbers)


def _first_unused(method: str, variant: int, dash: int, used: set[Style]) -> Style:
    """Return the style of a method's variant, or the next that no curve has."""
    colour, own = base_style(method)
    first = MARKERS.index(own) if own in MARKERS else 0
    markers = list(dict.fromkeys([own, *MARKERS[first:], *MARKERS[:first]]))
    for more, shift in product(range(len(DASHES)), range(len(markers))):
        marker = markers[(variant + shift) % len(markers)]
        style = Style(colour, marker, DASHES[(dash + more) % len(DASHES)])
        if style not in used:
            return style
    return Style(colour, own, DASHES[dash])
