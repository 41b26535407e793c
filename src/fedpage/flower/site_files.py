"""Read a site's own file by the run's schema: columns by name, labels by the agreed classes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.core.validate import is_finite
from fedpage.data import Dataset, libsvm, tables
from fedpage.data.dataset import Label, Sparse, class_targets
from fedpage.data.encoding import (
    MISSING_IN_NEW_ROW,
    CategoryColumn,
    NumberColumn,
    UnknownCategory,
    encode,
)
from fedpage.data.files import read_bytes, table_suffix
from fedpage.data.frames import DataTable, is_number, short_list
from fedpage.data.registry import TableOptions
from fedpage.flower.agreement import Agreement, Statistics, compute_statistics
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.schema import Schema

_NAME = "this node's rows"


class SiteRows(NamedTuple):
    """The rows of a site's file."""

    data: Dataset
    digest: str
    """SHA-256 of the columns that are used, before they are standardised."""
    columns: tuple[str, ...]
    """The feature columns, in the order of the features; () for a file without names."""
    event: Vector | None = None
    """(n,) whether the row ended with an event, for a Cox model."""


def read_site_file(
    path: Path, schema: Schema, agreement: Agreement | None = None, features: int = 0
) -> SiteRows:
    """Read a site's own file: CSV, TSV or parquet with column names, or LIBSVM or .npz without.

    Args:
        path: the file.
        schema: what the run's configuration says of the columns.
        agreement: what the sites agreed on; None before they did.
        features: the number of features of files without names; 0 takes that of the file.

    Returns:
        The rows. Columns of tables are selected by name, in the agreed order.

    Raises:
        NodeError: the file cannot be read, or does not fit the schema.
    """
    if not path.is_file():
        raise NodeError(Code.NO_FILE, f"{path}: there is no such file")
    is_named = table_suffix(path) not in ("", ".npz")
    if is_named:
        return _read_table(path, schema, agreement)
    if schema.columns or (agreement is not None and agreement.columns):
        raise NodeError(
            Code.NO_NAMES, f"{path}: it has no column names, and the run selects columns by name"
        )
    if schema.standardises:
        raise NodeError(Code.NO_NAMES, f"{path}: only tables with column names can be standardised")
    features = agreement.features if agreement is not None else features
    if table_suffix(path):
        data, labels = _read_npz(path)
    else:
        data, labels = _read_libsvm(path, features)
    if features and data.features != features:
        raise NodeError(
            Code.BAD_SIZE, f"{path}: {data.features} features, but {features} are agreed"
        )
    y, classes = _encode_labels(str(path), labels, schema)
    data = Dataset(_NAME, data.matrix, y, classes=classes)
    return SiteRows(data, data.digest, ())


