"""The private means that a federation has released, and the secret key of their noise, on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from fedpage.core.errors import InputError

_KEY_BYTES = 32


class Release(NamedTuple):
    """A mean that left the aggregation."""

    round: int
    digest: str
    """SHA-256 of the mean with its noise."""
    clients: tuple[int, ...]
    """The clients whose replies were averaged."""
    called: int
    """How many clients were called."""


class ReleaseJournal:
    """A file of releases, to which each is added before the mean is used.

    A checkpoint comes after the round, so a server that is killed in between repeats a round whose
    mean clients have seen. The journal still has the first one.

    Args:
        path: The file; it is created if there is none, and only its owner can read it.
        N: The number of clients.

    Raises:
        InputError: The file cannot be read or is not a journal of this federation.
    """

    def __init__(self, path: Path, N: int) -> None:
        self._path = path
        self.releases: list[Release] = []
        """All releases, oldest first."""
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # what follows was not written completely, nor used
        try:
            for line in whole.splitlines():
                round, digest, clients, called = json.loads(line)
                if not all(0 <= client < N for client in clients):
                    raise ValueError
                self.releases.append(Release(round, digest, tuple(clients), called))
        except (ValueError, TypeError):
            raise InputError(
                f"{path}: damaged, so the privacy budget is not known; begin a new run"
            ) from None
        self._known = {(release.round, release.digest) for release in self.releases}
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._descriptor, len(whole))

    def add(self, release: Release) -> bool:
        """Write a release to the disk; return False if it is there already."""
        if (release.round, release.digest) in self._known:
            return False
        os.write(self._descriptor, json.dumps(release).encode() + b"\n")
        os.fsync(self._descriptor)
        self.releases.append(release)
        self._known.add((release.round, release.digest))
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_noise_key(path: Path) -> bytes:
    """Return the key in a file, which only its owner can read; draw it if there is none.

    Args:
        path: The file.

    Returns:
        32 bytes from the operating system's source of secret random numbers.

    Raises:
        InputError: The file does not hold a key.
    """
    if not path.exists():
        scratch = path.with_name(f".{path.name}.tmp")
        scratch.unlink(missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(os.urandom(_KEY_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise InputError(f"{path}: not the key of a private mean; begin a new run")
    return key
