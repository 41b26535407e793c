"""Make data sets from tables: CSV, TSV, parquet and .npz files, and frames."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import check_file
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset, Label, class_targets, encode_labels
from fedpage.data.encoding import (
    INFINITE,
    MISSING_CELL,
    MISSING_IN_NEW_ROW,
    MISSING_LABEL,
    CategoryColumn,
    Encoding,
    NumberColumn,
    encode,
)
from fedpage.data.files import table_suffix
from fedpage.data.frames import (
    DATES,
    DataTable,
    DelimitedReader,
    FrameReader,
    RowsReader,
    SitesReader,
    check_names,
    is_number,
    read_parquet,
    short_list,
)
from fedpage.data.registry import TableOptions

Reader = DelimitedReader | FrameReader | RowsReader | SitesReader
_MOSTLY = 0.9
"""A column with a larger share of numbers than this is numeric, and other text in it an error."""
_FEW_VALUES = 20
"""A column of text with more values than this, and than half its rows, is not a category."""
_ID = re.compile(r"(-?(?:0|[1-9][0-9]{0,17}))(?:\.0)?\Z")
"""A whole number; tables hold it as 1.0 where other rows of the column have no value."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.,]+(Z|[+-][0-9:]+)?)?\Z")
"""A date, or a date and a time, of ISO 8601."""
_WITH_COMMAS = re.compile(r"[+-]?[0-9]+(,[0-9]+)+(\.[0-9]*)?\Z")
"""A number with commas, such as 1,234 or 0,5."""


def load_table(path: Path, options: TableOptions, name: str | None = None) -> Dataset:
    """Load a CSV, TSV, parquet or .npz file."""
    if table_suffix(path) == ".npz":
        return _load_npz(path, name or path.name)
    return make_dataset(open_table(path), options, name or path.name)


def open_table(path: Path) -> DelimitedReader | FrameReader:
    """Open a CSV, TSV or parquet file, which has `names` and reads columns."""
    return read_parquet(path) if table_suffix(path) == ".parquet" else DelimitedReader(path)


def make_dataset(reader: Reader, options: TableOptions, name: str) -> Dataset:
    """Read and encode a table: the one way from any source to a data set."""
    label, owner, features, categorical = _choose_columns(reader, options)
    used = [*features, label, *owner]
    table = reader.read(used, {*categorical, *owner})
    known, rows = options.encoding, table.rows
    for column in () if known else features:
        _check_index(table, column)
        _check_text(table, column)
    _check_text(table, label, is_label=True)
    if options.missing == "drop":
        absent = {column: table.is_missing(column) for column in used}
        emptiest = max(used, key=lambda column: int(absent[column].sum()))
        table = table.take(~np.any(list(absent.values()), axis=0))
    if not table.rows:
        found = f" without a missing value; most are in column {emptiest!r}" if rows else ""
        raise InputError(f"{table.source}: there are column names but no rows{found}")
    for column in (label, *owner):
        table.refuse(table.is_missing(column), column, MISSING_LABEL)
    y, classes = _encode_label(table, label, fewest=1 if known else 2)
    inputs = replace(table, frame=table.frame.select(features))
    fill: Literal["error", "mean"] = "mean" if options.missing == "mean" else "error"
    encoding = replace(
        known or Encoding.fit(inputs, standardise=options.standardise, missing=fill),
        label=label,
        client=owner[0] if owner else None,
        left_out=tuple(column for column in reader.names if column not in used),
        dropped_rows=rows - table.rows,
    )
    advice = MISSING_IN_NEW_ROW if known else MISSING_CELL
    return Dataset(
        name,
        encode(inputs, encoding.columns, unknown="error", advice=advice),
        y,
        classes=classes,
        clients=_read_ids(table, owner[0]) if owner else None,
        columns=encoding.feature_names,
        encoding=encoding,
        note=_note(encoding),
    )


def _choose_columns(
    reader: Reader, options: TableOptions
) -> tuple[str, list[str], list[str], list[str]]:
    """Return the label, the column of client ids if any, the features, and the categories."""
    names, source, encoding = reader.names, reader.source, options.encoding
    label, client, chosen = options.label, options.client, options.columns
    categorical = list(options.categorical)
    if encoding is not None:
        encoding.check_names(names, source)
        label = label or encoding.label
        if client is None and encoding.client in names:
            client = encoding.client
        chosen = [column.name for column in encoding.columns]
        categorical = sorted(encoding.text_columns)
    if label is None:
        raise InputError(
            f"{source}: say which column is the label, as in label={names[-1]!r} "
            f"(--label on the command line); the columns are {short_list(names)}"
        )
    owner = [] if client is None else [client]
    wanted, taken = [*(chosen or ()), *categorical], [label, *owner, *options.drop]
    check_names([*taken, *wanted], names, source)
    for name in [label] if label == client else wanted:
        if name in taken:
            raise InputError(
                f"{source}: column {name!r} is the label, the client ids or left out, so it cannot "
                "be anything else"
            )
    others = (name for name in names if name not in taken)
    features = list(dict.fromkeys(others if chosen is None else chosen))
    if not features:
        raise InputError(f"{source}: no column is left to be a feature of {short_list(names)}")
    return label, owner, features, categorical


