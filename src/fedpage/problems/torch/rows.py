"""Read what a user gives a `TorchProblem`: rows, device and precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Table(NamedTuple):
    """Rows as tensors on the device."""

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def take(self, rows: Tensor) -> Table:
        """Return rows by number: (r,) numbers, or (n, w) for n clients."""
        flat, shape = rows.reshape(-1), rows.shape

        def select(values: Tensor) -> Tensor:
            return values.index_select(0, flat).reshape(*shape, *values.shape[1:])

        return Table(tuple(select(x) for x in self.inputs), select(self.targets))

    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return sum(x[0].numel() * x.element_size() for x in (*self.inputs, self.targets))

    def slice(self, start: int, end: int) -> Table:
        """Return rows start..end-1."""
        return Table(tuple(x[start:end] for x in self.inputs), self.targets[start:end])

    def blocks(self, size: int) -> Iterator[Table]:
        """Yield consecutive blocks of `size` rows, the last one with fewer."""
        for start in range(0, len(self.targets), size):
            yield self.slice(start, start + size)


def to_numpy(values: Tensor) -> Vector:
    """Return a tensor's values as a numpy array."""
    return values.detach().cpu().numpy()


def read_table(data: object, where: str, device: torch.device, dtype: torch.dtype) -> Table:
    """Copy a user's rows to the device, with floating-point values in `dtype`.

    Args:
        data: (inputs, targets) or a `torch.utils.data.Dataset` of such rows.
        where: Whose rows they are, for error messages.
        device: Where the tensors go.
        dtype: The type of floating-point values.

    Raises:
        InputError: Inputs and targets differ in length, are empty, or are not finite.
    """
    inputs, targets = _split(data, where)
    table = Table(
        tuple(_copy(x, where, device, dtype) for x in inputs), _copy(targets, where, device, dtype)
    )
    columns = (*table.inputs, table.targets)
    if any(x.ndim == 0 for x in columns) or len({len(x) for x in columns}) > 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in columns)
        raise InputError(
            f"TorchProblem: {where}: inputs and targets must have the same number of rows, "
            f"not {shapes}"
        )
    if not len(table.targets):
        raise InputError(f"TorchProblem: {where} has no rows; give every client at least one")
    for x in columns:
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"TorchProblem: {where} has a NaN or an infinity in its rows")
    return table


def _copy(values: object, where: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        raise InputError(
            f"TorchProblem: {where}: inputs and targets must be tensors or arrays of numbers, "
            f"not {type(values).__name__}"
        ) from None
    return tensor.detach().clone().to(device, dtype if tensor.is_floating_point() else None)


def _split(data: object, where: str) -> tuple[tuple[object, ...], object]:
    """Split data into its inputs and targets."""
    if isinstance(data, TensorDataset):
        *inputs, targets = data.tensors
        return tuple(inputs), targets
    if isinstance(data, (tuple, list)) and len(data) == 2:
        inputs, targets = data
        return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), targets
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        rows = [data[j] for j in range(len(data))]
        if rows and all(isinstance(row, (tuple, list)) and len(row) >= 2 for row in rows):
            columns = [
                torch.stack([torch.as_tensor(value) for value in column])
                for column in zip(*rows, strict=True)
            ]
            return tuple(columns[:-1]), columns[-1]
    raise InputError(
        f"TorchProblem: {where} must be (inputs, targets), or a torch Dataset of such rows with a "
        f"length, not a {type(data).__name__}"
    )


def list_datasets(datasets: object, name: str, minimum: int = 1) -> list[object]:
    """Return one data set per client as a list, or refuse the argument called `name`."""
    single = isinstance(datasets, (Tensor, np.ndarray, str, bytes, Mapping))
    if single or not isinstance(datasets, Iterable):
        raise InputError(
            f"TorchProblem: {name} must be a list with (inputs, targets) for each client, "
            f"not a {type(datasets).__name__}"
        )
    found = list(datasets)
    if len(found) < minimum:
        raise InputError(f"TorchProblem: {name} is empty; give (inputs, targets) for each client")
    return found


