"""Read data sets of Hugging Face `datasets`, and those that flwr-datasets has partitioned.

A source is a `datasets.Dataset`, a list of them with one per client, a partitioner of flwr-datasets
that has its data set, or a `flwr_datasets.FederatedDataset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import AnyArray
from fedpage.data.dataset import Dataset, class_targets

if TYPE_CHECKING:
    import polars as pl

ColumnKind: TypeAlias = Literal["number", "text", "class", "vector", "image", "other"]
ClientRows: TypeAlias = tuple[AnyArray | tuple[AnyArray, ...], AnyArray]
"""The inputs of a client's rows, several if the model takes several, and their targets."""
_SCALARS = ("number", "text", "class")


class _Rows(NamedTuple):
    """Hold the rows of all clients, the kinds of the feature columns, and whose each row is."""

    data: Any
    """The rows, a `datasets.Dataset`."""
    kinds: dict[str, ColumnKind]
    label: str
    owner: str
    """The name of the client ids."""
    ids: AnyArray | None
    note: str

    def encode_scalars(self, **options: Any) -> Dataset:
        """Encode the columns of numbers and categories as `Dataset.from_frame` does."""
        import polars as pl

        frame = _read_frame(self.data, [c for c, kind in self.kinds.items() if kind in _SCALARS])
        frame = frame.with_columns(pl.Series(self.label, _read_labels(self.data, self.label)))
        if self.ids is not None:
            frame = frame.with_columns(pl.Series(self.owner, self.ids.tolist()))
            options["client"] = self.owner
        return Dataset.from_frame(frame, label=self.label, **options)

    def read_array(self, column: str) -> AnyArray:
        """Read a column of numbers, vectors or images as an array with a row per example."""
        kind, is_whole = _kind(self.data, column)
        options = {} if kind == "image" else {"dtype": np.int64 if is_whole else np.float64}
        rows = self.data.select_columns(column).with_format("numpy", **options)
        array = np.asarray(rows[:][column])
        if array.dtype == object:
            raise InputError(f"column {column!r} has {kind}s of different sizes")
        return scale_images(array) if kind == "image" else array


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
    rows = _open(source, label, client, columns, drop, split)
    name = name or getattr(rows.data.info, "dataset_name", None) or "huggingface"
    if set(rows.kinds.values()) <= set(_SCALARS):
        data = rows.encode_scalars(standardise=standardise, missing=missing, name=name)
    else:
        arrays = [rows.read_array(column) for column in rows.kinds]
        X = np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
        labels = _read_labels(rows.data, label)
        data = Dataset.from_arrays(X, labels, name=name, clients=rows.ids)
    if _kind(rows.data, label)[0] == "class":
        names, numbers = tuple(rows.data.features[label].names), data.y
        if data.classes is not None:  # the numbers 0/1 or 1/2 have become -1/+1
            numbers = np.array(data.classes)[(data.y > 0).astype(np.int64)]
        targets = class_targets(numbers.astype(np.int64), len(names))
        data = replace(data, y=targets, classes=names)
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
    rows = _open(source, label, client, columns, drop, split)
    kinds, targets = rows.kinds, _read_labels(rows.data, label)
    inputs = [rows.read_array(column) for column in kinds if kinds[column] not in _SCALARS]
    if len(inputs) < len(kinds):
        scalars = rows.encode_scalars(standardise=standardise, name="huggingface")
        inputs.append(scalars.to_dense())
    if targets.dtype.kind in "Ub":
        targets = np.unique(targets, return_inverse=True)[1].astype(np.int64)
    return _divide(tuple(inputs), targets, rows.ids)


def _divide(
    inputs: tuple[AnyArray, ...], targets: AnyArray, ids: AnyArray | None
) -> list[ClientRows]:
    """Divide rows by client id, in the order of the sorted ids."""
    if ids is None:
        raise InputError("client_datasets: nothing says whose rows these are; give client=")
    _, owner, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    divided = [(tuple(array[own] for array in inputs), targets[own]) for own in groups]
    return [(arrays[0] if len(arrays) == 1 else arrays, own) for arrays, own in divided]


# What a source holds


