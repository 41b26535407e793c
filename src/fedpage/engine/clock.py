"""Add up the simulated time of rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpage.core.random import normal_per_client
from fedpage.core.types import Ints, Vector
from fedpage.engine.devices import Devices

_NOISE = 16
"""The purpose of the draws, apart from those of faults and devices."""


class Clock:
    """Time the calls of one run: what a client takes, and how long a round waits.

    A round takes the sum over its attempts of the time of the slowest client of each. It has the
    same bits for any chunks, because a maximum does not depend on the order.

    Args:
        devices: The devices.
        N: The number of clients.
        d: The number of parameters.
        seed: The run's seed, for the noise.

    Raises:
        InputError: The devices do not fit the problem.
    """

    def __init__(self, devices: Devices, N: int, d: int, seed: int) -> None:
        self.deadline = devices.deadline
        self._speeds, self._seed = devices.draw(N, d), seed
        self._noise, self._overhead = devices.noise_of_calls, devices.overhead
        self._attempts: dict[int, float] = {}

    def measure(
        self,
        clients: Ints,
        bytes_down: int,
        bytes_up: Ints,
        gradients: Ints,
        round: int,
        attempt: int,
    ) -> Vector:
        """Return the seconds that each called client takes, (n,); see `Speeds.seconds`."""
        seconds = self._speeds.seconds(clients, bytes_down, bytes_up, gradients)
        if self._noise:
            z = normal_per_client(self._seed, _NOISE, round, attempt, clients=clients)
            seconds = seconds * np.exp(self._noise * z)
        return seconds

    def wait(
        self, attempt: int, seconds: Vector, *, is_required: bool, has_silent: bool
    ) -> NDArray[np.bool_] | None:
        """Wait for the replies of a chunk of called clients.

        Args:
            attempt: The number of the attempt within the round.
            seconds: What each client that works takes, (n,).
            is_required: Whether every called client is needed, so that there is no deadline.
            has_silent: Whether the reply of a called client does not arrive at all.

        Returns:
            Which replies come after the deadline, (n,); None if none does.
        """
        last = float(seconds.max(initial=0.0))
        late = None
        if self.deadline is not None and not is_required:
            if last > self.deadline:
                late = seconds > self.deadline
            if late is not None or has_silent:
                last = self.deadline
        self._attempts[attempt] = max(last, self._attempts.get(attempt, 0.0))
        return late

    def pop_round(self) -> float:
        """Return the seconds of the round that has ended, and begin the next."""
        total = self._overhead + sum(self._attempts[key] for key in sorted(self._attempts))
        self._attempts.clear()
        return total
