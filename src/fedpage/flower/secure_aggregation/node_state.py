"""What a node keeps for secure aggregation: a secret, its peers' keys, and what it has revealed."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from fedpage.core.files import sync_folder
from fedpage.flower.messages import ProtocolError
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.private_files import UnsafePath, make_private, open_private
from fedpage.flower.secure_aggregation.protocol import join_numbers, split_numbers


class NodeState:
    """The files of one client in one run, which only the node's user can read.

    Every file is written once, completely or not at all, and never changed. So two processes of a
    node agree on what was written first, and a node that was restarted remembers it.

    Args:
        folder: The node's state directory.
        run: What identifies the server and the run.
        client: The client's number.
    """

    def __init__(self, folder: Path, run: str, client: int) -> None:
        name = hashlib.sha256(run.encode()).hexdigest()[:24]
        self._base, self._folder = folder, folder / f"{name}-{client}-secure"

    def secret(self) -> bytes:
        """Return the secret that all keys of this node in this run follow from."""
        return self._write_once("secret", secrets.token_bytes(32))

    def pin(self, client: int, key: bytes) -> None:
        """Remember the key of a peer.

        Raises:
            ProtocolError: It had another key before.
        """
        if self._write_once(f"peer-{client}", key) != key:
            raise ProtocolError(f"the key of client {client} has changed during the run")

    def revealed(self, round: int, message: str) -> tuple[int, ...]:
        """Return the survivors of the sum that this node has unmasked; empty: none."""
        path = self._folder / f"revealed-{round}-{message}"
        try:
            return split_numbers(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return ()

    def reveal(self, round: int, message: str, survivors: tuple[int, ...]) -> None:
        """Remember that this node unmasks the sum of these clients.

        Raises:
            ProtocolError: It has unmasked another sum of this round and message before.
        """
        text = join_numbers(survivors).encode("ascii")
        if self._write_once(f"revealed-{round}-{message}", text) != text:
            raise ProtocolError("a sum over other clients was unmasked in this round already")

    def forget_keys(self) -> None:
        """Remove the secret and the peers' keys; what was revealed is remembered."""
        for path in self._folder.glob("secret"), self._folder.glob("peer-*"):
            for file in path:
                file.unlink(missing_ok=True)

    def remove_older(self, days: float) -> None:
        """Remove the files of any run that have not changed for some days."""
        oldest = time.time() - days * 86400.0
        for folder in self._base.glob("*-secure"):
            if folder != self._folder and folder.lstat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)

    def _write_once(self, name: str, data: bytes) -> bytes:
        """Write a file unless it exists, and return what it holds."""
        path = self._folder / name
        try:
            make_private(self._base)
            make_private(self._folder)
            if not path.exists():
                self._write(path, data)
        except UnsafePath as error:
            raise NodeError(Code.STATE_UNSAFE, str(error)) from None
        return path.read_bytes()

    def _write(self, path: Path, data: bytes) -> None:
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(open_private(scratch, os.O_WRONLY | os.O_EXCL), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(scratch, path)  # unlike a rename, it does not replace a file
            sync_folder(path.parent)
        finally:
            scratch.unlink(missing_ok=True)
