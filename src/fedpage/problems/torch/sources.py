"""Read rows by number from the forms in which users have them.

A source is given as columns with a row per example (tensors, arrays), or as a map-style data set of
rows: a `torch.utils.data.Dataset` or `DataLoader`, a `datasets.Dataset` of Hugging Face, or any
other object with a length and a row for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import Ints
from fedpage.data.huggingface import scale_images
from fedpage.problems.torch.inputs import Inputs, list_tensors

Values: TypeAlias = Any
"""What a user gives for numbers: a tensor, an array, a number, or nested lists of numbers."""
Collate: TypeAlias = Callable[[list[object]], object]

_CHUNK = 64
"""Rows that are requested at once from a data set that offers `__getitems__`."""


class Source(Protocol):
    """Rows that can be read by number."""

    where: str
    """Whose rows they are, for error messages."""
    length: int
    """Number of rows."""

    def read(self, numbers: Ints) -> tuple[Inputs, Tensor]:
        """Read rows (r,) as inputs and targets on the CPU, each with r rows."""


class _UnusableError(Exception):
    """What is wrong with a value, as the end of a sentence about it."""


class ColumnSource:
    """Columns with a row per example, as tensors or arrays.

    Args:
        inputs: Positional inputs, or keyword inputs by name.
        targets: The column of targets.
        where: Whose rows they are.
    """

    def __init__(
        self, inputs: tuple[Values, ...] | dict[str, Values], targets: Values, where: str
    ) -> None:
        self.where = where
        labels = _label(inputs)
        values = [*(inputs.values() if isinstance(inputs, dict) else inputs), targets]
        columns = []
        for value, label in zip(values, labels, strict=True):
            try:
                columns.append(value.detach() if isinstance(value, Tensor) else _to_array(value))
            except _UnusableError as error:
                raise InputError(f"TorchProblem: {where}: {label} {error}") from None
        if any(x.ndim == 0 for x in columns) or len({len(x) for x in columns}) > 1:
            shapes = ", ".join(str(tuple(x.shape)) for x in columns)
            raise InputError(
                f"TorchProblem: {where}: inputs and targets must have the same number of rows, "
                f"not {shapes}"
            )
        self.length = _check_length(len(columns[0]), where)
        self._columns = columns
        self._names = tuple(inputs) if isinstance(inputs, dict) else None

    def read(self, numbers: Ints) -> tuple[Inputs, Tensor]:
        """Read rows (r,) by number."""
        rows = torch.from_numpy(numbers)
        parts = [
            x.index_select(0, rows.to(x.device)) if isinstance(x, Tensor) else _view(x[numbers])
            for x in self._columns
        ]
        return _join(parts[:-1], self._names), parts[-1]


class RowSource:
    """Rows of an object that has a length, and a row for each number.

    A row is (inputs, target), (input, ..., target), or a dict.

    Args:
        data: The object.
        where: Whose rows they are.
        target: The name of the targets in rows that are dicts.
        collate: A function of a list of rows that makes a batch. It is called with one row.
    """

    def __init__(
        self, data: Any, where: str, target: str | None, collate: Collate | None = None
    ) -> None:
        self.where, self.length = where, _check_length(len(data), where)
        self._data, self._target, self._collate = data, target, collate
        self._has_images = _is_huggingface(data)

    def read(self, numbers: Ints) -> tuple[Inputs, Tensor]:
        """Read rows (r,) by number, one after the other."""
        columns: list[Tensor] = []
        labels: list[str] = []
        names: tuple[str, ...] | None = None
        for place, (number, row) in enumerate(self._rows(numbers.tolist())):
            where = f"{self.where}, row {number}"
            inputs, target = _split_row(row, self._target, where)
            own = tuple(inputs) if isinstance(inputs, dict) else None
            values = [*(inputs.values() if isinstance(inputs, dict) else inputs), target]
            if place == 0:
                labels, names = _label(inputs), own
            elif own != names or len(values) != len(labels):
                refuse_columns(where, _label(inputs), f"row {numbers[0]}", labels)
            for k, (value, label) in enumerate(zip(values, labels, strict=True)):
                try:
                    tensor = self._convert(value)
                except _UnusableError as error:
                    raise InputError(f"TorchProblem: {where}: {label} {error}") from None
                if place == 0:
                    shape = (len(numbers), *tensor.shape)
                    columns.append(torch.empty(shape, dtype=tensor.dtype))
                column = columns[k]
                if (tensor.shape, tensor.dtype) != (column.shape[1:], column.dtype):
                    refuse_difference(where, label, tensor, f"row {numbers[0]}", column[0])
                column[place] = tensor
        return _join(columns[:-1], names), columns[-1]

    def _rows(self, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield rows with their numbers, with few of them in memory."""
        read_several = getattr(self._data, "__getitems__", None)
        for start in range(0, len(numbers), _CHUNK):
            part = numbers[start : start + _CHUNK]
            rows = read_several(part) if read_several else map(self._data.__getitem__, part)
            for number, row in zip(part, rows, strict=True):
                yield number, row if self._collate is None else self._collate([row])

    def _convert(self, value: Values) -> Tensor:
        """Return a value of a row as a tensor."""
        if self._has_images and _is_image(value):
            return torch.from_numpy(scale_images(np.asarray(value)[None])[0])
        tensor = value.detach() if isinstance(value, Tensor) else _view(_to_array(value))
        if self._collate is None:
            return tensor
        if tensor.ndim == 0 or len(tensor) != 1:
            raise _UnusableError(
                f"has shape {tuple(tensor.shape)} after collate_fn of one row; it must return "
                "batches with a row per example"
            )
        return tensor[0]


