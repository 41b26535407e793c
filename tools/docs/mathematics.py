"""Formulas as MathML, made when the site is built, so that no script and no font has to be fetched to read them."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', flags=re.DOTALL
)
_TIGHT = re.compile(r'<mo(?: stretchy="false")?>(&#x0002F;|&#x0007C;|&#x02016;)</mo>')
"""/ and the bars of sizes and norms; browsers would set them apart from what they enclose, or stretch them."""


def rendered(page: str) -> str:
    """A page's HTML with the formulas that arithmatex marked turned into MathML."""
    return _FORMULA.sub(_mathml, page)


def _mathml(match: re.Match[str]) -> str:
    display = "inline" if match[2] == "(" else "block"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    formula = _TIGHT.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', formula)
    return formula if display == "inline" else f'<div class="formula">{formula}</div>'
