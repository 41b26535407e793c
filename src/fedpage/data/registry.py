"""Data sets by name: where each comes from, what it must contain, and where its file is kept."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import check_file, check_path, put
from fedpage.core.spec import Registry, parse
from fedpage.core.types import Vector
from fedpage.core.validate import choice, flag
from fedpage.data import libsvm
from fedpage.data.dataset import Dataset, Sparse, encode_labels
from fedpage.data.files import SUFFIXES, read_bytes, table_suffix

if TYPE_CHECKING:
    from fedpage.data.encoding import Encoding

_SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_FRAME_SUFFIXES = (".xlsx", ".xls", ".ods", ".feather", ".arrow", ".json", ".jsonl", ".dta", ".sav")
"""Files that other libraries read as frames."""


@dataclass(frozen=True)
class LibsvmFile:
    """Describe a data set that is a LIBSVM file.

    Attributes:
        name: the name that `--data` takes.
        file: its name at the LIBSVM site.
        rows: the number of rows that it must have.
        features: the number of features, d.
        labels: the two labels, the larger of which becomes +1.
        digest: SHA-256 of its content, which pins every bit; None if no copy has been checked yet.
        nonzeros: the number of stored entries.
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
        return _SITE + self.file

    @property
    def stems(self) -> tuple[str, ...]:
        """The names that its file may have, without .xz, .bz2 or .gz."""
        return tuple(dict.fromkeys((self.name, self.file, Path(self.file).stem)))

    @property
    def offline_hint(self) -> str:
        """How the file comes to a machine without a network."""
        return f"or download {self.address} elsewhere, copy it, `fedpage data add {self.file}`"

    def make(self) -> Dataset:
        """Load the file, if it is on this machine."""
        found = find_or_refuse(self)
        return _check_content(self, found, *_parse(found, self.features, True))


@dataclass(frozen=True)
class Embedded:
    """Describe a data set that needs no file.

    Attributes:
        make: a function that returns it; its parameters are settings such as census:skew=1.
        rows: the number of rows at the default settings.
        features: the number of features, d.
        note: the remark in a list of data sets.
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


# Directories and files


def cache_dir() -> Path:
    """Return the directory for data files: FEDPAGE_DATA, or the platform's cache directory."""
    return Path(os.environ.get("FEDPAGE_DATA") or platform_cache())


