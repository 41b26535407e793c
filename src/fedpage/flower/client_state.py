"""The client state that a node keeps, such as SCAFFOLD's c_i."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.messages import field_names
from fedpage.core.types import DType, Fields, Vector
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.private_files import UnsafePath, check_private, locked, make_private
from fedpage.runs.checkpoint import pack, unpack

_STATE_VERSIONS = 6
"""Versions of the client state that a node keeps, for servers that resume an older checkpoint."""

_STATE_NAME = re.compile(r"[0-9a-f]{24}-[0-9]+\.npz")

T = TypeVar("T", bound=Fields)


class ClientStateStore(Generic[T]):
    """The last versions of one client's state, in a file on the node.

    A version is named by the round and the message of the reply that it followed. The server says
    which version a client starts from. So a lost reply, a restarted node and a server that resumes
    an older checkpoint all use the right version, and a repeated message gets the same reply.

    Args:
        folder: the node's state directory; only its owner can read it.
        run: what identifies the server and the run.
        client: the client's number.
        state_type: `Method.client_state`.
        d: number of parameters.
        dtype: type of the numbers.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        client: int,
        state_type: type[T],
        d: int,
        dtype: DType | type[np.float64] = np.float64,
    ) -> None:
        self._path = _state_path(folder, run, client)
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

        Raises:
            NodeError: other users of the machine can change the directory or the file.
        """
        with _locked(self._path.parent):
            self._save(previous, version, state)

    def remove_older(self, days: float) -> None:
        """Remove the states of any run that have not changed for some days.

        They belong to runs that never said that they had ended. A run in progress is resumed
        within this time, or not at all.
        """
        oldest = time.time() - days * 86400.0
        with _locked(self._path.parent) as folder:
            for path in folder.iterdir():
                if _STATE_NAME.fullmatch(path.name) and path.lstat().st_mtime < oldest:
                    path.unlink(missing_ok=True)

    def _save(self, previous: str, version: str, state: T) -> None:
        versions = {name: fields for name, fields in self._read().items() if name != version}
        newest = [name for name in versions if name != previous][-(_STATE_VERSIONS - 2) :]
        kept = {name: versions[name] for name in versions if name in newest or name == previous}
        kept[version] = [field[0] for field in state]
        put(self._path, pack({"versions": kept}), private=True)

    def _read(self) -> dict[str, list[Vector]]:
        with _explain_unsafe():
            check_private(self._path.parent)
            check_private(self._path)
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


def remove_state(folder: Path, run: str, client: int) -> None:
    """Remove the state of a client in a run that has ended, if there is one.

    Args:
        folder: the node's state directory.
        run: what identifies the server and the run.
        client: the client's number.
    """
    if folder.is_dir():
        with _locked(folder):
            _state_path(folder, run, client).unlink(missing_ok=True)


def _state_path(folder: Path, run: str, client: int) -> Path:
    return folder / f"{hashlib.sha256(run.encode()).hexdigest()[:24]}-{client}.npz"


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Create a private directory and hold its lock."""
    with _explain_unsafe():
        make_private(folder)
        with locked(folder / ".lock"):
            yield folder


@contextmanager
def _explain_unsafe() -> Iterator[None]:
    try:
        yield
    except UnsafePath as error:
        raise NodeError(Code.STATE_UNSAFE, str(error)) from None
