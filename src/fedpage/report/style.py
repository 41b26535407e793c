"""Choose colours, markers and dashes: the same method looks the same in every picture."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass

METHOD_STYLES: dict[str, tuple[str, str]] = {
    "FedPAGE": ("#0072B2", "o"),
    "SCAFFOLD": ("#D55E00", "s"),
    "FedAvg": ("#009E73", "^"),
    "FedProx": ("#CC79A7", "D"),
    "PAGE": ("#56B4E9", "v"),
    "VRL-SGD": ("#E69F00", "P"),
    "S-Local-SVRG": ("#808080", "X"),
}
"""Colour and marker of each built-in method: Okabe and Ito's palette (2008), without its black
and yellow, which vanish on dark and on light pages. Colour-blind readers can tell them apart."""

OTHER_STYLES: tuple[tuple[str, str], ...] = (
    ("#AA4499", "*"), ("#999933", "h"), ("#882255", "<"), ("#44AA99", ">"),
    ("#6A5ACD", "p"), ("#A0522D", "d"),
)  # fmt: skip
"""Colours and markers of other methods, in the order in which a picture names them (Paul Tol's
muted palette, lightened where a dark page needs it)."""

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


def method_of(label: str) -> str | None:
    """Find the built-in method that a label names.

    Args:
        label: A curve's label: the method's name, alone or followed by what tells it apart.

    Returns:
        The key of `METHOD_STYLES`, or None for any other method.

    >>> [method_of(label) for label in ("FedPAGE-Full", "FedPAGE (K=5)", "PAGE", "FedPAGEx")]
    ['FedPAGE', 'FedPAGE', 'PAGE', None]
    """
    for name in METHOD_STYLES:
        rest = label.removeprefix(name)
        if rest != label and not rest[:1].isalnum():
            return name
    return None


def assign_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each curve of a picture.

    Curves of one built-in method share its colour and marker; the second, third and fourth of
    them differ by dash and lightness. Other methods take `OTHER_STYLES` in the order given.

    Args:
        labels: The curves' labels, in the picture's order.

    Returns:
        A style for each label.

    >>> styles = assign_styles(["FedAvg", "FedPAGE", "FedPAGE-Full"])
    >>> styles["FedPAGE"].colour, styles["FedPAGE-Full"].dash
    ('#0072B2', (6, 2.5))
    """
    styles: dict[str, Style] = {}
    drawn: dict[str, int] = {}
    others = 0
    for label in dict.fromkeys(labels):
        method = method_of(label)
        if method is None:
            colour, marker = OTHER_STYLES[others % len(OTHER_STYLES)]
            styles[label] = Style(colour, marker, _DASHES[others // len(OTHER_STYLES) % 4])
            others += 1
            continue
        number = drawn.get(method, 0) % len(_DASHES)
        drawn[method] = drawn.get(method, 0) + 1
        colour, marker = METHOD_STYLES[method]
        styles[label] = Style(_shade(colour, _LIGHTNESS[number]), marker, _DASHES[number])
    return styles


def _shade(colour: str, change: float) -> str:
    """Return the colour with its lightness (0 to 1) changed."""
    if change == 0.0:
        return colour
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    channels = colorsys.hls_to_rgb(hue, min(max(lightness + change, 0.0), 1.0), saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)
