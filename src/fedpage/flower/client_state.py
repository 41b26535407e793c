"""The client state that a node keeps, such as SCAFFOLD's c_i."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.core.messages import field_names
from fedpage.core.types import DType, Fields, Vector
from fedpage.data.registry import platform_cache
from fedpage.flower.node_errors import Code, NodeError
from fedpage.runs.checkpoint import pack, unpack

_STATE_VERSIONS = 6
"""Versions of the client state that a node keeps, for servers that resume an older checkpoint."""

T = TypeVar("T", bound=Fields)


class ClientStateStore(Generic[T]):
    """The last versions of one client's state, in a file on the node.

    A version is named by the round and the message of the reply that it followed. The server says
    which version a client starts from. So a lost reply, a restarted node and a server that resumes
    an older checkpoint all use the right version, and a repeated message gets the same reply.

    Args:
        folder: directory of the file; "" takes the user's cache directory.
        run: digest that identifies the run.
        client: the client's number.
        state_type: `Method.client_state`.
        d: number of parameters.
        dtype: type of the numbers.
    """

    def __init__(
        self,
        folder: str,
        run: str,
        client: int,
        state_type: type[T],
        d: int,
        dtype: DType | type[np.float64] = np.float64,
    ) -> None:
        base = Path(folder) if folder else platform_cache() / "client-state"
        self._path = base / f"{hashlib.sha256(run.encode()).hexdigest()[:24]}-{client}.npz"
        self._type: Callable[..., T] = state_type
        self._count = len(field_names(state_type))
        self._d, self._dtype = d, np.dtype(dtype)

    def load(self, version: str) -> T:
        """Load a version of the client state.

        Args:
            version: the version's name; "" is the initial state.

        Returns:
            The state, a NamedTuple of (1, d) arrays; zeros for "".

        Raises:
            InputError: the node does not have this version, or the file is damaged.
        """
        if not version:
            return self._type(*(np.zeros((1, self._d), self._dtype) for _ in range(self._count)))
        versions = self._read()
        if version not in versions:
            raise NodeError(
                Code.STATE_LOST,
                f"this node has no client state of round {version.split()[0]}; "
                f"it was lost ({self._path})",
            )
        return self._type(*(field[None, :] for field in versions[version]))

    def save(self, previous: str, version: str, state: T) -> None:
        """Save a version of the client state beside the one it was computed from.

        Args:
            previous: name of the version that the client started from; it is kept.
            version: name of the new version.
            state: NamedTuple of (1, d) arrays.
        """
        versions = {name: fields for name, fields in self._read().items() if name != version}
        newest = [name for name in versions if name != previous][-(_STATE_VERSIONS - 2) :]
        kept = {name: versions[name] for name in versions if name in newest or name == previous}
        kept[version] = [field[0] for field in state]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        put(self._path, pack({"versions": kept}))

    def _read(self) -> dict[str, list[Vector]]:
        try:
            tree = unpack(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return {}
        versions = tree.get("versions")
        if not isinstance(versions, dict) or not all(map(self._is_state, versions.values())):
            raise InputError(f"{self._path}: not the client state of this client in this run")
        return versions

    def _is_state(self, fields: Sequence[Vector]) -> bool:
        return len(fields) == self._count and all(
            field.shape == (self._d,) and field.dtype == self._dtype for field in fields
        )
