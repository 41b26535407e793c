"""A strict reader of LIBSVM files: `label index:value index:value ...`, a row a line, plain or compressed.

scikit-learn's compiled parser does the reading; what it lets pass (indices out of order or twice, a NaN, an
underscore in a number) is checked afterwards, and a second, slow reader then finds the line and the token to report.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedpage.types import InputError, Vector

_OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}
SUFFIXES = ("", *_OPENERS)
_LARGEST = 2**31 - 2
_WIDEST = 20_000_000
"""More features than this must be asked for: a slip of the pen in one index would cost gigabytes."""
_INTEGER = re.compile(rb"[+-]?[0-9]+\Z")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")


class Parsed(NamedTuple):
    """What a file holds: labels (n,) as written, and the arrays of a CSR matrix with 0-based indices."""

    y: Vector
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Vector
    features: int


def read_bytes(path: Path) -> bytes:
    """The file's text, unpacked according to its suffix."""
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a complete {path.suffix[1:]} file ({error}); fetch it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def parse(text: bytes, *, features: int | None, one_based: bool = True, source: str = "<bytes>") -> Parsed:
    """Parse LIBSVM text. `features` fixes d (None: the largest index found); indices count from 1 or from 0.

    >>> parse(b"+1 1:0.5 3:2\\n-1 2:1\\n", features=3).indices.tolist()
    [0, 2, 1]
    """
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)  # comments; the line numbers stay
    width = features if features is not None else _widest(text, one_based, source)
    bad = b"_" in text or b"qid" in text
    if not bad:
        from sklearn.datasets import load_svmlight_file

        try:
            matrix, labels = load_svmlight_file(io.BytesIO(text), n_features=max(width, 1), zero_based=not one_based)
        except (ValueError, OverflowError, IndexError):
            bad = True
    if bad:
        _point_at_fault(text, width, one_based, source)
    y = np.ascontiguousarray(labels, dtype=np.float64)
    indptr, indices, values = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
    inside = np.ones(len(indices), dtype=bool)
    starts = indptr[:-1][indptr[:-1] < indptr[1:]]
    inside[starts] = False
    rising = np.empty(len(indices), dtype=bool)
    rising[:1] = True
    rising[1:] = indices[1:] > indices[:-1]
    if not (
        np.isfinite(y).all()
        and np.isfinite(values).all()
        and (rising | ~inside).all()
        and (len(indices) == 0 or (int(indices.min()) >= 0 and int(indices.max()) < width))
    ):
        _point_at_fault(text, width, one_based, source)
    if len(y) == 0:
        raise InputError(f"{source}: there is no row in it; a LIBSVM file has lines such as `1 3:0.5 7:1`")
    return Parsed(y, indptr, indices, values.astype(np.float64), width)


def _widest(text: bytes, one_based: bool, source: str) -> int:
    """The number of features, where the caller does not know it: the largest index of the file."""
    largest = -1
    for found in re.finditer(rb"[\s]([0-9]+):", text):
        digits = found.group(1)
        if len(digits) > 10 or int(digits) > _LARGEST:
            _point_at_fault(text, _LARGEST, one_based, source)
        largest = max(largest, int(digits))
    if largest > _WIDEST:
        raise InputError(f"{source}: the largest index is {largest:,}; if that is meant, give the number of features")
    return max(largest if one_based else largest + 1, 1)


def _point_at_fault(text: bytes, features: int, one_based: bool, source: str) -> NoReturn:
    """Read line by line until something is wrong, and say what, where and which token."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        tokens = line.split()
        if not tokens:
            continue
        fault = _fault(tokens, features, one_based)
        if fault:
            raise InputError(f"{source}, line {number}: {fault}")
    raise InputError(f"{source}: not a LIBSVM file that scikit-learn's reader accepts")


def _shown(token: bytes) -> str:
    text = token.decode("ascii", "backslashreplace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _fault(tokens: list[bytes], features: int, one_based: bool) -> str | None:
    """What is wrong with one line's tokens, or None."""
    if not _NUMBER.match(tokens[0]) or not math.isfinite(float(tokens[0])):
        return f"the label {_shown(tokens[0])} is not a number"
    lowest = 1 if one_based else 0
    before = lowest - 1
    for token in tokens[1:]:
        index, colon, value = token.partition(b":")
        if not colon:
            return f"expected index:value, found {_shown(token)}"
        if not _INTEGER.match(index):
            return f"the index in {_shown(token)} is not a whole number"
        if not _NUMBER.match(value) or not math.isfinite(float(value)):
            return f"the value in {_shown(token)} is not a finite number"
        if len(index) > 12 or not lowest <= int(index) <= features - 1 + lowest:
            return f"the index in {_shown(token)} is outside {lowest}..{features - 1 + lowest}"
        if int(index) <= before:
            return f"the index in {_shown(token)} does not rise above the one before it ({before})"
        before = int(index)
    return None
