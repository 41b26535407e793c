"""Data sets by name: where each comes from, what it must contain, and where its file is kept."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Literal

import numpy as np

from fedpage.core.atomic import put
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.files import check_path, refuse_special
from fedpage.core.registry import Registry
from fedpage.data import libsvm, tables
from fedpage.data.dataset import Dataset, Sparse, encode_labels
from fedpage.data.encoding import Encoding

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class LibsvmFile:
    """Describe a data set that is a LIBSVM file.

    Attributes:
        name: the name that `--data` takes.
        file: its name at the LIBSVM site.
        rows: the number of rows that it must have.
        features: the number of features, d.
        labels: the two labels, the larger of which becomes +1.
        digest: SHA-256 of its content; None where no copy has been checked yet.
        nonzeros: stored entries.
    """

    name: str
    file: str
    rows: int
    features: int
    labels: tuple[int, int]
    digest: str | None = None
    nonzeros: int | None = None

    @property
    def address(self) -> str:
        """The URL to download it from."""
        return SITE + self.file

    @property
    def stems(self) -> tuple[str, ...]:
        """The names that its file may have, without .xz, .bz2 or .gz."""
        return tuple(dict.fromkeys((self.name, self.file, Path(self.file).stem)))

    @property
    def is_pinned(self) -> bool:
        """Whether a digest of the content is known, so that every bit of a file is checked."""
        return self.digest is not None


@dataclass(frozen=True)
class Embedded:
    """Describe a data set that needs no file.

    Attributes:
        make: a function that returns it; its parameters are settings such as census:skew=1.
        rows: the number of rows at the default settings.
        features: the number of features, d.
        note: what a list of data sets says of it.
    """

    make: Callable[..., Dataset]
    rows: int
    features: int
    note: str


DATASETS: Registry[LibsvmFile | Embedded] = Registry("data set")
"""The data sets by the names that `load` and `--data` take."""


def register_embedded(
    name: str, *, rows: int, features: int, note: str
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Return a decorator that registers a function as a data set that needs no file."""

    def register(make: Callable[..., Dataset]) -> Callable[..., Dataset]:
        DATASETS.add(name, Embedded(make, rows, features, note))
        return make

    return register


for _file in (
    LibsvmFile(
        "a9a", "a9a", 32_561, 123, (-1, 1),
        "a777ee0313153c7d86bf8d58bcc9ae95c59c592dd6b401e0c4b3ee6e1768b553", 451_592,
    ),
    LibsvmFile(
        "w8a", "w8a", 49_749, 300, (-1, 1),
        "400415939385a06496be41e5b4d92345544ccaadef46ed194135726fefa2c793", 579_586,
    ),
    LibsvmFile(
        "mushrooms", "mushrooms", 8_124, 112, (1, 2),
        "9ee1d77bc525ea0b84b13d294ad9b087b1122a5c998b0e50a467adad02b6291e", 170_604,
    ),
    LibsvmFile("phishing", "phishing", 11_055, 68, (0, 1)),
    LibsvmFile("ijcnn1", "ijcnn1.bz2", 49_990, 22, (-1, 1)),
    LibsvmFile("covtype.binary", "covtype.libsvm.binary.bz2", 581_012, 54, (1, 2)),
    LibsvmFile("rcv1.binary", "rcv1_train.binary.bz2", 20_242, 47_236, (-1, 1)),
    LibsvmFile("real-sim", "real-sim.bz2", 72_309, 20_958, (-1, 1)),
):  # fmt: skip
    DATASETS.add(_file.name, _file)


_FRAME_SUFFIXES = (".xlsx", ".xls", ".ods", ".feather", ".arrow", ".json", ".jsonl", ".dta", ".sav")
"""Files that other libraries read as frames."""


def cache_dir() -> Path:
    """Return the directory for data files: FEDPAGE_DATA, or the platform's cache directory."""
    given = os.environ.get("FEDPAGE_DATA")
    return Path(given) if given else platform_cache()


