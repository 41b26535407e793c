"""Read data sets of Hugging Face `datasets`, and those that flwr-datasets has partitioned.

A source is a `datasets.Dataset`, a list of them with one per client, a partitioner of flwr-datasets
that has its data set, or a `flwr_datasets.FederatedDataset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError
from fedpage.data.dataset import Dataset, class_targets

if TYPE_CHECKING:
    import pyarrow

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = Literal["number", "text", "class", "vector", "image", "other"]
ClientRows: TypeAlias = tuple[Array | tuple[Array, ...], Array]
"""The inputs of a client's rows, several if the model takes several, and their targets."""
_SCALARS = ("number", "text", "class")
_PARTITION = "partition"
"""The name of the column of ids where the clients are partitions without a column of ids."""


class _Source(NamedTuple):
    """Rows by part: one part per client with its id, or one part and perhaps a column of ids."""

    parts: list[Any]
    ids: list[Any] | None
    client: str | None
    note: str

    @property
    def columns(self) -> Any:
        """The features of Hugging Face by column name."""
        return self.parts[0].features

    def kind(self, column: str) -> Kind:
        """Return what a column holds."""
        import pyarrow as pa

        special: dict[str, Kind] = {"ClassLabel": "class", "Image": "image"}
        if type(self.columns[column]).__name__ in special:
            return special[type(self.columns[column]).__name__]
        entry, is_list = self.entry_type(column)
        if pa.types.is_integer(entry) or pa.types.is_floating(entry) or pa.types.is_boolean(entry):
            return "vector" if is_list else "number"
        is_text = pa.types.is_string(entry) or pa.types.is_large_string(entry)
        return "text" if is_text and not is_list else "other"

    def entry_type(self, column: str) -> tuple[pyarrow.DataType, bool]:
        """Return the arrow type of a column's entries, and whether a row has a list of them."""
        import pyarrow as pa

        kind, is_list = self.columns.arrow_schema.field(column).type, False
        while isinstance(kind, pa.BaseExtensionType) or hasattr(kind, "value_field"):
            if isinstance(kind, pa.BaseExtensionType):  # Array2D and its like
                kind = kind.storage_type
            else:
                kind, is_list = kind.value_type, True
        return kind, is_list

    def read(self, columns: Sequence[str]) -> pyarrow.Table:
        """Join the columns of all parts as they are stored."""
        import pyarrow as pa

        tables = [part.select_columns(columns).with_format("arrow")[:] for part in self.parts]
        return pa.concat_tables(tables).replace_schema_metadata(None)

    def read_named(self, columns: Sequence[str]) -> pyarrow.Table:
        """Read columns of scalars, with the names of a `ClassLabel` instead of its numbers."""
        import pyarrow as pa

        table = self.read(columns)
        for at, column in enumerate(columns):
            if self.kind(column) == "class":
                names = pa.array(self.columns[column].names).take(table.column(at))
                table = table.set_column(at, column, names)
        return table


def from_huggingface(
    source: Any,
    *,
    label: str,
    client: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    split: str | None = None,
    standardise: bool = False,
    missing: Literal["error", "drop", "mean"] = "error",
    name: str | None = None,
) -> Dataset:
    """Make a data set for linear models from a Hugging Face data set or its partitions.

    Numbers and categories are encoded as `Dataset.from_frame` does. Vectors are taken as they are,
    and images as flat rows of numbers from 0 to 1.

    Args:
        source: a `datasets.Dataset`, a list of them with one per client, a partitioner of
            flwr-datasets that has its data set, or a `FederatedDataset`.
        label: the column of labels or targets. The names of a `ClassLabel` become the classes.
        client: the column that says whose row each is, for a single `datasets.Dataset`.
        columns: the columns to use as features; by default all but the label and the client.
        drop: columns to leave out.
        split: the split of a `FederatedDataset` or `DatasetDict` that has several.
        standardise: whether columns of numbers get mean 0 and variance 1.
        missing: what to do with missing values in columns of numbers and categories.
        name: the name in records and reports; by default the name of the Hugging Face data set.

    Returns:
        The rows with client ids: the values of `client`, the natural ids of a partitioner that has
        them, or the numbers of the partitions. Without clients, rows in the order of the source.

    Raises:
        InputError: a column is unknown or cannot be used, or a partition has no rows.
    """
    rows = _open(source, client, split)
    chosen = _choose_columns(rows, label, columns, drop)
    name = name or getattr(rows.parts[0].info, "dataset_name", None) or "huggingface"
    labels, ids = _read_labels(rows, label), _read_ids(rows)
    if all(rows.kind(column) in _SCALARS for column in chosen):
        table = rows.read_named(chosen).append_column(label, [labels])
        owner = None if ids is None else rows.client or _PARTITION
        if owner is not None:
            table = table.append_column(owner, [ids])
        data = Dataset.from_frame(
            table,
            label=label,
            client=owner,
            standardise=standardise,
            missing=missing,
            name=name,
            categorical=[column for column in chosen if rows.kind(column) == "class"],
        )
    else:
        arrays = [_read_array(rows, column) for column in chosen]
        X = np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
        data = Dataset.from_arrays(X, labels, name=name, clients=ids)
    if rows.kind(label) == "class":
        data = _name_classes(data, rows.columns[label].names)
    return replace(data, note="; ".join(filter(None, (data.note, rows.note))))