def open_source(data: object, where: str, target: str | None = None) -> Source:
    """Return a reader of a user's rows.

    Args:
        data: (inputs, targets), a dict of columns, a list of rows, a `DataLoader`, or a map-style
            data set.
        where: Whose rows they are, for error messages.
        target: The name of the column of targets in dicts.

    Raises:
        InputError: It is none of these, has no rows, or has no column of targets.
    """
    if isinstance(data, DataLoader):
        return _open_loader(data, where, target)
    if isinstance(data, TensorDataset):
        *inputs, targets = data.tensors
        return ColumnSource(tuple(inputs), targets, where)
    if isinstance(data, Mapping):
        splits = [name for name, value in data.items() if _is_huggingface(value)]
        if splits:
            _refuse(f"{where} is a dict of data sets; give one of them, as in data[{splits[0]!r}]")
        return ColumnSource(*_split_dict(data, target, where), where)
    if isinstance(data, (tuple, list)):
        is_rows = isinstance(data, list) and all(isinstance(row, tuple) for row in data)
        if is_rows or all(isinstance(row, Mapping) for row in data):
            return RowSource(data, where, target)
        if len(data) == 2:
            return ColumnSource(to_inputs(data[0]), data[1], where)
    elif not isinstance(data, (Tensor, np.ndarray, str, bytes)) and (
        isinstance(data, Dataset) or hasattr(data, "__getitem__") or hasattr(data, "__iter__")
    ):
        _check_rows_by_number(data, where)
        return RowSource(data, where, target)
    raise InputError(
        f"TorchProblem: {where} must be (inputs, targets), a dict of columns, or a torch Dataset, "
        f"DataLoader or datasets.Dataset, not a {type(data).__name__}"
    )


def _open_loader(loader: DataLoader[Any], where: str, target: str | None) -> Source:
    """Read the data set of a loader; its order and its batches do not count."""
    data: Any = loader.dataset
    _check_rows_by_number(data, where)
    batches = loader.batch_sampler
    if batches is None:
        _refuse(
            f"{where}: a DataLoader with batch_size=None has batches of its own; give a Dataset"
        )
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    if type(sampler) not in (SequentialSampler, RandomSampler) or len(sampler) != len(data):
        _refuse(
            f"{where}: the {type(sampler).__name__} of a DataLoader is not used, because runs draw "
            "their own minibatches; give the rows as torch.utils.data.Subset(dataset, rows)"
        )
    if loader.collate_fn not in (default_collate, default_convert):
        return RowSource(data, where, target, loader.collate_fn)
    if isinstance(data, TensorDataset):
        return open_source(data, where, target)
    return RowSource(data, where, target)


def _check_rows_by_number(data: Any, where: str) -> None:
    """Refuse data sets that have no length or no rows by number, such as generators."""
    is_iterable = isinstance(data, IterableDataset) or not hasattr(data, "__getitem__")
    if is_iterable or not hasattr(data, "__len__"):
        lacks = "row numbers" if is_iterable else "__len__"
        _refuse(
            f"{where} ({type(data).__name__}) has no {lacks}; give a Dataset with __len__ and "
            "__getitem__, or list(rows) if the rows fit in memory"
        )


# Rows and columns


def _split_row(
    row: object, target: str | None, where: str
) -> tuple[tuple[Values, ...] | dict[str, Values], Values]:
    """Split a row, or a batch of rows, into inputs and targets."""
    if isinstance(row, Mapping):
        return _split_dict(row, target, where)
    if isinstance(row, (tuple, list)) and len(row) == 2:
        return to_inputs(row[0]), row[1]
    if isinstance(row, (tuple, list)) and len(row) > 2:
        return tuple(row[:-1]), row[-1]
    raise InputError(
        f"TorchProblem: {where} must be (inputs, target) or a dict, not a {type(row).__name__}"
    )


def _split_dict(
    columns: Mapping[Any, Values], target: str | None, where: str
) -> tuple[dict[str, Values], Values]:
    """Split a dict into inputs, in the order of their names, and targets."""
    found = ", ".join(map(str, columns))
    if target is None:
        _refuse(f"{where} is a dict ({found}); name its targets, as in target='labels'")
    if target not in columns:
        _refuse(f"{where} has no column {target!r};{did_you_mean(target, columns)} it has {found}")
    inputs = to_inputs({name: value for name, value in columns.items() if name != target})
    if not inputs:
        _refuse(f"{where} has no column but {target!r}; give the inputs of the model too")
    assert isinstance(inputs, dict)
    return inputs, columns[target]