def platform_cache() -> Path:
    """Return fedpage's folder in the platform's cache directory."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "fedpage"


def parsed_dir() -> Path:
    """Return the directory that caches the arrays of parsed files."""
    return platform_cache() / "parsed"


def reference_dir() -> Path:
    """Return the directory that caches the reference solutions of problems."""
    return platform_cache() / "reference"


def libsvm_file(name: str) -> LibsvmFile:
    """Return the description of a data set that is a file.

    Raises:
        InputError: the name is unknown, or its data set needs no file.
    """
    if name not in DATASETS:
        raise InputError(_unknown(name))
    entry = DATASETS[name]
    if isinstance(entry, Embedded):
        raise InputError(f"data set {name!r} is embedded: it has no file to fetch or verify")
    return entry


def _unknown(name: str) -> str:
    return f"{DATASETS.unknown(name)}, or give the path of a file"


def find(item: LibsvmFile) -> Path | None:
    """Find the file of a registered data set, plain or compressed.

    FEDPAGE_DATA is searched first, then the platform's cache directory.
    """
    for folder in dict.fromkeys((cache_dir(), platform_cache())):
        for stem in item.stems:
            for suffix in libsvm.SUFFIXES:
                path = folder / (stem + suffix)
                if path.is_file():
                    return path
    return None


def offline_hint(item: LibsvmFile, named: str = "") -> str:
    """Say how a data set comes to a machine without a network.

    Args:
        item: the data set.
        named: an address that the message names already.
    """
    what = "it" if named == item.address else item.address
    return f"or get {what} elsewhere and `fedpage data add {item.file}`"


def load(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    client: str | None = None,
    standardise: bool = False,
    missing: Literal["error", "drop", "mean"] = "error",
    drop: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    encoding: Encoding | None = None,
    name: str | None = None,
    features: int | None = None,
    one_based: bool = True,
    **options: float,
) -> Dataset:
    """Load a data set by name ("a9a", "census", ...) or from a file.

    The suffix says what a file is: .csv and .tsv (with column names in the first line), .parquet,
    .npz (arrays X, y and clients); any other file is read as LIBSVM. CSV, TSV and LIBSVM files may
    be compressed (.xz, .bz2, .gz).

    In a table, columns of numbers are features, and columns of text become one feature a category.
    A column is numeric if more than 90 % of its cells are numbers; other cells in it are errors.

    Args:
        path: the path of a file, or a name of DATASETS.
        label: the column of a table that holds the labels.
        client: the column of a table that says whose row each is; it is no feature.
        standardise: whether numbers of a table get mean 0 and standard deviation 1.
        missing: what to do about missing values of a table ("", NA, NaN, null, ...): "error";
            "drop" leaves out the rows; "mean" fills in the mean of numbers, and makes missing
            categories a category of their own.
        drop: columns of a table to leave out.
        columns: the columns of a table to use as features; by default all others.
        categorical: columns of a table that are categories although they hold numbers.
        encoding: that of another data set, as `train.encoding`: a table of test rows then gets the
            same features. It also says which columns are the label and the client ids.
        name: the name in records and reports; by default that of the file.
        features: d of a LIBSVM file; by default its largest index.
        one_based: whether indices of a LIBSVM file begin at 1.
        **options: settings of an embedded data set, as in `load("census", skew=1.0)`.

    Returns:
        The data set. Labels of two kinds become -1/+1, the larger positive. A table's data set has
        an `encoding`, which encodes new rows.

    Raises:
        InputError: the name is unknown, or the file is missing, malformed or not the expected one.

    >>> load("census", rows=100).features
    123
    """
    check_path(path)
    text = os.fspath(path)
    table = tables.TableOptions(
        label, client, standardise, missing, drop, columns, categorical, encoding
    )
    is_name = isinstance(path, str) and text in DATASETS
    if not is_name and tables.is_table(Path(text)):
        _refuse(text, options)
        return tables.load_table(Path(text), table, name)
    if table.given:
        if not is_name:
            _check_path(Path(text))
        raise InputError(
            f"{text}: {', '.join(table.given)} is for tables (.csv, .tsv, .parquet), not for "
            f"{'this data set' if is_name else 'LIBSVM files'}"
        )
    data = _load(path, text, features, one_based, options)
    return data if name is None else replace(data, name=name)


def _load(
    path: str | os.PathLike[str],
    text: str,
    features: int | None,
    one_based: bool,
    options: dict[str, float],
) -> Dataset:
    """Load a registered data set or a LIBSVM file."""
    if not isinstance(path, str):  # a Path is a path, even if a data set has the same name
        return _load_path(Path(text), features, one_based)
    entry = DATASETS.get(text)
    if isinstance(entry, Embedded):
        unknown = sorted(set(options) - set(signature(entry.make).parameters))
        if unknown:
            known = ", ".join(signature(entry.make).parameters) or "no options"
            raise InputError(
                f"data set {text!r} has no option {', '.join(unknown)}; it has {known}"
            )
        return entry.make(**options)
    _refuse(text, options)
    if entry is not None:
        found = find(entry)
        if found is None:
            raise InputError(
                f"data set {text!r} is not on this machine: run `fedpage data fetch {text}`; "
                f"{offline_hint(entry)}"
            )
        return _check(entry, found, _parse(found, entry.features, True))
    if not text:
        raise InputError("no data set was named; `fedpage data list` shows them")
    stem = text.partition(":")[0]
    if stem in DATASETS:
        raise InputError(f"data set {stem!r} is a file and has no settings; write --data {stem}")
    file = Path(text)
    suffixes = libsvm.SUFFIXES[1:]
    if (
        file.exists()
        or os.sep in text
        or file.suffix in {".txt", ".svm", ".libsvm", *suffixes, *_FRAME_SUFFIXES}
        or any(file.with_name(file.name + suffix).is_file() for suffix in suffixes)
    ):
        return _load_path(file, features, one_based)
    raise InputError(_unknown(text))


def _refuse(name: str, options: dict[str, float]) -> None:
    if options:
        hint = did_you_mean(min(options), signature(load).parameters)
        end = f";{hint}" if hint else ""
        raise InputError(f"data set {name!r} takes no option {', '.join(sorted(options))}{end}")


def _check_path(path: Path) -> None:
    """Refuse a directory, a special file, and a table of a format that is not read."""
    refuse_special(path)
    if path.is_dir():
        raise InputError(f"{path} is a directory; give the path of a file")
    if path.suffix.lower() in _FRAME_SUFFIXES:
        raise InputError(
            f"{path}: files of this kind are not read here; save it as CSV, or read it by pandas "
            "or polars and give the frame to fp.Dataset.from_frame"
        )


def _load_path(path: Path, features: int | None, one_based: bool) -> Dataset:
    _check_path(path)
    for suffix in libsvm.SUFFIXES:
        found = path.with_name(path.name + suffix)
        if found.is_file():
            return _dataset(found.name, _parse(found, features, one_based))
    raise InputError(f"{path}: there is no such file")


def verify(item: LibsvmFile, path: Path) -> Dataset:
    """Parse a file again, without the cache, and check it against its description.

    Raises:
        InputError: the content differs; the message says in what.
    """
    parsed = libsvm.parse(libsvm.read_bytes(path), features=item.features, source=str(path))
    return _check(item, path, parsed)


def _check(item: LibsvmFile, path: Path, parsed: libsvm.Parsed) -> Dataset:
    if len(parsed.y) != item.rows:
        raise InputError(
            f"{path}: {item.name} has {item.rows:,} rows, this file {len(parsed.y):,}; "
            "fetch it again"
        )
    if set(np.unique(parsed.y)) != set(item.labels):
        raise InputError(
            f"{path}: {item.name}'s labels are {item.labels}, this file's are not; fetch it again"
        )
    data = _dataset(
        item.name,
        parsed,
        note=""
        if item.is_pinned
        else "unpinned: only rows, labels and the range of indices were checked",
    )
    if item.is_pinned and data.digest != item.digest:
        raise InputError(
            f"{path}: the content differs from the known {item.name} "
            f"(digest {data.digest[:12]}, expected {str(item.digest)[:12]}); fetch it again"
        )
    return data


def _dataset(name: str, parsed: libsvm.Parsed, note: str = "") -> Dataset:
    y, classes = encode_labels(name, parsed.y)
    matrix = Sparse(parsed.indptr, parsed.indices, parsed.values, parsed.features)
    return Dataset(name, matrix, y, classes=classes, note=note)


def _parse(path: Path, features: int | None, one_based: bool) -> libsvm.Parsed:
    """Parse a file, or read the arrays that were cached when the same bytes were parsed before.

    The cache saves the import of scikit-learn, which takes longer than a thousand rounds. A cached
    file is named after the bytes it was parsed from and begins with a digest of its own content,
    so that a stale or damaged one is never used.
    """
    raw = libsvm.read_packed(path)
    key = hashlib.sha256(raw + f"|{path.suffix}|{features}|{one_based}|2".encode()).hexdigest()
    stored = parsed_dir() / f"{key}.npz"
    with contextlib.suppress(Exception):  # a damaged cache only means parsing again
        cached = stored.read_bytes()
        # a damaged header could make numpy allocate gigabytes, so the digest comes first
        if hashlib.sha256(cached[32:]).digest() == cached[:32]:
            with np.load(io.BytesIO(cached[32:]), allow_pickle=False) as arrays:
                return libsvm.Parsed(
                    arrays["y"], arrays["indptr"], arrays["indices"], arrays["values"],
                    int(arrays["features"]),
                )  # fmt: skip
    text = libsvm.unpack(raw, path.suffix, str(path))
    parsed = libsvm.parse(text, features=features, one_based=one_based, source=str(path))
    buffer = io.BytesIO()
    np.savez(buffer, **parsed._asdict())
    with contextlib.suppress(OSError):  # a home that cannot be written only costs speed
        stored.parent.mkdir(parents=True, exist_ok=True)
        put(stored, hashlib.sha256(buffer.getbuffer()).digest() + buffer.getbuffer())
    return parsed
