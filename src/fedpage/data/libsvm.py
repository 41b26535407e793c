"""Read LIBSVM files strictly, plain or compressed: lines `label index:value index:value ...`.

scikit-learn's compiled parser reads the text. What it wrongly accepts (indices out of order or
twice, a NaN, an underscore in a number) is checked afterwards. If there is an error, a second, slow
reader finds the line and the token to report.
"""

from __future__ import annotations

import bz2
import io
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import refuse_special
from fedpage.core.types import Vector

_LARGEST = 2**31 - 2
_WIDEST = 20_000_000
"""The most features without `features=`; with more, one mistyped index would cost gigabytes."""
_LONGEST = 4300
"""The most digits of an index, leading zeros included, that Python's int reads."""
_BLOCK, _PIECE = 1 << 16, 1 << 20
_BOMB, _RATIO = 1 << 25, 200
"""An archive is refused if it unpacks to more than 32 MiB and 200 times its size; a9a: 17 times."""
_DICTIONARY = 1 << 28
"""The most memory that an .xz file may need; one of `xz -9` needs a quarter of it."""
_INTEGER = re.compile(rb"[+-]?[0-9]+\Z")
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")


class _Decompressor(Protocol):
    """What the decompressors of lzma and bz2 have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """Give zlib's decompressor the interface of those of lzma and bz2."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(31)
        self.needs_input = True

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = len(piece) < max_length
        return piece

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data


_UNPACKERS: dict[str, Callable[[], _Decompressor]] = {
    ".xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _DICTIONARY),
    ".bz2": bz2.BZ2Decompressor,
    ".gz": _Gzip,
}
SUFFIXES = ("", *_UNPACKERS)


class Parsed(NamedTuple):
    """The content of a file: labels (n,) as written, and a CSR matrix with 0-based indices."""

    y: Vector
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Vector
    features: int


def read_bytes(path: Path) -> bytes:
    """Read a file and unpack it according to its suffix.

    Raises:
        InputError: the file cannot be read or unpacked.
    """
    return unpack(read_packed(path), path.suffix, str(path))


