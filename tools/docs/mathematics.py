"""Formulas as MathML, made when the site is built, so that no script and no font has to be fetched to read them."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)


_TIGHT = {"/": "&#x0002F;", "|": "&#x0007C;"}
"""Signs that stand close to what they divide or enclose; as operators browsers would set them apart."""


def rendered(page: str) -> str:
    """A page's HTML with the formulas that arithmatex marked turned into MathML."""
    return _FORMULA.sub(_mathml, page)


def _mathml(match: re.Match[str]) -> str:
    display = "inline" if match[2] == "(" else "block"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    for sign, code in _TIGHT.items():
        for written in (sign, code):
            formula = formula.replace(f"<mo>{written}</mo>", f'<mo stretchy="false" lspace="0" rspace="0">{sign}</mo>')
    return formula if display == "inline" else f'<div class="formula">{formula}</div>'
