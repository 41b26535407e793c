"""Make data sets from tables: CSV, TSV, parquet and .npz files, and frames."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import refuse_special
from fedpage.core.types import Vector
from fedpage.core.validate import is_word
from fedpage.data import libsvm
from fedpage.data.columns import (
    DATES,
    Numbers,
    Table,
    Text,
    column_names,
    has_commas,
    is_number,
    no_column,
    read_columns,
    short_list,
)
from fedpage.data.dataset import Dataset, Label, class_targets, encode_labels
from fedpage.data.delimited import Delimited
from fedpage.data.encoding import Encoding
from fedpage.data.features import MISSING_CELL, MISSING_IN_NEW_ROW, encode

Missing = Literal["error", "drop", "mean"]
TEXT_SUFFIXES = (".csv", ".tsv")
_MOSTLY = 0.9
"""A column with a larger share of numbers than this is numeric, and other text in it an error."""
_FEW_VALUES = 20
"""A column of text with more values than this, and than half its rows, is no category."""
_ID = re.compile(r"(-?(?:0|[1-9][0-9]{0,17}))(?:\.0)?\Z")
"""A whole number; tables hold it as 1.0 where other rows of the column have no value."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.,]+(Z|[+-][0-9:]+)?)?\Z")
"""A date, or a date and a time, of ISO 8601."""


def is_table(path: Path) -> bool:
    """Say whether a path is that of a table, by its suffix: .csv, .tsv, .parquet or .npz."""
    return _suffix(path) in (*TEXT_SUFFIXES, ".parquet", ".npz")


def _suffix(path: Path) -> str:
    """Return the suffix without that of a compressed file."""
    if path.suffix in libsvm.SUFFIXES[1:]:
        path = path.with_suffix("")
    return path.suffix.lower()