def client_datasets(
    source: Any,
    *,
    label: str | None = None,
    client: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    split: str | None = None,
    standardise: bool = False,
) -> list[ClientRows]:
    """Make the rows of each client for `TorchProblem` from a partitioned data set.

    Args:
        source: as `from_huggingface` takes it, or a `fedpage.Dataset` with client ids.
        label: the column of targets. Classes become whole numbers, as `ClassLabel` counts them.
        client: the column that says whose row each is, for a single `datasets.Dataset`.
        columns: the columns to use; by default all but the label and the client. Each vector or
            image column is a separate input of the model. All columns of numbers and categories
            together are one input, the last.
        drop: columns to leave out.
        split: the split of a `FederatedDataset` or `DatasetDict` that has several.
        standardise: whether columns of numbers get mean 0 and variance 1.

    Returns:
        For each client (inputs, targets), in the order of the partitions or of the sorted ids.
        Images are (n, channels, height, width) with values from 0 to 1. Whole numbers stay whole.

    Raises:
        InputError: a column is unknown or cannot be used, a client has no rows, or nothing says
            whose rows they are.
    """
    if isinstance(source, Dataset):
        y = source.y
        if source.classes is not None:
            y = (y > 0 if len(source.classes) == 2 else y).astype(np.int64)
        return _divide((source.to_dense(),), y, source.clients)
    if label is None:
        raise InputError("client_datasets: name the column of targets, as in label='label'")
    rows = _open(source, client, split)
    chosen = _choose_columns(rows, label, columns, drop)
    scalars = [column for column in chosen if rows.kind(column) in _SCALARS]
    inputs = [_read_array(rows, column) for column in chosen if column not in scalars]
    if scalars:
        data = from_huggingface(
            source, label=label, client=client, columns=scalars, split=split,
            standardise=standardise,
        )  # fmt: skip
        inputs.append(data.to_dense())
    targets = _read_labels(rows, label)
    if targets.dtype.kind in "Ub":
        targets = np.unique(targets, return_inverse=True)[1].astype(np.int64)
    return _divide(tuple(inputs), targets, _read_ids(rows))


def _divide(inputs: tuple[Array, ...], targets: Array, ids: Array | None) -> list[ClientRows]:
    """Divide rows by client id, in the order of the sorted ids."""
    if ids is None:
        raise InputError("client_datasets: nothing says whose rows these are; give client=")
    _, owner, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    divided = [(tuple(array[own] for array in inputs), targets[own]) for own in groups]
    return [(arrays[0] if len(arrays) == 1 else arrays, own) for arrays, own in divided]


# What a source holds