def describe_file(path: Path, used: Collection[str] | None = None) -> str:
    """Read a site's own file and describe it in a line, for its owner.

    Args:
        path: The file.
        used: The columns that may have no missing cell; None: all.

    Raises:
        InputError: the file cannot be read, or a cell is missing.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if table_suffix(path) in ("", ".npz"):
        data, labels = _read_npz(path) if table_suffix(path) else _read_libsvm(path, 0)
        found = np.unique(labels)
        shown = ",".join(f"{v:g}" if found.dtype.kind == "f" else str(v) for v in found[:10])
        return (
            f"{path}: {data.rows:,} rows, {data.features:,} features, "
            f"labels {shown}{' ...' if len(found) > 10 else ''}"
        )
    file = tables.open_table(path)
    names = file.names if used is None else [name for name in file.names if name in used]
    table = file.read(names)
    for name in names:
        absent = table.is_missing(name)
        if absent.any():
            raise InputError(f"{table.cell(int(absent.argmax()), name)}: {MISSING_IN_NEW_ROW}")
    return f"{path}: {table.rows:,} rows, {len(file.names):,} columns: {short_list(file.names)}"


class SiteStatistics(NamedTuple):
    """What a site tells of its rows before the sites agree."""

    rows: int
    statistics: Statistics
    """Of each column of numbers; empty if the run does not standardise."""
    levels: dict[str, list[str]]
    """The categories that enough rows have, of each column whose categories are not known."""
    constants: tuple[float, float]
    """The sums of log b! and b log b over the counts b; 0 if the run does not fit counts."""


def read_statistics(
    path: Path, schema: Schema, columns: Sequence[str], least_cell: int
) -> SiteStatistics:
    """Compute the statistics of the agreed columns in a site's own file.

    Args:
        path: the file, a table.
        schema: what the run's configuration says of the columns.
        columns: the agreed feature columns, in order.
        least_cell: the fewest rows of a category that is told.

    Returns:
        The statistics.

    Raises:
        NodeError: the file cannot be read, does not fit, or has numbers too large to square.
    """
    agreement = Agreement(tuple(columns), schema.count_features(columns))
    table = _open_columns(path, schema, agreement)[0]
    numbers = [name for name in columns if name not in dict(schema.categories)]
    encoded = schema.encode(numbers if schema.standardises else ())
    X = _encode_features(table, encoded, sparse=False)
    assert not isinstance(X, Sparse)
    found = compute_statistics(X)
    if not all(map(is_finite, found)):
        raise NodeError(Code.NOT_FINITE, f"{path}: numbers are too large to be standardised")
    levels = {}
    for name in schema.open_columns:
        codes, values = table.codes(name)
        counts = np.bincount(codes, minlength=len(values))
        levels[name] = [value for value, n in zip(values, counts, strict=True) if n >= least_cell]
    constants = (0.0, 0.0)
    if schema.has_counts:
        b = np.maximum(table.numbers(schema.label), 0.0)
        constants = float(gammaln(b + 1.0).sum()), float(xlogy(b, b).sum())
    return SiteStatistics(table.rows, found, levels, constants)


def _read_table(path: Path, schema: Schema, agreement: Agreement | None) -> SiteRows:
    table, columns = _open_columns(path, schema, agreement)
    encoding = schema.make_encoding(columns, agreement)
    matrix = _encode_features(table, encoding.columns, sparse=schema.is_sparse(columns))
    y, classes = _encode_labels(table.source, _read_labels(table, schema.label), schema)
    data = Dataset(
        _NAME, matrix, y, classes=classes, columns=encoding.feature_names, encoding=encoding
    )
    outcomes = [name for name in (schema.label, schema.event) if name]
    event = table.numbers(schema.event) if schema.event else None
    return SiteRows(data, _digest(table, (*sorted(columns), *outcomes)), columns, event)


def _open_columns(
    path: Path, schema: Schema, agreement: Agreement | None
) -> tuple[DataTable, tuple[str, ...]]:
    """Read the columns that are used, whose names are compared first, and refuse empty cells."""
    try:
        file = tables.open_table(path)
    except InputError as error:
        raise NodeError(Code.BAD_FILE, str(error)) from None
    label = schema.label
    if not label:
        raise NodeError(Code.NO_LABEL, f"{path}: the run config does not name the label column")
    if agreement is not None:
        columns = agreement.columns
    else:
        others = (name for name in file.names if name not in (label, schema.event))
        columns = schema.columns or tuple(others)
    used = (*columns, *filter(None, (label, schema.event)))
    missing = [name for name in used if name not in file.names]
    extra = [] if schema.ignores_extra else [name for name in file.names if name not in used]
    if missing or extra:
        raise NodeError(
            Code.COLUMNS,
            f"{path}: missing columns {missing}, extra columns {extra}",
            missing=missing,
            extra=extra,
        )
    if not columns:
        raise NodeError(Code.BAD_FILE, f"{path}: it has no column beside the label")
    text = {name for name, _ in schema.categories}
    text |= {label} if schema.classes and not schema.has_numeric_classes else set()
    try:
        table = file.read(used, text)
    except InputError as error:
        raise NodeError(Code.BAD_FILE, str(error)) from None
    if table.rows == 0:
        raise NodeError(Code.BAD_FILE, f"{path}: there are column names but no rows")
    for name in used:
        absent = table.is_missing(name)
        if absent.any():
            where = table.cell(int(absent.argmax()), name)
            raise NodeError(Code.BAD_CELL, f"{where}: {MISSING_IN_NEW_ROW}")
    return table, columns


def _encode_features(
    table: DataTable, encoded: Sequence[NumberColumn | CategoryColumn], *, sparse: bool
) -> Sparse | Vector:
    try:
        is_open = any(isinstance(c, CategoryColumn) and c.values == ("",) for c in encoded)
        unknown: Literal["error", "ignore"] = "ignore" if is_open else "error"
        return encode(table, encoded, unknown=unknown, advice=MISSING_IN_NEW_ROW, sparse=sparse)
    except UnknownCategory as error:
        raise NodeError(Code.BAD_CATEGORY, str(error)) from None
    except InputError as error:
        texts = [
            repr(spec.name)
            for spec in encoded
            if isinstance(spec, NumberColumn)
            and table.is_text(spec.name)
            and not any(map(is_number, table.codes(spec.name)[1]))
        ]
        advice = f", or name {', '.join(texts)} in categories in the run config" if texts else ""
        raise NodeError(Code.BAD_CELL, f"{error}{advice}") from None


def _digest(table: DataTable, names: Sequence[str]) -> str:
    """Return the SHA-256 of columns, in the order of the names."""
    state = hashlib.sha256(f"fedpage-columns-1 {table.rows}".encode())
    for name in names:
        state.update(f"{len(name.encode())} {name}".encode())
        if table.is_text(name):
            codes, values = table.codes(name)
            state.update(repr(values).encode())
            state.update(codes.astype("<i4").tobytes())
        else:
            state.update(table.numbers(name).astype("<f8").tobytes())
    return state.hexdigest()


def _read_labels(table: DataTable, name: str) -> NDArray[Any]:
    """Return the labels (n,) as numbers or text."""
    if not table.is_text(name):
        return table.numbers(name)
    codes, values = table.codes(name)
    return np.array(values)[codes]


def _encode_labels(
    source: str, labels: NDArray[Any], schema: Schema
) -> tuple[Vector, tuple[Label, ...] | None]:
    """Return labels as targets: the agreed classes, or the numbers of a regression."""
    if not schema.classes:
        if not np.issubdtype(labels.dtype, np.number):
            raise NodeError(
                Code.BAD_LABEL, f"{source}: a label is text; a regression takes numbers"
            )
        if not bool(np.isfinite(labels).all()):
            raise NodeError(Code.BAD_LABEL, f"{source}: a label is not a finite number")
        return labels, None
    is_text = labels.dtype.kind not in "biuf"
    known: tuple[Label, ...] = schema.classes
    if not is_text:
        if not schema.has_numeric_classes:
            raise NodeError(Code.BAD_LABEL, f"{source}: labels are numbers, the classes are text")
        known = schema.labels
    place = {label: number for number, label in enumerate(known)}
    found, inverse = np.unique(labels, return_inverse=True)
    codes = np.array([place.get(label, -1) for label in found.tolist()], dtype=np.int64)
    if (codes < 0).any():
        row = int(np.flatnonzero(codes[inverse] < 0)[0])
        raise NodeError(
            Code.BAD_LABEL,
            f"{source}: row {row + 1} of the data has the label {short_repr(labels[row].item())}, "
            f"which is not one of {', '.join(map(str, known))}",
        )
    return class_targets(codes[inverse], len(known)), known


def _read_npz(path: Path) -> tuple[Dataset, Vector]:
    """Return the rows of an .npz file, and the labels as they are in it."""
    try:
        data = tables.load_table(path, TableOptions())
    except InputError as error:
        raise NodeError(Code.BAD_FILE, str(error)) from None
    if data.classes is None:
        return data, data.y
    numbers = data.y > 0 if len(data.classes) == 2 else data.y
    return data, np.array(data.classes)[numbers.astype(np.int64)]


def _read_libsvm(path: Path, features: int) -> tuple[Dataset, Vector]:
    """Return the rows of a LIBSVM file, and the labels as they are in it."""
    try:
        y, matrix = libsvm.parse(read_bytes(path), features=features or None, source=str(path))
        return Dataset(_NAME, matrix, np.ones(len(y))), y
    except InputError as error:
        raise NodeError(Code.BAD_FILE, str(error)) from None