def to_inputs(value: Any) -> tuple[Values, ...] | dict[str, Values]:
    """Return positional inputs, or keyword inputs in the order of their names."""
    if isinstance(value, Mapping):
        return {str(name): value[name] for name in sorted(value, key=str)}
    is_several = isinstance(value, tuple) or (
        isinstance(value, list) and all(isinstance(x, (Tensor, np.ndarray)) for x in value)
    )
    return tuple(value) if is_several else (value,)


def _join(parts: list[Tensor], names: tuple[str, ...] | None) -> Inputs:
    return tuple(parts) if names is None else dict(zip(names, parts, strict=True))


def _label(inputs: tuple[Values, ...] | dict[str, Values]) -> list[str]:
    """Return what error messages call the columns of inputs, and the targets."""
    if isinstance(inputs, dict):
        return [*(f"column {name!r}" for name in inputs), "the target"]
    if len(inputs) == 1:
        return ["the input", "the target"]
    return [*(f"input {k}" for k in range(len(inputs))), "the target"]


def _check_length(length: int, where: str) -> int:
    if not length:
        _refuse(f"{where} has no rows; give every client at least one")
    return length


def check_alike(
    rows: tuple[Inputs, Tensor], where: str, others: tuple[Inputs, Tensor], other: str
) -> None:
    """Refuse rows whose columns, shapes or types differ from those of other rows."""
    labels, other_labels = _label(rows[0]), _label(others[0])
    if labels != other_labels:
        refuse_columns(where, labels, other, other_labels)
    own, first = ((*list_tensors(inputs), targets) for inputs, targets in (rows, others))
    for label, a, b in zip(labels, own, first, strict=True):
        if (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
            refuse_difference(where, label, a[0], other, b[0])


def refuse_columns(where: str, labels: list[str], other: str, other_labels: list[str]) -> NoReturn:
    """Refuse a row that has other columns than another row."""
    _refuse(
        f"{where} has {', '.join(labels)}, but {other} has {', '.join(other_labels)}; give all "
        "rows the same columns"
    )


def refuse_difference(where: str, label: str, a: Tensor, other: str, b: Tensor) -> NoReturn:
    """Refuse a row that has another shape or type than another row."""
    if a.shape != b.shape:
        _refuse(
            f"{where}: {label} has shape {tuple(a.shape)}, but {other} has {tuple(b.shape)}; pad "
            "or crop all rows to one shape, in the data set or in collate_fn"
        )
    _refuse(
        f"{where}: {label} has type {a.dtype}, but {other} has {b.dtype}; give all rows one type"
    )


# Values


def _to_array(value: Values) -> NDArray[Any]:
    """Return numbers as an array."""
    if _is_image(value):
        raise _UnusableError(
            "is a PIL image; convert it in the data set, by torchvision's ToTensor() or by "
            "torch.tensor(np.asarray(image)).movedim(-1, 0) / 255"
        )
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError):  # lists of unequal lengths
        raise _UnusableError(
            "has lists of unequal lengths; pad them to one length, as tokenisers do with "
            "padding='max_length'"
        ) from None
    kind = array.dtype.kind
    if kind in "US":
        raise _UnusableError("is text; tokenise it or number its classes, or leave it out")
    if kind == "O" and any(x is None for x in array.reshape(-1)):
        raise _UnusableError("has missing values (None); fill them, or leave such rows out")
    if kind not in "biuf":
        raise _UnusableError(
            f"is a {type(value).__name__}; give tensors, arrays or lists of numbers"
        )
    return array


def _view(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, in types that torch can index."""
    kind = array.dtype
    if kind.kind == "u" and kind.itemsize > 1:
        array = array.astype(np.int64)
    elif not array.flags.writeable or not kind.isnative:  # torch takes no such arrays
        array = array.astype(kind.newbyteorder("="))
    return torch.from_numpy(np.asarray(array))


def _is_image(value: object) -> bool:
    return type(value).__module__.startswith("PIL.")


def _is_huggingface(value: object) -> bool:
    """Say whether a value is a data set of Hugging Face, without importing the package."""
    modules = {kind.__module__ for kind in type(value).__mro__}
    return not modules.isdisjoint({"datasets.arrow_dataset", "datasets.iterable_dataset"})


def is_single(value: object) -> bool:
    """Say whether a value is one data set, where a list with one per client is expected."""
    return isinstance(value, (Tensor, np.ndarray, str, bytes, Mapping, DataLoader, Dataset)) or (
        _is_huggingface(value)
    )


def _refuse(message: str) -> NoReturn:
    raise InputError(f"TorchProblem: {message}")
