"""Describe codecs: the class of each, and the bits that a vector takes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from fedpage.codecs import CODECS, Codec, as_codec
from fedpage.core.errors import InputError
from fedpage.report.methods import first_sentence

_COMPOSED = {"scaled": "scaled(randk:0.1)", "chain": "randk:0.1+natural"}
_ARGUMENTS = {"k": "0.1", "n": "10", "q": "0.1", "s": "4"}
"""Values for examples, by the name of a codec's argument."""


def example(name: str) -> Codec:
    """Return an example of a registered codec.

    >>> str(example("randk"))
    'randk:0.1'
    """
    cls = CODECS[name]
    arguments = [_ARGUMENTS.get(each.name, "1") for each in fields(cls)]
    return as_codec(_COMPOSED.get(name) or ":".join((name, *arguments)))


def rows(d: int) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each codec.

    Args:
        d: The length of the vector.

    Returns:
        Its spelling, its constant, its bits, their share of float64's, and what it does.
    """
    found = []
    for name, cls in CODECS.items():
        codec, full = example(name), 64 * d
        try:
            bits = codec.bits(d, np.dtype(np.float64))
            most = "" if codec.has_fixed_size else "<= "
            size = (f"{most}{bits:,}", f"{most}{bits / full:.2g}")
        except InputError:  # it does not fit so few numbers
            size = ("-", "-")
        found.append((str(codec), describe_constant(codec, d), *size, first_sentence(cls)))
    return found


def describe_constant(codec: Codec, d: int) -> str:
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