def platform_cache() -> Path:
    """Return fedpage's folder in the platform's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("fedpage", appauthor=False, opinion=False)


def derived_dir(kind: Literal["parsed", "reference"]) -> Path:
    """Return the directory that caches arrays of parsed files, or reference solutions."""
    return platform_cache() / kind


def libsvm_file(name: str) -> LibsvmFile:
    """Return the description of a data set that is a file.

    Raises:
        InputError: the name is unknown, or its data set needs no file.
    """
    entry = DATASETS[name]
    if isinstance(entry, Embedded):
        raise InputError(f"data set {name!r} is embedded: it has no file to fetch or verify")
    return entry


def find(item: LibsvmFile) -> Path | None:
    """Find the file of a registered data set, plain or compressed.

    FEDPAGE_DATA is searched first, then the platform's cache directory.
    """
    folders = dict.fromkeys((cache_dir(), platform_cache()))
    paths = (f / (stem + suffix) for f in folders for stem in item.stems for suffix in SUFFIXES)
    return next(filter(Path.is_file, paths), None)


def find_or_refuse(item: LibsvmFile) -> Path:
    """Find the file of a registered data set; raise an InputError if it is not here."""
    path = find(item)
    if path is None:
        raise InputError(
            f"{item.name!r} is not on this machine: `fedpage data fetch {item.name}`; "
            f"{item.offline_hint}"
        )
    return path


# Loading


@dataclass(frozen=True)
class TableOptions:
    """Describe how a table becomes a data set; `load` explains the options."""

    label: str | None = None
    client: str | None = None
    standardise: bool = False
    missing: Literal["error", "drop", "mean"] = "error"
    drop: Sequence[str] = ()
    columns: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        names = [name for name in (self.label, self.client) if name is not None]
        for option in ("drop", "columns", "categorical"):
            value = getattr(self, option)
            if isinstance(value, str):
                object.__setattr__(self, option, (value,))
            names += value if isinstance(value, (list, tuple)) else [value or ""]
        if not all(isinstance(name, str) for name in names):
            raise InputError(
                "label and client must be column names, and drop, columns and categorical lists of "
                f"them: {short_repr(names)}"
            )
        choice("table", "missing", self.missing, ("error", "drop", "mean"))
        flag("table", "standardise", self.standardise)
        if self.encoding is not None and not hasattr(self.encoding, "feature_names"):
            raise InputError(f"encoding must be data.encoding, not {short_repr(self.encoding)}")
        chosen = [name for name in self.given if name not in ("encoding", "label", "client")]
        if self.encoding and (chosen not in ([], ["missing"]) or self.missing == "mean"):
            raise InputError(
                f"{', '.join(chosen)} cannot be given with encoding=, which says how each column "
                "is encoded"
            )

    @property
    def given(self) -> list[str]:
        """The names of the options that differ from their defaults."""
        return [f.name for f in fields(self) if getattr(self, f.name) not in (f.default, [])]


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
    """Load a data set by name ("a9a", "census:skew=1", ...) or from a file.

    The suffix says what a file is: .csv and .tsv (with column names in the first line), .parquet,
    .npz (arrays X, y and clients); any other file is read as LIBSVM. CSV, TSV and LIBSVM files may
    be compressed (.xz, .bz2, .gz).

    In a table, columns of numbers are features, and columns of text become one feature a category.
    A column is numeric if more than 90 % of its cells are numbers; other cells in it are errors.

    Args:
        path: the path of a file, or a name of DATASETS, with settings as the command line takes
            them ("digits:classes=10").
        label: the column of a table that holds the labels.
        client: the column of a table that says whose row each is; it is not a feature.
        standardise: whether numbers of a table get mean 0 and standard deviation 1.
        missing: what to do about missing values of a table ("", NA, NaN, null, ...): "error";
            "drop" leaves out the rows; "mean" fills in the mean of numbers, and makes one more
            category of missing categories.
        drop: columns of a table to leave out.
        columns: the columns of a table to use as features; by default all others.
        categorical: columns of a table that are categories although they hold numbers.
        encoding: the encoding of another data set, as `train.encoding`: a table of test rows then
            gets the same features. It also says which columns are the label and the client ids.
        name: the name in records and reports; by default the name of the file.
        features: d of a LIBSVM file; by default its largest index.
        one_based: whether indices of a LIBSVM file begin at 1.
        **options: settings of an embedded data set, as in `load("census", skew=1.0)`.

    Returns:
        The data set. Labels of two kinds become -1/+1, the larger positive. A table's data set has
        an `encoding`, which encodes new rows.

    Raises:
        InputError: the name is unknown, or the file is missing, malformed or not the expected one.

    >>> load("census", rows=100).features, load("digits:classes=10").classes[:3]
    (123, (0, 1, 2))
    """
    file = check_path(path)
    table = TableOptions(label, client, standardise, missing, drop, columns, categorical, encoding)
    # a Path is a path, even if a data set has the same name
    spec = parse(path) if isinstance(path, str) and path.partition(":")[0] in DATASETS else None
    entry = DATASETS[spec.name] if spec else None
    own = signature(entry.make).parameters if entry else {}
    unknown = sorted(set(options) - set(own))
    if unknown:
        hint = did_you_mean(unknown[0], [*own, *signature(load).parameters])
        hint = hint or f" it has {', '.join(own) or 'no options'}"
        raise InputError(f"data set {str(path)!r} has no option {', '.join(unknown)};{hint}")
    suffix = "" if entry else table_suffix(file)
    found = file if entry or suffix else _find_file(path)
    if table.given and suffix in ("", ".npz"):
        noun = "this data set" if entry else f"{suffix or 'LIBSVM'} files"
        raise InputError(
            f"{path}: {', '.join(table.given)} is for tables (.csv, .tsv, .parquet), not for {noun}"
        )
    if suffix:
        from fedpage.data import tables  # it imports polars, which takes time

        return tables.load_table(file, table, name)
    if entry and spec:
        data = spec.build(entry.make, "data set", **options)
        return replace(data, name=name or data.name)
    y, matrix = _parse(found, features, one_based)
    return Dataset(name or found.name, matrix, *encode_labels(found.name, y))


def _find_file(path: str | os.PathLike[str]) -> Path:
    """Find a LIBSVM file; the suffix of a compressed one may be left out."""
    file = Path(path)
    if file.suffix.lower() in _FRAME_SUFFIXES:
        raise InputError(
            f"{path}: files of this kind are not read here; save it as CSV, or read it by pandas "
            "or polars and give the frame to fp.Dataset.from_frame"
        )
    for candidate in [file.with_name(file.name + end) for end in SUFFIXES] if file.name else []:
        if candidate.is_file():
            return candidate
    if path and (not isinstance(path, str) or os.sep in path or file.suffix or file.is_dir()):
        check_file(file)
    raise InputError(f"{DATASETS.unknown(str(path))}, or give the path of a file")


def _parse(path: Path, features: int | None, one_based: bool) -> tuple[Vector, Sparse]:
    """Parse a file, or read the arrays that were cached when the same bytes were parsed before.

    The cache saves the import of scikit-learn, which takes longer than a thousand rounds.
    """
    check_file(path)
    key = f"|{path.suffix}|{features}|{one_based}|3".encode()
    stored = derived_dir("parsed") / f"{hashlib.sha256(path.read_bytes() + key).hexdigest()}.npz"
    with (
        contextlib.suppress(Exception),  # a damaged cache only means parsing again
        stored.open("rb") as cached,
        np.load(cached, allow_pickle=False) as arrays,
    ):
        indptr, indices, values, width = (arrays[name] for name in Sparse._fields)
        return arrays["y"], Sparse(indptr, indices, values, int(width))
    y, matrix = libsvm.parse(
        read_bytes(path), features=features, one_based=one_based, source=str(path)
    )
    with contextlib.suppress(OSError):  # a home that cannot be written only costs speed
        buffer = io.BytesIO()
        np.savez(buffer, y=y, **matrix._asdict())
        stored.parent.mkdir(parents=True, exist_ok=True)
        put(stored, buffer.getvalue(), is_durable=False)
    return y, matrix


def verify(item: LibsvmFile, path: Path) -> Dataset:
    """Parse a file again, without the cache, and check it against its description.

    Raises:
        InputError: the content differs; the message says in what.
    """
    rows = libsvm.parse(read_bytes(path), features=item.features, source=str(path))
    return _check_content(item, path, *rows)


def _check_content(item: LibsvmFile, path: Path, y: Vector, matrix: Sparse) -> Dataset:
    checked = "only rows, labels and the range of indices were checked"
    note = "" if item.digest else f"unpinned: {checked}"
    data = Dataset(item.name, matrix, *encode_labels(item.name, y), note=note)
    for what, expected, found in (
        ("number of rows", item.rows, data.rows),
        ("labels", item.labels, tuple(np.unique(y).tolist())),
        ("digest", (item.digest or data.digest)[:12], data.digest[:12]),
    ):
        if found != expected:
            raise InputError(
                f"{path}: the {what} of {item.name} must be {expected}, not {short_repr(found)}; "
                "fetch it again"
            )
    return data
