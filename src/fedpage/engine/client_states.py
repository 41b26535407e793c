"""The states that simulated clients store between rounds."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from typing import Any, Generic

import numpy as np

from fedpage.core.arrays import DeviceArrays
from fedpage.core.errors import InputError
from fedpage.core.messages import field_names
from fedpage.core.types import ClientStateT, DType, Ints, Vector

_SMALL = 1 << 26
"""Tables of fewer bytes are left to numpy."""


class ClientStates(Generic[ClientStateT]):
    """Keep every client's state: a table (N, d) for each field, zero until it is first written.

    The operating system assigns memory to the rows that are written, so a million clients of whom
    a thousand were called cost a thousand rows.

    Args:
        type_: The method's `client_state`, a NamedTuple of vectors, or None.
        N: The number of clients.
        d: The number of parameters.
        dtype: The type of the model's numbers.
        device: Where the tables are kept; None: numpy's arrays.
    """

    def __init__(
        self,
        type_: type[ClientStateT] | None,
        N: int,
        d: int,
        dtype: DType,
        device: DeviceArrays | None = None,
    ) -> None:
        self._device = device
        self._type: Callable[..., ClientStateT] | None = type_
        try:
            names = () if type_ is None else field_names(type_)
            zeros = partial(_zeros, dtype=dtype) if device is None else device.zeros
            self._tables: list[Any] = [zeros(N, d) for _ in names]
            self._written = np.zeros(N if names else 0, dtype=bool)
        except (MemoryError, OSError, OverflowError, ValueError, RuntimeError):
            raise InputError(
                f"the states of {N} clients with {d} numbers each do not fit in memory; "
                "use fewer clients"
            ) from None

    def get(self, clients: Ints) -> ClientStateT:
        """Return copies of some clients' states, (n, d) each; None if the method keeps none."""
        if self._type is None:
            return None  # type: ignore[return-value]  # ClientStateT is None then
        states: ClientStateT = self._type(*[self._rows(table, clients) for table in self._tables])
        return states

    def _rows(self, table: Any, clients: Ints) -> Any:
        return table[clients] if self._device is not None else table.take(clients, axis=0)

    def put(self, clients: Ints, client_states: ClientStateT) -> None:
        """Store the new states of some clients, (n, d) each."""
        if client_states is not None:
            for table, rows in zip(self._tables, client_states, strict=True):
                table[clients] = rows
            self._written[clients] = True

    def get_all(self) -> ClientStateT:
        """Return all N clients' states, (N, d) each; None if the method keeps none."""
        if self._type is None:
            return None  # type: ignore[return-value]  # ClientStateT is None then
        states: ClientStateT = self._type(*self._tables)
        return states

    def find_written(self) -> Ints:
        """Return the clients whose state has been written, (n,)."""
        return np.flatnonzero(self._written)


def _zeros(N: int, d: int, dtype: DType) -> Vector:
    """Return zeros (N, d) that take memory in small pages, as they are written.

    numpy asks for pages of 2 MiB, so that a row here and there would take all of the table.
    """
    size = N * d * dtype.itemsize
    if size < _SMALL or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros((N, d), dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    table: Vector = np.ndarray((N, d), dtype, memory)
    return table
