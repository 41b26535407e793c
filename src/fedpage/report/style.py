"""Choose colours, markers and dashes: the same method looks the same in every picture."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

METHOD_STYLES: dict[str, tuple[str, str]] = {
    "FedPAGE": ("#0072B2", "o"),
    "SCAFFOLD": ("#D55E00", "s"),
    "FedAvg": ("#009E73", "^"),
    "FedProx": ("#CC79A7", "D"),
    "PAGE": ("#56B4E9", "v"),
    "VRL-SGD": ("#E69F00", "P"),
    "S-Local-SVRG": ("#808080", "X"),
}
"""Colour and marker of each method of the paper: Okabe and Ito's palette (2008), without its black
and yellow, which vanish on dark and on light pages. Colour-blind readers can tell them apart."""

OTHER_STYLES: tuple[tuple[str, str], ...] = (
    ("#AA4499", "*"), ("#999933", "h"), ("#882255", "<"), ("#44AA99", ">"),
    ("#6A5ACD", "p"), ("#A0522D", "d"),
)  # fmt: skip
"""Colours and markers of other methods (Paul Tol's muted palette, lightened where a dark page needs
it). A method's name chooses one of them, or the next that the picture has not used yet."""

_DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (1.5, 2), (8, 2, 1.5, 2))
_LIGHTNESS = (0.0, 0.18, -0.08, 0.09)


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
    """Find the method that a label names.

    Args:
        label: A curve's label: the method's name, alone or followed by what tells it apart.

    Returns:
        The key of `METHOD_STYLES`, or for any other method its name without what is in brackets.

    >>> [method_of(label) for label in ("FedPAGE-Full", "FedPAGE (K=5)", "PAGE", "FedPAGEx (a)")]
    ['FedPAGE', 'FedPAGE', 'PAGE', 'FedPAGEx']
    """
    for name in METHOD_STYLES:
        rest = label.removeprefix(name)
        if rest != label and not rest[:1].isalnum():
            return name
    return label.partition(" (")[0]


def assign_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each curve of a picture.

    Curves of one method share its colour and marker; the second, third and fourth of them differ
    by dash and lightness.

    Args:
        labels: The curves' labels, in the picture's order.

    Returns:
        A style for each label.

    >>> styles = assign_styles(["FedAvg", "FedPAGE", "FedPAGE-Full"])
    >>> styles["FedPAGE"].colour, styles["FedPAGE-Full"].dash
    ('#0072B2', (6, 2.5))
    """
    labels = list(dict.fromkeys(labels))
    bases = _assign_bases([method_of(label) for label in labels])
    styles: dict[str, Style] = {}
    drawn: dict[str, int] = {}
    for label in labels:
        method = method_of(label)
        colour, marker, first = bases[method]
        number = (first + drawn.get(method, 0)) % len(_DASHES)
        drawn[method] = drawn.get(method, 0) + 1
        styles[label] = Style(_shade(colour, _LIGHTNESS[number]), marker, _DASHES[number])
    return styles


def _assign_bases(methods: Iterable[str]) -> dict[str, tuple[str, str, int]]:
    """Give each method a colour, a marker, and the number of its first dash."""
    bases: dict[str, tuple[str, str, int]] = {}
    used = [0] * len(OTHER_STYLES)
    for method in dict.fromkeys(methods):
        if method in METHOD_STYLES:
            bases[method] = (*METHOD_STYLES[method], 0)
            continue
        start = crc32(method.encode()) % len(used)
        places = [(start + i) % len(used) for i in range(len(used))]
        place = min(places, key=lambda i: used[i])  # the first of those that are used least
        bases[method] = (*OTHER_STYLES[place], used[place])
        used[place] += 1
    return bases


def _shade(colour: str, change: float) -> str:
    """Return the colour with its lightness (0 to 1) changed."""
    if change == 0.0:
        return colour
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    channels = colorsys.hls_to_rgb(hue, min(max(lightness + change, 0.0), 1.0), saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)
