"""Hold the rows of a `TorchProblem`, in memory or read when needed; choose device and precision."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Ints, Vector
from fedpage.core.validate import as_number
from fedpage.problems.torch.inputs import Inputs, list_tensors
from fedpage.problems.torch.model import map_tensors
from fedpage.problems.torch.sources import Source, check_alike, is_single

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_ALIGNMENT = 64
"""Bytes that torch aligns memory to on a CPU."""
_UNKNOWN_BLOCK = 64
"""Rows that are read at once where no model says how many fit in memory."""


class TensorTable(NamedTuple):
    """Rows as tensors on the device."""

    inputs: Inputs
    targets: Tensor

    @property
    def length(self) -> int:
        """Number of rows."""
        return len(self.targets)

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """The inputs and the targets, each with a row per example."""
        return (*list_tensors(self.inputs), self.targets)

    def take(self, rows: Ints) -> TensorTable:
        """Return rows by number: (r,) numbers, or (n, w) for n clients."""
        flat = torch.from_numpy(rows.reshape(-1)).to(self.targets.device)

        def select(values: Tensor) -> Tensor:
            return values.index_select(0, flat).reshape(*rows.shape, *values.shape[1:])

        return TensorTable(map_tensors(select, self.inputs), select(self.targets))

    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return sum(x[0].numel() * x.element_size() for x in self.columns)

    def slice(self, start: int, end: int) -> TensorTable:
        """Return rows start..end-1."""
        return TensorTable(
            map_tensors(lambda x: x[start:end], self.inputs), self.targets[start:end]
        )

    def blocks(self, size: int) -> Iterator[TensorTable]:
        """Yield consecutive blocks of `size` rows, the last one with fewer."""
        for start in range(0, self.length, size):
            inputs, targets = self.slice(start, start + size)
            yield TensorTable(map_tensors(_align, inputs), _align(targets))

    def digests(self) -> list[str]:
        """Return a digest of each column."""
        digests = ColumnDigests()
        digests.update(self)
        return digests.values()


class LazyTable:
    """Rows that are read when they are needed, and copied to the device then.

    The first pass over all rows checks them, digests them, and keeps their targets. Only one thread
    reads at a time, because few data sets can be read by several.

    Args:
        sources: The rows, one source after the other.
        device: Where the tensors go.
        dtype: The type of floating-point values.
    """

    def __init__(self, sources: Sequence[Source], device: torch.device, dtype: torch.dtype) -> None:
        self._sources, self._device, self._dtype = list(sources), device, dtype
        self._starts = np.cumsum([0, *(source.length for source in sources)])
        self._first, self.length = 0, int(self._starts[-1])
        self._targets: Tensor | None = None
        self._digests: list[str] = []
        self._lock = threading.Lock()
        self._row = _place(sources[0].read(np.zeros(1, dtype=np.int64)), device, dtype)

    @property
    def targets(self) -> Tensor:
        """The targets of all rows, on the device."""
        if self._targets is None:
            for _ in self.blocks(_UNKNOWN_BLOCK):
                pass
        assert self._targets is not None
        return self._targets

    def take(self, rows: Ints) -> TensorTable:
        """Read rows by number, each one once: (r,) numbers, or (n, w) for n clients."""
        numbers, places = np.unique(rows, return_inverse=True)
        return self._read(numbers + self._first).take(places.reshape(rows.shape))

    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self._row.row_bytes()

    def slice(self, start: int, end: int) -> Self:
        """Return rows start..end-1, without reading them."""
        part = copy(self)
        part._first, part.length = self._first + start, end - start
        part._targets = self.targets[start:end]
        return part

    def blocks(self, size: int) -> Iterator[TensorTable]:
        """Read consecutive blocks of `size` rows, the last one with fewer."""
        is_first = self._targets is None
        digests, targets = ColumnDigests(), []
        for start in range(0, self.length, size):
            numbers = self._first + np.arange(start, min(start + size, self.length))
            rows = self._read(numbers)
            if is_first:
                digests.update(rows)
                targets.append(rows.targets)
            yield rows
        if is_first:
            self._targets, self._digests = torch.cat(targets), digests.values()

    def digests(self) -> list[str]:
        """Return a digest of each column."""
        assert self._first == 0
        assert len(self.targets) == self.length  # reads all rows, if nobody has
        return self._digests

    def _read(self, numbers: Ints) -> TensorTable:
        """Read rows by their numbers in increasing order."""
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        parts = []
        for owner in np.unique(owners):
            source = self._sources[owner]
            own = numbers[owners == owner] - self._starts[owner]
            with self._lock:
                part = _place(source.read(own), self._device, self._dtype)
            where = f"{source.where}, row {own[0]}"
            check_alike(part, where, self._row, f"{self._sources[0].where}, row 0")
            if self._targets is None:
                _check_finite(part, source.where)
            parts.append(part)
        return _concatenate(parts)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()  # locks cannot be pickled


AnyTable: TypeAlias = TensorTable | LazyTable


class ColumnDigests:
    """Digest rows column by column, so that the digest is the same for any blocks of rows."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._hashes: list[hashlib._Hash] = []

    def update(self, rows: TensorTable) -> None:
        """Add a block of rows."""
        if not self._words:
            names = (
                (*rows.inputs, "") if isinstance(rows.inputs, dict) else [""] * len(rows.columns)
            )
            for name, x in zip(names, rows.columns, strict=True):
                self._words.append(f"{name} {x.dtype} {tuple(x.shape[1:])}")
                self._hashes.append(hashlib.sha256())
        for digest, x in zip(self._hashes, rows.columns, strict=True):
            digest.update(to_numpy(x.contiguous()).tobytes())

    def values(self) -> list[str]:
        """Return the digest of each column, with its name, type and shape."""
        pairs = zip(self._words, self._hashes, strict=True)
        return [f"{words} {digest.hexdigest()}" for words, digest in pairs]


