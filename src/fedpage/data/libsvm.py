"""Read LIBSVM files: lines `label index:value index:value ...`.

scikit-learn's compiled parser reads the text. It accepts indices out of order, a NaN and an
underscore in a number, so the result is checked. If there is an error, a second, slow reader finds
the line and the token to report.
"""

from __future__ import annotations

import io
import math
import re
from typing import NoReturn

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.core.validate import check_whole
from fedpage.data.dataset import Sparse

_LARGEST = 2**31 - 2
_WIDEST = 20_000_000
"""The most features without `features=`; with more, one mistyped index would cost gigabytes."""
_INTEGER = re.compile(rb"[+-]?[0-9]+\Z")
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")


def parse(
    text: bytes, *, features: int | None, one_based: bool = True, source: str = "<bytes>"
) -> tuple[Vector, Sparse]:
    r"""Parse LIBSVM text.

    Args:
        text: the lines.
        features: the number of features, d. If None, use the largest index.
        one_based: whether indices begin at 1, or else at 0.
        source: the name of the text in errors.

    Returns:
        The labels (n,) as written, and the features with indices that begin at 0.

    Raises:
        InputError: a line is malformed; the message names the line and the token.

    >>> parse(b"+1 1:0.5 3:2\n-1 2:1\n", features=3)[1].indices.tolist()
    [0, 2, 1]
    """
    from sklearn.datasets import load_svmlight_file

    if features is not None:
        check_whole(f"{source}: features", features, 1, _LARGEST)
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)  # comments go, line ends stay
    limit = features or _LARGEST
    try:
        if b"_" in text or b"qid" in text:
            raise ValueError("scikit-learn would accept it")
        matrix, y = load_svmlight_file(
            io.BytesIO(text), n_features=features, zero_based=not one_based
        )
    except (ValueError, OverflowError, IndexError):
        _raise_first_error(text, limit, one_based, source)
    if len(y) == 0:
        raise InputError(f"{source}: no row in it; LIBSVM files have lines such as `1 3:0.5 7:1`")
    indices, width = matrix.indices, int(matrix.indices.max(initial=0)) + 1
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    if not (
        np.isfinite(y).all()
        and np.isfinite(matrix.data).all()
        and np.isin(falls, matrix.indptr).all()
        and (indices >= 0).all()
        and width <= limit
    ):
        _raise_first_error(text, limit, one_based, source)
    if features is None and width > _WIDEST:
        raise InputError(
            f"{source}: the largest index is {width - (not one_based):,}; if it is correct, give "
            "the number of features"
        )
    matrix.resize(len(y), features or width)
    return np.ascontiguousarray(y, dtype=np.float64), Sparse.from_scipy(matrix)


def _raise_first_error(text: bytes, features: int, one_based: bool, source: str) -> NoReturn:
    """Read line by line until the first error, and raise it with its line and token."""
    for number, line in enumerate(io.BytesIO(text), start=1):
        tokens = line.split()
        fault = _find_error(tokens, features, one_based) if tokens else ""
        if fault:
            raise InputError(f"{source}, line {number}: {fault}")
    raise InputError(f"{source}: not a LIBSVM file that scikit-learn can read")


def _find_error(tokens: list[bytes], features: int, one_based: bool) -> str:
    """Describe the error in the tokens of a line, or return ""."""

    def quote(token: bytes) -> str:
        return short_repr(token.decode("ascii", "backslashreplace"))

    if not _NUMBER.match(tokens[0]) or not math.isfinite(float(tokens[0])):
        hint = "; a LIBSVM line is such as `1 3:0.5 7:1`" if b"," in tokens[0] else ""
        hint += ", and arrays from other files go into fp.Dataset.from_arrays" if hint else ""
        return f"the label {quote(tokens[0])} is not a number{hint}"
    lowest = 1 if one_based else 0
    before = lowest - 1
    for token in tokens[1:]:
        index, _, value = token.partition(b":")
        if not _INTEGER.match(index) or not _NUMBER.match(value) or math.isinf(float(value)):
            return f"expected index:value, a whole and a finite number, found {quote(token)}"
        number = int(index)
        if not lowest <= number <= features - 1 + lowest:
            return f"the index in {quote(token)} is outside {lowest}..{features - 1 + lowest}"
        if number <= before:
            return f"the index in {quote(token)} does not rise above the one before it ({before})"
        before = number
    return ""
