"""Turn the formulas of a Markdown page into MathML.

Browsers show MathML by themselves, so a reader needs no script and no font from elsewhere.
"""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_SKIPPED = re.compile(r"^(```+|~~~+).*?^\1\s*$|`[^`\n]+`", flags=re.DOTALL | re.MULTILINE)
"""Code, in which a dollar sign is a dollar sign."""
_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![$\\])\$(?!\$)([^$\n]+)\$(?!\$)", flags=re.DOTALL)
_TIGHT = re.compile(r'<mo(?: stretchy="false")?>(&#x0002F;|&#x0007C;|&#x02016;)</mo>')
"""The slash and the bars of norms, which browsers would stretch and set apart."""


def render(markdown: str) -> str:
    """Return the page with `$...$` and `$$...$$` outside of code replaced by MathML.

    >>> render("the step $x$, and `$x$`")
    'the step <span class="math"><math ...><mi>x</mi>...</math></span>, and `$x$`'
    """
    parts, end = [], 0
    for code in _SKIPPED.finditer(markdown):
        parts += [_FORMULA.sub(_mathml, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _FORMULA.sub(_mathml, markdown[end:])])


def _mathml(match: re.Match[str]) -> str:
    block, inline = match[1], match[2]
    formula = convert((block or inline).strip(), display="block" if block else "inline")
    formula = _TIGHT.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', formula)
    formula = " ".join(formula.split())
    # A span keeps Markdown from taking a formula at the start of a line for a block of HTML.
    return (
        f'<div class="formula">{formula}</div>' if block else f'<span class="math">{formula}</span>'
    )