def _open(source: Any, client: str | None, split: str | None) -> _Source:
    """Read whose rows a source has, and check that there are some."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            "Hugging Face data sets need another package: pip install 'fedpage[datasets]'"
        ) from None
    if isinstance(source, datasets.DatasetDict) or hasattr(type(source), "load_split"):
        source = _choose_split(source, split)
    if isinstance(source, datasets.Dataset):
        rows = _Source([source], None, client, "")
    elif hasattr(type(source), "load_partition"):
        rows = _load_partitions(source)
    elif isinstance(source, (list, tuple)) and all(
        isinstance(part, datasets.Dataset) for part in source
    ):
        rows = _Source(list(source), list(range(len(source))), None, "")
    else:
        raise InputError(
            "a data set of Hugging Face is a datasets.Dataset, a list of them, a partitioner or a "
            f"FederatedDataset of flwr-datasets, not a {type(source).__name__}"
        )
    if client is not None and rows.ids is not None:
        raise InputError(f"client={client!r} is for a single data set; here partitions are clients")
    sizes = [len(part) for part in rows.parts]
    if not sizes or 0 in sizes:
        which = (
            f"client {sizes.index(0)} of {len(sizes)} has no rows" if sizes else "the list is empty"
        )
        raise InputError(f"{which}; every client needs rows, so use fewer clients")
    # a transform that the user has set is applied
    parts = [
        datasets.Dataset.from_dict(part[:]) if part.format["type"] == "custom" else part
        for part in rows.parts
    ]
    return rows._replace(parts=parts)


def _choose_split(source: Any, split: str | None) -> Any:
    """Return a split of a DatasetDict, or the partitioner of a split of a FederatedDataset."""
    try:
        splits = getattr(source, "partitioners", source)  # this may download the data
    except (OSError, ValueError) as error:
        raise InputError(f"the data set cannot be loaded: {' '.join(str(error).split())}") from None
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        given = "has several splits" if split is None else f"has no split {split!r} with clients"
        raise InputError(f"the data set {given}; give split=, one of {', '.join(splits)}")
    return splits[split]


def _load_partitions(partitioner: Any) -> _Source:
    """Load every partition of a partitioner of flwr-datasets."""
    noun = type(partitioner).__name__
    try:
        count = int(partitioner.num_partitions)
        parts = [partitioner.load_partition(number) for number in range(count)]
    except (AttributeError, KeyError, ValueError) as error:
        raise InputError(f"{noun}: {' '.join(str(error).split())}") from None
    natural = getattr(partitioner, "partition_id_to_natural_id", None)
    ids = [natural[number] for number in range(count)] if natural else list(range(count))
    grouped = hasattr(partitioner, "partition_id_to_natural_ids")
    # the column of natural ids says who a client is, and is not a feature
    column = getattr(partitioner, "_partition_by", None) if natural or grouped else None
    return _Source(parts, ids, column, f"partitioned by {noun} of flwr-datasets")


def _choose_columns(
    rows: _Source, label: str, columns: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    """Check the names of columns, and return the names of the features."""
    from fedpage.data.frames import check_names  # it imports polars, which takes time

    columns = [columns] if isinstance(columns, str) else columns
    drop = [drop] if isinstance(drop, str) else drop
    roles = [label, *([rows.client] if rows.client else [])]
    for number, part in enumerate(rows.parts):
        where = "the data set" if rows.ids is None else f"client {number}"
        check_names([*roles, *(columns or ()), *drop], part.features, where)
    chosen = [c for c in (columns or rows.columns) if c not in (*roles, *drop)]
    if not chosen:
        raise InputError(f"no column but {', '.join(roles)} is left; a model needs features")
    kinds = {column: rows.kind(column) for column in chosen}
    has_arrays = not set(kinds.values()) <= set(_SCALARS)
    for column, kind in kinds.items():
        if kind == "other" or (kind in ("text", "class") and has_arrays):
            reason = f"is of type {rows.columns[column]}, which cannot be a feature"
            reason = reason if kind == "other" else "is a category beside a vector or an image"
            raise InputError(f"column {column!r} {reason}; leave it out with drop=({column!r},)")
    return chosen


# Columns as tables and arrays


def _read_ids(rows: _Source) -> Array | None:
    """Return the id (n,) of each row's client, or None where there are no clients."""
    if rows.ids is not None:
        return np.repeat(np.array(rows.ids), [len(part) for part in rows.parts])
    if rows.client is None:
        return None
    return np.asarray(rows.read_named([rows.client]).column(0).to_pylist())


def _read_labels(rows: _Source, label: str) -> Array:
    """Return the labels (n,); labels of a `ClassLabel` are numbers."""
    if rows.kind(label) not in _SCALARS:
        raise InputError(f"the label {label!r} is of type {rows.columns[label]}, not a scalar")
    column = rows.read([label]).column(0)
    absent = column.is_null(nan_is_null=True).to_numpy()
    if rows.kind(label) == "class":
        absent = absent | (column.fill_null(-1).to_numpy() == -1)
    if absent.any():
        row = int(np.argmax(absent)) + 1
        raise InputError(f"row {row} has no label in column {label!r}; leave such rows out")
    values = np.asarray(column.to_numpy())
    return values.astype(str) if rows.kind(label) == "text" else values


def _name_classes(data: Dataset, names: Sequence[str]) -> Dataset:
    """Give a data set whose labels are numbers of a `ClassLabel` the names as classes."""
    numbers = data.y
    if data.classes is not None:  # 0/1 or 1/2, which have become -1/+1
        numbers = np.array(data.classes)[(data.y > 0).astype(np.int64)]
    targets = class_targets(numbers.astype(np.int64), len(names))
    return replace(data, y=targets, classes=tuple(names))


def _read_array(rows: _Source, column: str) -> Array:
    """Read a column of numbers, vectors or images as an array with a row per example."""
    kind = rows.kind(column)
    is_whole = "int" in str(rows.entry_type(column)[0])
    options = {} if kind == "image" else {"dtype": np.int64 if is_whole else np.float64}
    arrays = [
        np.asarray(part.select_columns(column).with_format("numpy", **options)[:][column])
        for part in rows.parts
    ]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1 or any(array.dtype == object for array in arrays):
        raise InputError(f"column {column!r} has {kind}s of different sizes")
    array = np.concatenate(arrays)
    return scale_images(array) if kind == "image" else array


def scale_images(images: Array) -> Array:
    """Turn images (n, height, width[, channels]) into numbers (n, channels, height, width)."""
    if images.ndim == 3:
        images = images[..., None]
    largest = np.iinfo(images.dtype).max if images.dtype.kind in "iu" else 1
    return np.ascontiguousarray(np.moveaxis(images, 3, 1), dtype=np.float32) / np.float32(largest)
