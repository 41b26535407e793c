"""`fedpage codecs`: list the codecs with their sizes."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import numpy as np
import typer

from fedpage.cli import options
from fedpage.cli.options import Document
from fedpage.cli.output import print_grid, print_text
from fedpage.codecs import CODECS, Codec, as_codec
from fedpage.core.errors import InputError
from fedpage.report.methods import first_sentence

app = options.make_app()
_LEGEND = """\
bits: the size of a vector of {d:,} float64 numbers, before it is filled up to whole bytes.
share: the size relative to 64 bits a number. omega: the codec is unbiased, and this is its relative
variance. alpha: it is contractive, and at least this part of the squared length arrives.

Use one as --up natural or --down float32. Two in a row: randk:12+natural. Shortened, so that it is
contractive: scaled(randk:12)."""
_COMPOSED = {"scaled": "scaled(randk:0.1)", "chain": "randk:0.1+natural"}
_ARGUMENTS = {"k": "0.1", "n": "10", "q": "0.1", "s": "4"}
"""Values for examples, by the name of a codec's argument."""


@options.command(app, "codecs")
def codecs(
    d: Annotated[int, typer.Option("--d", help="Parameters of the model.", min=1)] = 1000,
) -> Document:
    """List the codecs, with what each sends and its size in bits."""
    rows = _describe_codecs(d)
    print_grid(rows, ("codec", "constant", "bits", "share", ""))
    print()
    print_text(_LEGEND.format(d=d))
    keys = ("codec", "constant", "bits", "share", "description")
    return {"d": d, "codecs": [dict(zip(keys, row, strict=True)) for row in rows]}


def _describe_codecs(d: int) -> list[tuple[str, str, str, str, str]]:
    """Return an example of each codec: its spelling, constant, bits, their share, and its purpose.

    Args:
        d: The length of the vector.
    """
    found = []
    for name, cls in CODECS.items():
        arguments = [_ARGUMENTS.get(each.name, "1") for each in fields(cls)]
        codec = as_codec(_COMPOSED.get(name) or ":".join((name, *arguments)))
        try:
            bits = codec.bits(d, np.dtype(np.float64))
            most = "" if codec.has_fixed_size else "<= "
            size = (f"{most}{bits:,}", f"{most}{bits / (64 * d):.2g}")
        except InputError:  # it does not fit so few numbers
            size = ("-", "-")
        found.append((str(codec), _describe_constant(codec, d), *size, first_sentence(cls)))
    return found


def _describe_constant(codec: Codec, d: int) -> str:
    """Return omega of an unbiased codec, such as "omega = 9", or alpha of a contractive one."""
    try:
        omega, alpha = codec.omega(d), codec.alpha(d)
    except InputError:
        return "-"
    if codec.is_cast:
        return "rounding" if str(codec) != "none" else "exact"
    if omega is not None:
        return f"omega = {omega:.3g}"
    return "biased" if alpha is None else f"alpha = {alpha:.3g}"