@dataclass(frozen=True)
class TableOptions:
    """Say how a table becomes a data set; `load` explains the options.

    Raises:
        InputError: an option is not of its type.
    """

    label: str | None = None
    client: str | None = None
    standardise: bool = False
    missing: Missing = "error"
    drop: Sequence[str] = ()
    columns: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None:
            self._take_encoding(self.encoding)
        for option in ("label", "client"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise InputError(f"{option} must be a column's name, not {short_repr(value)}")
        for option in ("drop", "columns", "categorical"):
            value = getattr(self, option)
            if isinstance(value, str):
                object.__setattr__(self, option, (value,))
            elif value is not None and not (
                isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
            ):
                raise InputError(
                    f"{option} must be a list of column names, not {short_repr(value)}"
                )
        if not is_word(self.missing, ("error", "drop", "mean")):
            raise InputError(f"missing must be error, drop or mean, not {short_repr(self.missing)}")
        if not isinstance(self.standardise, bool):
            raise InputError(
                f"standardise must be True or False, not {short_repr(self.standardise)}"
            )

    def _take_encoding(self, encoding: Encoding) -> None:
        """Take the label and the columns of an encoding, which leaves no choice of features."""
        if not isinstance(encoding, Encoding):
            raise InputError(
                f"encoding must be that of a data set, as data.encoding, not {short_repr(encoding)}"
            )
        chosen = [name for name in self.given if name not in ("encoding", "label", "client")]
        if chosen not in ([], ["missing"]) or self.missing == "mean":
            raise InputError(
                f"{', '.join(chosen)} cannot be given with encoding=, which says how each column "
                "is encoded"
            )
        if self.label is None:
            object.__setattr__(self, "label", encoding.label)

    @property
    def given(self) -> list[str]:
        """The names of the options that differ from their defaults."""
        return [f.name for f in fields(self) if getattr(self, f.name) not in (f.default, [])]


def load_table(path: Path, options: TableOptions, name: str | None = None) -> Dataset:
    """Load a CSV, TSV, parquet or .npz file.

    Raises:
        InputError: the file or an option cannot be used.
    """
    if _suffix(path) == ".npz":
        if options.given:
            raise InputError(
                f"{path.name}: {', '.join(options.given)} is for CSV and parquet; an .npz file has "
                "arrays named X, y and, if rows have owners, clients"
            )
        return _load_npz(path, name or path.name)
    file = open_table(path)
    roles = Roles.choose(file.names, path.name, options)
    return _to_dataset(file.read(roles.used, roles.text), roles, options, name or path.name)


def from_frame(frame: Any, options: TableOptions, name: str) -> Dataset:
    """Make a data set from a frame, columns {name: values} or rows [{name: value}].

    Raises:
        InputError: the frame or an option cannot be used.
    """
    roles = Roles.choose(column_names(frame, name), name, options)
    return _to_dataset(read_columns(frame, roles.used, name, roles.text), roles, options, name)


def open_table(path: Path) -> Delimited | ParquetFile:
    """Open a CSV, TSV or parquet file, which has `names` and reads columns.

    Raises:
        InputError: the file cannot be read, or is not a table.
    """
    return ParquetFile(path) if _suffix(path) == ".parquet" else Delimited(path)


def encode_file(path: Path, encoding: Encoding) -> Any:
    """Encode the rows of a CSV, TSV or parquet file as (n, p) features, for predictions.

    Args:
        path: the file. It has the columns of the encoding; the label, the client ids and columns
            that were left out may be in it.
        encoding: how the data of the model was encoded.

    Returns:
        A dense array or a scipy.sparse CSR array.

    Raises:
        InputError: the file cannot be read, or a row cannot be encoded.
    """
    if not is_table(path) or _suffix(path) == ".npz":
        raise InputError(f"{path}: new rows are read from a .csv, .tsv or .parquet file")
    file = open_table(path)
    encoding.check_names(file.names, path.name)
    table = file.read([column.name for column in encoding.columns], encoding.text_columns)
    return encoding.transform(table)


@dataclass(frozen=True)
class Roles:
    """Say what each column of a table is.

    Attributes:
        label: the column of the labels.
        client: the column of the client ids, or None.
        features: the columns that become features.
        left_out: the columns that are not used.
        categorical: features that are categories although they hold numbers.
    """

    label: str
    client: str | None
    features: tuple[str, ...]
    left_out: tuple[str, ...]
    categorical: frozenset[str]

    @property
    def used(self) -> list[str]:
        """The columns to read."""
        return [*self.features, self.label, *([self.client] if self.client else [])]

    @property
    def text(self) -> frozenset[str]:
        """The columns to read as text: categories, and the ids as they are written."""
        return self.categorical | ({self.client} if self.client else set())

    @classmethod
    def choose(cls, names: Sequence[str], source: str, options: TableOptions) -> Roles:
        """Check the names in the options against those of the table.

        Raises:
            InputError: a name is missing, unknown or used twice.
        """
        label, client, chosen = options.label, options.client, options.columns
        encoding, categorical = options.encoding, options.categorical
        if encoding is not None:
            encoding.check_names(list(names), source)
            if client is None and encoding.client in names:
                client = encoding.client
            chosen = [column.name for column in encoding.columns]
            categorical = sorted(encoding.text_columns)
        if label is None:
            raise InputError(
                f"{source}: say which column is the label, as in label={names[-1]!r} "
                f"(--label on the command line); the columns are {short_list(names)}"
            )
        others = [*options.drop, *(chosen or ()), *categorical]
        for name in (label, *([client] if client is not None else []), *others):
            if name not in names:
                raise InputError(f"{source}: {no_column(name, names)}")
        if label == client:
            raise InputError(f"{source}: {label!r} cannot be both the label and the client ids")
        taken = {label, client, *options.drop}
        for name in (*(chosen or ()), *categorical):
            if name in taken:
                raise InputError(
                    f"{source}: column {name!r} is the label, the client ids or left out, "
                    "so it cannot be a feature"
                )
        features = tuple(name for name in names if name not in taken)
        if chosen is not None:
            features = tuple(dict.fromkeys(chosen))
        if not features:
            raise InputError(
                f"{source}: no column is left to be a feature; the columns are {short_list(names)}"
            )
        left_out = tuple(name for name in names if name not in (*features, label, client))
        return cls(label, client, features, left_out, frozenset(categorical))


def _to_dataset(table: Table, roles: Roles, options: TableOptions, name: str) -> Dataset:
    """Encode a table: the one way from any source to a data set."""
    if table.rows == 0:
        raise InputError(f"{table.source}: there are column names but no rows")
    for column in [] if options.encoding else roles.used:
        _check_not_empty(table, column, column in roles.features)
        if column in roles.features:
            _check_no_row_numbers(table, column)
    known = options.encoding
    for column in (roles.label,) if known else (*roles.features, roles.label):
        _check_text(table, column, column == roles.label)
    rows = table.rows
    if options.missing == "drop":
        absent = np.zeros(rows, dtype=bool)
        for cells in table.columns.values():
            absent |= cells.is_missing()
        if absent.all():
            raise InputError(f"{table.source}: every row has a missing value; none is left")
        if absent.any():
            table = table.take(np.flatnonzero(~absent))
    label = table.columns[roles.label]
    for column in (roles.label, *([roles.client] if roles.client else [])):
        absent = table.columns[column].is_missing()
        if absent.any():
            raise InputError(
                f"{table.cell(int(absent.argmax()), column)}: the value is missing; correct the "
                'cell, or give missing="drop" (--missing drop) to leave out such rows'
            )
    y, classes = _encode_label(table, roles.label, label, fewest=1 if known else 2)
    clients = _to_ids(table.columns[roles.client]) if roles.client else None
    features = Table(
        table.source, {n: table.columns[n] for n in roles.features}, table.rows, table.locate
    )
    encoding = replace(
        known
        or Encoding.fit(
            features,
            standardise=options.standardise,
            missing="mean" if options.missing == "mean" else "error",
        ),
        label=roles.label,
        client=roles.client,
        left_out=roles.left_out,
        dropped_rows=rows - table.rows,
    )
    return Dataset(
        name,
        encode(
            features,
            encoding.columns,
            unknown="error",
            advice=MISSING_IN_NEW_ROW if known else MISSING_CELL,
        ),
        y,
        classes=classes,
        clients=clients,
        columns=encoding.feature_names,
        encoding=encoding,
        note=_note(encoding),
    )


def _note(encoding: Encoding) -> str:
    """Say in a line what was done to the table."""
    said = encoding.describe()
    words = [f"label {encoding.label!r}"]
    if encoding.client:
        words.append(f"client ids {encoding.client!r}")
    if said["categories"]:
        words.append(f"one-hot: {short_list([repr(name) for name in said['categories']])}")
    if encoding.standardised:
        words.append("numbers standardised")
    if encoding.fills_missing:
        words.append("missing values filled in")
    if encoding.dropped_rows:
        words.append(f"{encoding.dropped_rows:,} rows with missing values left out")
    if encoding.left_out:
        words.append(f"without {short_list([repr(name) for name in encoding.left_out])}")
    return "; ".join(words)


def _check_not_empty(table: Table, name: str, is_feature: bool) -> None:
    """Refuse a column without any value, such as one after a separator at the end of each line."""
    column = table.columns[name]
    if isinstance(column, Text):
        is_empty = not column.values
    else:
        is_empty = all(bool(np.isnan(block).all()) for _, block in column.blocks())
    if is_empty:
        advice = f"leave it out with drop=({name!r},)" if is_feature else "choose another column"
        raise InputError(f"{table.source}: column {name!r} has no value in any row; {advice}")


def _check_no_row_numbers(table: Table, name: str) -> None:
    """Refuse a first column without a name that counts the rows, as pandas' to_csv writes it."""
    column = table.columns[name]
    if name not in ("column 1", "Unnamed: 0") or isinstance(column, Text) or column.rows < 2:
        return
    first = float(next(iter(column.blocks()))[1][0])
    if first in (0.0, 1.0) and all(
        np.array_equal(block, first + np.arange(at, at + len(block)))
        for at, block in column.blocks()
    ):
        raise InputError(
            f"{table.source}: the first column has no name and counts the rows, as the index of a "
            f"frame does; leave it out with drop=({name!r},) (--drop {name!r})"
        )


def _check_text(table: Table, name: str, is_label: bool) -> None:
    """Refuse a column of text that is a numeric one with bad cells, or that is no category.

    A column is numeric if more than 90 % of its cells are numbers (with commas or not): the others
    are then bad cells. A column is an id or free text if it has more than 20 values, and more than
    half as many values as rows.
    """
    column = table.columns[name]
    if not isinstance(column, Text) or not column.values:
        return
    counts = column.counts()
    total = int(counts.sum())
    if not column.is_category:
        plain = np.array([is_number(value) for value in column.values])
        commas = np.array([has_commas(value) for value in column.values])
        share = float(counts[plain | commas].sum()) / total
        if share > _MOSTLY and not plain.all():
            row = column.first_row(lambda value: not is_number(value))
            assert row is not None
            cell = column.values[column.codes[row]]
            advice = (
                "write 1234.5 without a comma"
                if has_commas(cell)
                else f"correct the cell, give categorical=({name!r},) (--categorical), or leave "
                f"the column out with drop=({name!r},) (--drop)"
            )
            raise InputError(
                f"{table.cell(row, name)}: {short_repr(cell)} is not a number, as "
                f"{100 * share:.3g} % of the column are; {advice}"
            )
        if all(map(_DATE.match, column.values)):
            raise InputError(f"{table.source}, column {name!r}: {DATES}")
    if len(column.values) > max(_FEW_VALUES, total / 2):
        advice = (
            "choose another label" if is_label else f"leave it out with drop=({name!r},) (--drop)"
        )
        if all(map(is_number, column.values)):
            advice = "if they are numbers, convert the column, as by astype(float)"
        raise InputError(
            f"{table.source}: column {name!r} has {len(column.values):,} different texts in "
            f"{total:,} rows, as an id or free text does; {advice}"
        )


def _encode_label(
    table: Table, name: str, column: Numbers | Text, fewest: int
) -> tuple[Vector, tuple[Label, ...] | None]:
    """Return labels as numbers, and the classes; test rows may have fewer than two."""
    if isinstance(column, Text):
        if len(column.values) < fewest:
            raise InputError(
                f"{table.source}: the label {name!r} is {short_repr(column.values[0])} in every "
                "row; two classes or more are needed"
            )
        return class_targets(column.codes.astype(np.int64), len(column.values)), column.values
    numbers = column.to_array()
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(infinite.argmax())
        raise InputError(f"{table.cell(row, name)}: {numbers[row]} is not a finite number")
    return encode_labels(table.source, numbers.astype(bool) if column.is_bool else numbers)


def _to_ids(column: Numbers | Text) -> NDArray[Any]:
    """Return client ids (n,): integers if all are whole numbers as Python writes them, or text."""
    assert isinstance(column, Text)
    found = [_ID.match(value) for value in column.values]
    numbers = {int(match[1]) for match in found if match}
    if len(numbers) == len(column.values):  # "1" and "1.0" stay two ids
        order = [int(match[1]) for match in found if match]
        return np.array(order, dtype=np.int64)[column.codes]
    return column.to_array()


class ParquetFile:
    """Read a parquet file by pyarrow or polars."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_special(path)
        if path.is_dir():
            raise InputError(
                f"{path}: it is a directory; read its files by pandas or polars, and give the "
                "frame to fp.Dataset.from_frame"
            )
        if not path.is_file():
            raise InputError(f"{path}: there is no such file")
        self._library = _import_parquet(path)
        try:
            if self._library.__name__ == "polars":
                self.names = list(self._library.read_parquet_schema(path))
            else:
                self.names = list(self._library.read_schema(path).names)
        except Exception as error:  # each library has its own
            raise InputError(f"{path}: not a parquet file ({_first_line(error)})") from None

    def read(self, names: Collection[str], text: Collection[str] = ()) -> Table:
        """Read columns.

        Raises:
            InputError: the file is damaged.
        """
        is_polars = self._library.__name__ == "polars"
        read = self._library.read_parquet if is_polars else self._library.read_table
        try:
            frame = read(self.path, columns=list(names))
        except Exception as error:
            raise InputError(f"{self.path}: cannot be read ({_first_line(error)})") from None
        return read_columns(frame, names, self.path.name, text)


def _import_parquet(path: Path) -> Any:
    """Return pyarrow's module for parquet, or polars."""
    try:
        from pyarrow import parquet

        return parquet
    except ImportError:
        pass
    try:
        import polars

        return polars
    except ImportError:
        raise InputError(
            f"{path}: parquet files are read by pyarrow: pip install 'fedpage[tables]'"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load_npz(path: Path, name: str) -> Dataset:
    """Read arrays X, y and clients, or those of a CSR matrix: data, indices, indptr and shape."""
    refuse_special(path)
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("a single array, as of an .npy file")
            arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: it is a directory, not a file") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        raise InputError(
            f"{path}: not an .npz file of arrays of numbers or text ({_first_line(error)})"
        ) from None
    is_sparse = {"data", "indices", "indptr"} <= set(arrays)
    if "y" not in arrays or not (is_sparse or "X" in arrays):
        raise InputError(
            f"{path}: an .npz file needs arrays X and y (or data, indices, indptr and y), and has "
            f"{short_list(sorted(arrays))}"
        )
    X: Any = arrays.get("X")
    if is_sparse:
        from scipy.sparse import csr_array

        shape = arrays.get("shape")
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        try:
            X = csr_array(parts, shape=None if shape is None else tuple(map(int, shape)))
            X.check_format(full_check=True)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path}: data, indices and indptr are no CSR matrix ({error})"
            ) from None
    return Dataset.from_arrays(X, arrays["y"], name=name, clients=arrays.get("clients"))
