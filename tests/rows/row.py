"""A row of the laws' matrix: how to make a method, and which laws apply to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Rest = Callable[[Any, np.ndarray], None]


class Setting(NamedTuple):
    """What a law asks for: sampled clients, local steps, an effective step, all rows or few."""

    S: int
    K: int
    step: float
    full: bool = False

    @property
    def b(self) -> int | None:
        """Rows in a minibatch: all, or 2."""
        return None if self.full else 2

    @property
    def local(self) -> dict[str, Any]:
        """The hyper-parameters of variants of local SGD."""
        return {"S": self.S, "K": self.K, "b": self.b}


class Row(NamedTuple):
    """A method under the laws."""

    make: Callable[[Setting], Any]
    """Makes the method at a setting; its effective step must be the setting's."""
    descent: int | None = 1
    """Rounds for a step of gradient descent where S = N, K = 1 and gradients use all rows.

    None: the method is not gradient descent there; its own test file says what it is.
    """
    reaches: bool = True
    """Whether it reaches x* of heterogeneous quadratics under sampling, with all rows."""
    rest: Rest | None = None
    """Sets a simulation at x* to rest, given all clients' gradients there, (N, d).

    None: it rests from its initial state.
    """
    rests: bool = True
    """Whether it stays at x* once it is at rest there."""
    messages: int | None = None
    """Message types seen in its first 12 rounds; None: all that it declares."""
    scale: float = 1.0
    """Factor on the effective step in the tests of convergence."""
    rounds: int = 1500
    """Rounds in which it reaches x* to 1e-7 at an effective step of 0.1 * scale."""
    rounds_logistic: int = 2500
    """Rounds in which it solves logistic regression to 1e-5 at an effective step of 0.3 * scale."""