def concatenate(tables: list[Table]) -> Table:
    """Join all clients' rows, one client after the other; row shapes and types must be the same."""
    first = tables[0]
    for i, table in enumerate(tables):
        columns = zip((*first.inputs, first.targets), (*table.inputs, table.targets), strict=False)
        for a, b in columns:
            same = a.shape[1:] == b.shape[1:] and a.dtype == b.dtype
            if not same or len(first.inputs) != len(table.inputs):
                raise InputError(
                    f"TorchProblem: client {i} has rows {tuple(b.shape[1:])} {b.dtype}, "
                    f"client 0 {tuple(a.shape[1:])} {a.dtype}; give all clients rows of the same "
                    "shape and type"
                )
    inputs = tuple(torch.cat(column) for column in zip(*(t.inputs for t in tables), strict=True))
    return Table(inputs, torch.cat([table.targets for table in tables]))


def sample_rows(table: Table) -> Table:
    """Return at most 8 rows, spread over the table and over its different targets."""
    count = len(table.targets)
    rows = np.linspace(0, count - 1, min(8, count)).astype(np.int64)
    if table.targets.ndim == 1:
        _, first = np.unique(to_numpy(table.targets), return_index=True)
        rows = np.concatenate([first[:8], rows])
    chosen = list(dict.fromkeys(rows.tolist()))[:8]
    return table.take(torch.tensor(chosen, device=table.targets.device))


def choose_device(device: str | torch.device) -> torch.device:
    """Return the device, or refuse one that cannot compute here."""
    try:
        chosen = torch.device(device)
        float(torch.ones(1, device=chosen))
    except (RuntimeError, TypeError, AssertionError) as error:
        why = " ".join(str(error).split())[:120]
        raise InputError(
            f"TorchProblem: device {short_repr(device)} cannot be used here ({why}); give 'cpu'"
        ) from None
    return chosen


def choose_autocast(
    autocast: object, device: torch.device, dtype: torch.dtype
) -> torch.dtype | None:
    """Return bfloat16 or None, the type to which torch casts products.

    Args:
        autocast: What the user gave.
        device: Where to compute.
        dtype: The type of parameters.

    Raises:
        InputError: Another type, parameters of float64, or a device without it.
    """
    if autocast is None:
        return None
    if autocast in ("float16", torch.float16):
        raise InputError(
            "TorchProblem: autocast='float16' would need scaled losses, because its gradients "
            "underflow; give 'bfloat16'"
        )
    if autocast not in ("bfloat16", torch.bfloat16):
        raise InputError(
            f"TorchProblem: autocast must be 'bfloat16' or None, not {short_repr(autocast)}"
        )
    if dtype == torch.float64:
        raise InputError(
            "TorchProblem: autocast casts products of float32; give dtype='float32', or leave it "
            "out"
        )
    if not torch.amp.is_autocast_available(device.type):
        raise InputError(f"TorchProblem: torch has no autocast on {device}; leave out autocast")
    return torch.bfloat16


def choose_dtype(model: nn.Module, dtype: object) -> torch.dtype:
    """Return float32 or float64: the requested type, or that of the trainable parameters."""
    if dtype is None:
        own = {p.dtype for p in model.parameters() if p.requires_grad}
        if len(own) > 1:
            names = ", ".join(sorted(str(t) for t in own))
            raise InputError(
                f"TorchProblem: the model's parameters have several types ({names}); give dtype"
            )
        (dtype,) = own
    if isinstance(dtype, torch.dtype):
        name = str(dtype).rpartition(".")[2]
    elif isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
    else:
        name = dtype if isinstance(dtype, str) else ""
    if name not in _DTYPES:
        raise InputError(
            f"TorchProblem: dtype must be 'float32' or 'float64', not {short_repr(dtype)}"
        )
    return _DTYPES[name]