def _open(
    source: Any,
    label: str,
    client: str | None,
    columns: str | Sequence[str] | None,
    drop: str | Sequence[str],
    split: str | None,
) -> _Rows:
    """Join the parts of a source, and check the names and types of the columns."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            "Hugging Face data sets need another package: pip install 'fedpage[datasets]'"
        ) from None
    from fedpage.data.frames import check_names  # it imports polars, which takes time

    if isinstance(source, datasets.DatasetDict) or hasattr(type(source), "load_split"):
        source = _choose_split(source, split)
    column, note, ids = client, "", None
    if hasattr(type(source), "load_partition"):
        source, ids, column, note = _load_partitions(source)
    elif isinstance(source, (list, tuple)):
        ids = list(range(len(source)))
    parts = source if isinstance(source, (list, tuple)) else [source]
    for part in parts:
        if not isinstance(part, datasets.Dataset):
            raise InputError(
                "a data set of Hugging Face is a datasets.Dataset, a list of them, a partitioner "
                f"or a FederatedDataset of flwr-datasets, not a {type(part).__name__}"
            )
    if client is not None and ids is not None:
        raise InputError(f"client={client!r} is for a single data set; here partitions are clients")
    sizes = [len(part) for part in parts]
    if not sizes or 0 in sizes:
        found = f"client {sizes.index(0)} of {len(sizes)} has no rows" if sizes else "list is empty"
        raise InputError(f"{found}; every client needs rows, so use fewer clients")
    # a transform that the user has set is applied
    parts = [
        datasets.Dataset.from_dict(part[:]) if part.format["type"] == "custom" else part
        for part in parts
    ]
    columns = [columns] if isinstance(columns, str) else columns
    unused = [label, *([column] if column else []), *([drop] if isinstance(drop, str) else drop)]
    for number, part in enumerate(parts):
        where = "the data set" if ids is None else f"client {number}"
        check_names([*unused, *(columns or ())], part.features, where)
    try:
        data = datasets.concatenate_datasets(parts)
    except ValueError as error:
        raise InputError(f"the clients' columns differ: {error}") from None
    chosen = [name for name in columns or data.features if name not in unused]
    kinds = {name: _kind(data, name)[0] for name in chosen}
    if _kind(data, label)[0] not in _SCALARS:
        raise InputError(f"the label {label!r} is of type {data.features[label]}, not a scalar")
    if not kinds:
        raise InputError("no column is left; a model needs features")
    has_arrays = not set(kinds.values()) <= set(_SCALARS)
    for name, kind in kinds.items():
        if kind == "other" or (kind in ("text", "class") and has_arrays):
            beside = "" if kind == "other" else " beside a vector or an image"
            raise InputError(
                f"column {name!r} is of type {data.features[name]}, which cannot be a feature"
                f"{beside}; leave it out with drop=({name!r},)"
            )
    owners: AnyArray | None = None if ids is None else np.repeat(np.array(ids), sizes)
    if column is not None and ids is None:
        owners = np.asarray(_read_frame(data, [column])[column].to_list())
    owner = column or "partition" + "_" * ("partition" in kinds)
    return _Rows(data, kinds, label, owner, owners, note)


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


def _load_partitions(partitioner: Any) -> tuple[list[Any], list[Any], str | None, str]:
    """Return the partitions of flwr-datasets, their ids, the column of ids and a note."""
    noun = type(partitioner).__name__
    try:
        count = int(partitioner.num_partitions)
        parts = [partitioner.load_partition(number) for number in range(count)]
    except (AttributeError, KeyError, ValueError) as error:
        raise InputError(f"{noun}: {error}") from None
    natural = getattr(partitioner, "partition_id_to_natural_id", None)
    ids = [natural[number] for number in range(count)] if natural else list(range(count))
    grouped = hasattr(partitioner, "partition_id_to_natural_ids")
    # the column of natural ids says who a client is, and is not a feature
    column = getattr(partitioner, "_partition_by", None) if natural or grouped else None
    return parts, ids, column, f"partitioned by {noun} of flwr-datasets"


# Columns as tables and arrays


def _kind(data: Any, column: str) -> tuple[ColumnKind, bool]:
    """Return the kind of a column, and whether its entries are whole numbers."""
    from pyarrow import types

    special: dict[str, ColumnKind] = {"ClassLabel": "class", "Image": "image"}
    kind = special.get(type(data.features[column]).__name__, "other")
    entry, is_list = data.features.arrow_schema.field(column).type, False
    while hasattr(entry, "storage_type") or hasattr(entry, "value_field"):  # Array2D, or a list
        entry, is_list = getattr(entry, "storage_type", None) or entry.value_type, True
    is_whole = types.is_integer(entry)
    if kind == "other" and (is_whole or types.is_floating(entry) or types.is_boolean(entry)):
        kind = "vector" if is_list else "number"
    elif kind == "other" and not is_list and "string" in str(entry):
        kind = "text"
    return kind, is_whole


def _read_frame(data: Any, columns: Sequence[str]) -> pl.DataFrame:
    """Read columns of scalars; a `ClassLabel` becomes an Enum of its names."""
    import polars as pl

    frame = pl.DataFrame(data.select_columns(columns).with_format("arrow")[:]).fill_nan(None)
    classes = {c: data.features[c].names for c in columns if _kind(data, c)[0] == "class"}
    return frame.with_columns(  # -1 stands for a missing class
        pl.col(c).replace_strict(range(len(n)), n, default=None, return_dtype=pl.Enum(n))
        for c, n in classes.items()
    )


def _read_labels(data: Any, label: str) -> AnyArray:
    """Return the labels (n,); labels of a `ClassLabel` are numbers."""
    column = _read_frame(data, [label])[label]
    if column.null_count():
        row = column.is_null().to_list().index(True) + 1
        raise InputError(f"row {row} has no label in column {label!r}; leave such rows out")
    if _kind(data, label)[0] == "class":
        return column.to_physical().to_numpy().astype(np.int64)
    values = column.to_numpy()
    return values.astype(str) if values.dtype == object else values


def scale_images(images: AnyArray) -> AnyArray:
    """Turn images (n, height, width[, channels]) into numbers (n, channels, height, width)."""
    if images.ndim == 3:
        images = images[..., None]
    largest = np.iinfo(images.dtype).max if images.dtype.kind in "iu" else 1
    return np.ascontiguousarray(np.moveaxis(images, 3, 1), dtype=np.float32) / np.float32(largest)
