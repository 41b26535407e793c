"""Settings of torch under which a client's bits depend on its rows and its parameters alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Settings:
    """Count the users of `deterministic_algorithms`, and remember torch's settings before."""

    lock = threading.Lock()
    users = 0
    before: tuple[int, bool, bool] = (1, False, False)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Run torch on one thread with deterministic algorithms, and restore its settings."""
    with _Settings.lock:
        if _Settings.users == 0:
            _Settings.before = (
                torch.get_num_threads(),
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            torch.use_deterministic_algorithms(True)
        _Settings.users += 1
    if torch.get_num_threads() != 1:  # each thread has a setting of its own
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _Settings.lock:
            _Settings.users -= 1
            if _Settings.users == 0:
                threads, enabled, warn_only = _Settings.before
                torch.set_num_threads(threads)
                torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