def _note(encoding: Encoding) -> str:
    """Describe in a line what was done to the table."""
    categories = [c for c in encoding.columns if isinstance(c, CategoryColumn)]
    numbers = [c for c in encoding.columns if isinstance(c, NumberColumn)]
    is_filled = any(c.has_missing for c in categories) or any(c.fill is not None for c in numbers)
    one_hot, dropped = short_list(repr(c.name) for c in categories), encoding.dropped_rows
    words = (
        f"label {encoding.label!r}",
        f"client ids {encoding.client!r}" if encoding.client else "",
        f"one-hot: {one_hot}" if categories else "",
        "numbers standardised" if encoding.standardised else "",
        "missing values filled in" if is_filled else "",
        f"{dropped:,} rows with missing values left out" if dropped else "",
        f"without {short_list(map(repr, encoding.left_out))}" if encoding.left_out else "",
    )
    return "; ".join(filter(None, words))


def _check_index(table: DataTable, name: str) -> None:
    """Refuse a column without a name that counts the rows."""
    if name in ("column 1", "Unnamed: 0") and not table.is_text(name) and table.rows > 1:
        numbers = table.numbers(name)
        counted = numbers[0] + np.arange(len(numbers))
        if numbers[0] in (0, 1) and np.array_equal(numbers, counted):
            raise InputError(
                f"{table.source}: the first column has no name and counts the rows, as the index "
                f"of a frame does; leave it out with drop=({name!r},) (--drop {name!r})"
            )


def _check_text(table: DataTable, name: str, is_label: bool = False) -> None:
    """Refuse a column of text that holds numbers with bad cells, dates, or ids."""
    if not table.is_text(name) or table.is_missing(name).all():
        return
    codes, values = table.codes(name)
    counts = np.bincount(codes[codes >= 0])
    total = int(counts.sum())
    plain = np.array([is_number(value) for value in values])
    if name not in table.categorical:
        commas = np.array([_WITH_COMMAS.match(value) is not None for value in values])
        share = float(counts[plain | commas].sum()) / total
        if share > _MOSTLY and not plain.all():
            row = int(np.append(~plain, False)[codes].argmax())
            advice = (
                "write 1234.5 without a comma"
                if commas[codes[row]]
                else f"correct the cell, give categorical=({name!r},) (--categorical), or leave "
                f"the column out with drop=({name!r},) (--drop)"
            )
            raise InputError(
                f"{table.cell(row, name)}: {short_repr(values[codes[row]])} is not a number, as "
                f"{100 * share:.3g} % of the column are; {advice}"
            )
        if all(map(_DATE.match, values)):
            raise InputError(f"{table.source}, column {name!r}: {DATES}")
    if len(values) > max(_FEW_VALUES, total / 2):
        advice = (
            "choose another label" if is_label else f"leave it out with drop=({name!r},) (--drop)"
        )
        if plain.all():
            advice = "if they are numbers, convert the column, as by astype(float)"
        raise InputError(
            f"{table.source}: column {name!r} has {len(values):,} different texts in "
            f"{total:,} rows, as an id or free text does; {advice}"
        )


def _encode_label(
    table: DataTable, name: str, fewest: int
) -> tuple[Vector, tuple[Label, ...] | None]:
    """Return labels as numbers, and the classes; test rows may have fewer than two."""
    if table.is_text(name):
        codes, values = table.codes(name)
        if len(values) < fewest:
            value = short_repr(values[0])
            raise InputError(f"{table.source}: the label {name!r} is {value} in every row")
        return class_targets(codes.astype(np.int64), len(values)), values
    numbers = table.numbers(name)
    table.refuse(np.isinf(numbers), name, INFINITE)
    return encode_labels(table.source, numbers.astype(bool) if table.is_bool(name) else numbers)


def _read_ids(table: DataTable, name: str) -> NDArray[Any]:
    """Return client ids (n,): integers if all are whole numbers as Python writes them, or text."""
    codes, values = table.codes(name)
    numbers = [int(match[1]) for match in map(_ID.match, values) if match]
    if len(set(numbers)) == len(values):  # "1" and "1.0" stay two ids
        return np.array(numbers, dtype=np.int64)[codes]
    return np.array(values)[codes]


def _load_npz(path: Path, name: str) -> Dataset:
    """Read the arrays X (or data, indices, indptr and shape of a CSR matrix), y and clients."""
    from scipy.sparse import csr_array

    check_file(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        y: Any = arrays["y"]
        if {"data", "indices", "indptr"} <= set(arrays):
            shape = tuple(map(int, arrays["shape"])) if "shape" in arrays else None
            X = csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
            X.check_format(full_check=True)
        else:
            X = arrays["X"]
    except Exception as error:  # zipfile and numpy raise many types for damaged bytes
        raise InputError(
            f"{path}: not an .npz file with arrays X and y of numbers or text, or with data, "
            f"indices, indptr and y of a CSR matrix ({error!r})"
        ) from None
    return Dataset.from_arrays(X, y, name=name, clients=arrays.get("clients"))
