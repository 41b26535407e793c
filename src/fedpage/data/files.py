"""Read files of users, plain or compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError
from fedpage.core.files import check_file

_OPENERS: dict[str, Any] = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}
SUFFIXES = ("", *_OPENERS)
"""The suffixes of compressed files, and "" for plain ones."""


def compression(path: Path) -> str:
    """Return ".xz", ".bz2" or ".gz" for a compressed file, and "" for others."""
    return path.suffix if path.suffix in SUFFIXES else ""


def table_suffix(path: Path) -> str:
    """Return the suffix of a table before compression (.csv, .tsv, .parquet, .npz), or ""."""
    suffix = Path(path.name.removesuffix(compression(path))).suffix.lower()
    return suffix if suffix in (".csv", ".tsv", ".parquet", ".npz") else ""


def read_bytes(path: Path) -> bytes:
    """Read a file, and unpack it if its suffix says that it is compressed."""
    check_file(path)
    suffix = compression(path)
    if not suffix:
        return path.read_bytes()
    try:
        with _OPENERS[suffix](path, "rb") as file:
            return bytes(file.read())
    except (lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{path}: not a complete {suffix[1:]} file ({error})") from None