def read_packed(path: Path) -> bytes:
    """Read the bytes of a file without unpacking them.

    Raises:
        InputError: the file cannot be read.
    """
    refuse_special(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
        raise InputError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None


def unpack(packed: bytes, suffix: str, source: str) -> bytes:
    """Unpack the bytes of a .xz, .bz2 or .gz file; other bytes are returned as they are.

    Raises:
        InputError: the archive is damaged, or unpacks to far more than a data set does.
    """
    if suffix not in _UNPACKERS:
        return packed
    return b"".join(unpack_pieces(packed, suffix, source))


def unpack_pieces(packed: bytes, suffix: str, source: str) -> Iterator[bytes]:
    """Unpack the bytes of a .xz, .bz2 or .gz file a piece at a time.

    Raises:
        InputError: the archive is damaged, or unpacks to far more than a data set does.
    """
    size = 0
    try:
        for piece in _pieces(packed, _UNPACKERS[suffix]):
            size += len(piece)
            if size > max(_BOMB, _RATIO * len(packed)):
                raise InputError(
                    f"{source}: unpacks to more than {_RATIO} times its {len(packed):,} bytes; "
                    "if it is a data set nevertheless, unpack it yourself"
                )
            yield piece
    except (lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise InputError(
            f"{source}: not a complete {suffix[1:]} file ({error}); fetch it again"
        ) from None


def _pieces(packed: bytes, unpacker: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Unpack the streams of an archive, which may be padded with zeros, a piece at a time."""
    blocks = (packed[at : at + _BLOCK] for at in range(0, len(packed), _BLOCK))
    rest = b""
    while True:
        machine = unpacker()
        while not machine.eof:
            data = b""
            if machine.needs_input:
                data, rest = rest or next(blocks, b""), b""
                if not data:
                    raise EOFError("it ends too early")
            yield machine.decompress(data, _PIECE)
        rest = machine.unused_data.lstrip(b"\0")
        while not rest:
            block = next(blocks, None)
            if block is None:
                return
            rest = block.lstrip(b"\0")


def parse(
    text: bytes, *, features: int | None, one_based: bool = True, source: str = "<bytes>"
) -> Parsed:
    r"""Parse LIBSVM text.

    Args:
        text: the lines.
        features: d; None takes the largest index.
        one_based: whether indices begin at 1, or else at 0.
        source: what errors call the text.

    Raises:
        InputError: a line is malformed; the message names the line and the token.

    >>> parse(b"+1 1:0.5 3:2\n-1 2:1\n", features=3).indices.tolist()
    [0, 2, 1]
    """
    if features is not None and (
        isinstance(features, bool)
        or not isinstance(features, (int, np.integer))
        or not 1 <= features <= _LARGEST
    ):
        raise InputError(
            f"{source}: features must be a whole number from 1 to {_LARGEST:,}, not "
            f"{short_repr(features)}"
        )
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)  # comments go, line ends stay
    limit = _LARGEST if features is None else features
    if b"_" in text or b"qid" in text:
        _raise_first_error(text, limit, one_based, source)
    from sklearn.datasets import load_svmlight_file

    try:
        matrix, labels = load_svmlight_file(
            io.BytesIO(text), n_features=features, zero_based=not one_based
        )
    except (ValueError, OverflowError, IndexError):
        _raise_first_error(text, limit, one_based, source)
    y = np.ascontiguousarray(labels, dtype=np.float64)
    indptr, indices, values = (
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data,
    )
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
        and (len(indices) == 0 or (int(indices.min()) >= 0 and int(indices.max()) < limit))
    ):
        _raise_first_error(text, limit, one_based, source)
    if len(y) == 0:
        raise InputError(
            f"{source}: there is no row in it; a LIBSVM file has lines such as `1 3:0.5 7:1`"
        )
    width = features
    if width is None:
        width = int(indices.max(initial=0)) + 1
        if width > _WIDEST:
            row = int(np.searchsorted(indptr, int(indices.argmax()), side="right"))
            raise InputError(
                f"{source}, line {_line_of_row(text, row)}: the largest index is "
                f"{width - (not one_based):,}; if it is correct, give the number of features"
            )
    return Parsed(y, indptr, indices, values.astype(np.float64), width)


def _line_of_row(text: bytes, row: int) -> int:
    """Return the line of a row, both counted from 1."""
    lines = (number for number, line in enumerate(io.BytesIO(text), start=1) if line.split(None, 1))
    return next(number for count, number in enumerate(lines, start=1) if count == row)


def _raise_first_error(text: bytes, features: int, one_based: bool, source: str) -> NoReturn:
    """Read line by line until the first error, and raise it with its line and token."""
    for number, line in enumerate(io.BytesIO(text), start=1):
        tokens = line.split()
        if not tokens:
            continue
        fault = _find_error(tokens, features, one_based)
        if fault:
            raise InputError(f"{source}, line {number}: {fault}")
    raise InputError(f"{source}: not a LIBSVM file that scikit-learn can read")


def _quote(token: bytes) -> str:
    text = token[:41].decode("ascii", "backslashreplace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _find_error(tokens: list[bytes], features: int, one_based: bool) -> str | None:
    """Describe the error in the tokens of a line, or return None."""
    if not _NUMBER.match(tokens[0]) or not math.isfinite(float(tokens[0])):
        hint = "; a LIBSVM line is such as `1 3:0.5 7:1`" if b"," in tokens[0] else ""
        hint += ", and arrays from other files go into fp.Dataset.from_arrays" if hint else ""
        return f"the label {_quote(tokens[0])} is not a number{hint}"
    lowest = 1 if one_based else 0
    before = lowest - 1
    for token in tokens[1:]:
        index, colon, value = token.partition(b":")
        if not colon:
            return f"expected index:value, found {_quote(token)}"
        if not _INTEGER.match(index):
            return f"the index in {_quote(token)} is not a whole number"
        if not _NUMBER.match(value) or not math.isfinite(float(value)):
            return f"the value in {_quote(token)} is not a finite number"
        digits = index.lstrip(b"+-")
        if len(digits) > _LONGEST:
            return f"the index in {_quote(token)} has {len(digits):,} digits"
        number = int(digits)
        if not lowest <= number <= features - 1 + lowest or (number and index[:1] == b"-"):
            return f"the index in {_quote(token)} is outside {lowest}..{features - 1 + lowest}"
        if number <= before:
            return f"the index in {_quote(token)} does not rise above the one before it ({before})"
        before = number
    return None
