"""What users give a `TorchProblem`, read strictly: rows, devices, precisions, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedpage.core.errors import InputError
from fedpage.core.types import COSTS

Metric = Callable[[Any, Tensor], Any]
TAKEN = {"loss", "grad_norm", "seconds", *COSTS}
"""Columns that a history has anyway."""


class Table(NamedTuple):
    """Rows as tensors on the device."""

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def take(self, rows: Tensor) -> Table:
        """(r,) of the rows, or (n, w) of them for n clients."""
        flat, shape = rows.reshape(-1), rows.shape
        return Table(
            tuple(_picked(x, flat, shape) for x in self.inputs), _picked(self.targets, flat, shape)
        )


def _picked(values: Tensor, rows: Tensor, shape: Any) -> Tensor:
    return values.index_select(0, rows).reshape(*shape, *values.shape[1:])


def array_of(values: Tensor) -> Any:
    """The same numbers as numpy's."""
    return values.detach().cpu().numpy()


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest output is the target's; of a single output, whose sign is (targets 0/1 or -1/1).

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    0.5
    """
    if outputs.ndim > 1 and outputs.shape[1] > 1:
        return float((outputs.argmax(1) == targets).double().mean())
    return float(((outputs.reshape(len(targets)) > 0) == (targets.reshape(-1) > 0)).double().mean())


def table_of(data: Any, where: str, device: torch.device, dtype: torch.dtype) -> Table:
    """The rows that a user gave, on the device and with floats of the type."""
    inputs, targets = _pair(data, where)
    table = Table(
        tuple(_values(x, where, device, dtype) for x in inputs),
        _values(targets, where, device, dtype),
    )
    if table.targets.ndim == 0 or any(
        x.ndim == 0 or len(x) != len(table.targets) for x in table.inputs
    ):
        shapes = ", ".join(str(tuple(x.shape)) for x in (*table.inputs, table.targets))
        raise InputError(
            f"TorchProblem: {where}: inputs and targets must have the same number of rows, not {shapes}"
        )
    if not len(table.targets):
        raise InputError(f"TorchProblem: {where} has no rows; every client needs one at least")
    for x in (*table.inputs, table.targets):
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"TorchProblem: {where} has a NaN or an infinity in its rows")
    return table


def _values(values: Any, where: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    try:
        made = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        raise InputError(
            f"TorchProblem: {where}: inputs and targets must be tensors or arrays of numbers, not "
            f"{type(values).__name__}"
        ) from None
    return made.detach().clone().to(device, dtype if made.is_floating_point() else None)


def device_of(device: Any) -> torch.device:
    """The device, if it can be used."""
    try:
        made = torch.device(device)
        float(torch.ones(1, device=made))
    except (RuntimeError, TypeError, AssertionError) as error:
        why = " ".join(str(error).split())[:120]
        raise InputError(
            f"TorchProblem: device {device!r} cannot be used here ({why}); give 'cpu'"
        ) from None
    return made


def precision_of(model: nn.Module, dtype: Any) -> torch.dtype:
    """float32 or float64: what is asked for, or what the model's trainable parameters are."""
    if dtype is None:
        found = {p.dtype for p in model.parameters() if p.requires_grad}
        if len(found) > 1:
            names = ", ".join(sorted(str(one) for one in found))
            raise InputError(
                f"TorchProblem: the model's parameters are of several types ({names}); give dtype"
            )
        (dtype,) = found
    words = {"float32": torch.float32, "float64": torch.float64}
    name = (
        dtype
        if isinstance(dtype, str)
        else str(dtype).rpartition(".")[2]
        if isinstance(dtype, torch.dtype)
        else ""
    )
    if not name and isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
    if name not in words:
        raise InputError(f"TorchProblem: dtype must be 'float32' or 'float64', not {dtype!r:.60}")
    return words[name]


def metrics_of(metrics: Any) -> dict[str, Metric]:
    """Functions by name."""
    known = {"accuracy": accuracy}
    if isinstance(metrics, str):
        metrics = (metrics,)
    if metrics is None or not isinstance(metrics, Iterable):
        raise InputError(
            f"TorchProblem: metrics must be names or a table of functions, not {metrics!r:.60}"
        )
    table: dict[str, Metric] = {}
    for name in metrics:
        one = metrics[name] if isinstance(metrics, Mapping) else known.get(name)
        if not callable(one):
            raise InputError(
                f"TorchProblem: metric {name!r:.40} must be a function of outputs and targets, or 'accuracy'"
            )
        taken = name in TAKEN or str(name).startswith("held_out")
        if taken or not str(name).isidentifier():
            raise InputError(
                f"TorchProblem: a metric cannot be called {name!r:.40}; use a word that is not taken"
            )
        table[str(name)] = one
    return table


def listed(data: Any, what: str, least: int = 1) -> list[Any]:
    """A data set for each client."""
    if isinstance(data, (Tensor, np.ndarray, str, bytes, Mapping)) or not isinstance(
        data, Iterable
    ):
        raise InputError(
            f"TorchProblem: {what} must be a list with (inputs, targets) for each client, not a {type(data).__name__}"
        )
    found = list(data)
    if len(found) < least:
        raise InputError(f"TorchProblem: {what} is empty; give (inputs, targets) for each client")
    return found


def _pair(data: Any, where: str) -> tuple[tuple[Any, ...], Any]:
    """Inputs and targets of a pair, a TensorDataset, or any data set that can be counted and indexed."""
    if isinstance(data, torch.utils.data.TensorDataset):
        *inputs, targets = data.tensors
        return tuple(inputs), targets
    if isinstance(data, (tuple, list)) and len(data) == 2:
        inputs, targets = data
        return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), targets
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        rows = [data[j] for j in range(len(data))]
        if rows and all(isinstance(row, (tuple, list)) and len(row) >= 2 for row in rows):
            columns = [
                torch.stack([torch.as_tensor(value) for value in column])
                for column in zip(*rows, strict=True)
            ]
            return tuple(columns[:-1]), columns[-1]
    raise InputError(
        f"TorchProblem: {where} must be (inputs, targets), or a torch Dataset of such rows with a length, not a "
        f"{type(data).__name__}"
    )


def joined(tables: list[Table], names: list[str]) -> Table:
    """All clients' rows, one client after the other."""
    first = tables[0]
    for name, table in zip(names, tables, strict=True):
        for a, b in zip(
            (*first.inputs, first.targets), (*table.inputs, table.targets), strict=False
        ):
            if (
                a.shape[1:] != b.shape[1:]
                or a.dtype != b.dtype
                or len(first.inputs) != len(table.inputs)
            ):
                raise InputError(
                    f"TorchProblem: {name} has rows {tuple(b.shape[1:])} {b.dtype}, {names[0]} {tuple(a.shape[1:])} "
                    f"{a.dtype}; all clients must have rows of one kind"
                )
    inputs = tuple(
        torch.cat([table.inputs[k] for table in tables]) for k in range(len(first.inputs))
    )
    return Table(inputs, torch.cat([table.targets for table in tables]))