class TensorArrays(NamedTuple):
    """Keep vectors as tensors on a device (`fedpage.core.capabilities.DeviceArrays`)."""

    device: torch.device
    dtype: torch.dtype

    def to_device(self, values: Vector) -> Tensor:
        """Return a copy on the device."""
        return torch.tensor(values, device=self.device)

    def to_host(self, values: Tensor) -> Vector:
        """Return a copy as numpy's array."""
        return np.array(to_numpy(values))

    def zeros(self, rows: int, d: int) -> Tensor:
        """Return a table of zeros, (rows, d), on the device."""
        return torch.zeros(rows, d, device=self.device, dtype=self.dtype)


def to_numpy(values: Tensor) -> Vector:
    """Return a tensor's values as a numpy array."""
    return values.detach().cpu().numpy()


def read_table(
    sources: Sequence[Source], device: torch.device, dtype: torch.dtype, is_lazy: bool
) -> AnyTable:
    """Join rows, one source after the other, with floating-point values in `dtype`.

    Args:
        sources: The rows.
        device: Where the tensors go.
        dtype: The type of floating-point values.
        is_lazy: Whether rows are read when they are needed, or all now.

    Raises:
        InputError: Rows differ in shape or type, or are not finite.
    """
    if is_lazy:
        return LazyTable(sources, device, dtype)
    tables: list[TensorTable] = []
    for source in sources:
        table = _place(source.read(np.arange(source.length)), device, dtype)
        if tables:
            check_alike(table, source.where, tables[0], sources[0].where)
        _check_finite(table, source.where)
        tables.append(table)
    return _concatenate(tables)


def _place(rows: tuple[Inputs, Tensor], device: torch.device, dtype: torch.dtype) -> TensorTable:
    """Copy rows to the device, to memory that torch aligns, because alignment may change bits."""

    def copy_to_device(x: Tensor) -> Tensor:
        kind = dtype if x.is_floating_point() else x.dtype
        return torch.empty(x.shape, dtype=kind, device=device).copy_(x)

    return TensorTable(*map_tensors(copy_to_device, rows))


def _align(values: Tensor) -> Tensor:
    """Return values in memory that torch aligns, because alignment may change bits."""
    return values if values.data_ptr() % _ALIGNMENT == 0 else values.clone()


def _check_finite(table: TensorTable, where: str) -> None:
    for x in table.columns:
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"TorchProblem: {where} has a NaN or an infinity in its rows")


def _concatenate(tables: list[TensorTable]) -> TensorTable:
    """Join tables whose columns are alike."""
    if len(tables) == 1:
        return tables[0]
    return TensorTable(*map_tensors(lambda *parts: torch.cat(parts), *(tuple(t) for t in tables)))


def list_datasets(datasets: object, name: str, minimum: int = 1) -> list[object]:
    """Return one data set per client as a list, or refuse the argument called `name`."""
    if is_single(datasets) or not isinstance(datasets, Iterable):
        raise InputError(
            f"TorchProblem: {name} must be a list with the rows of each client, not a "
            f"{type(datasets).__name__}; for a single client give [rows]"
        )
    found = list(datasets)
    if len(found) < minimum:
        raise InputError(f"TorchProblem: {name} is empty; give (inputs, targets) for each client")
    return found


def sample_rows(table: AnyTable) -> TensorTable:
    """Return at most 8 rows, spread over the table and, in memory, over its different targets.

    Raises:
        InputError: A row is another one when it is read again.
    """
    rows = np.linspace(0, table.length - 1, min(8, table.length)).astype(np.int64)
    if isinstance(table, TensorTable) and table.targets.ndim == 1:
        _, first = np.unique(to_numpy(table.targets), return_index=True)
        rows = np.concatenate([first[:8], rows])
    chosen = np.array(list(dict.fromkeys(rows.tolist()))[:8])
    sample = table.take(chosen)
    if sample.digests() != table.take(chosen).digests():
        raise InputError(
            "TorchProblem: a row changes when it is read again, but with lazy=True rows must stay "
            "as they are; leave out random transforms"
        )
    return sample


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


def choose_memory(memory: float | None, device: torch.device) -> int:
    """Return the bytes that one call may take, about.

    Args:
        memory: Gigabytes; None: 1 on a CPU, half of the free memory on another device.
        device: Where to compute.

    Raises:
        InputError: The memory is not a positive number.
    """
    if memory is None:
        if device.type == "cuda":
            return int(torch.cuda.mem_get_info(device)[0]) // 2
        if device.type == "mps":
            used = torch.mps.current_allocated_memory()
            return max(2**28, int(torch.mps.recommended_max_memory()) - int(used)) // 2
        return 2**30
    number = as_number(memory)
    if not 0 < number < math.inf:
        raise InputError(
            f"TorchProblem: memory must be a positive number of gigabytes, not {short_repr(memory)}"
        )
    return max(1, int(number * 2**30))


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
