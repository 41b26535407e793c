"""What every engine's server has: a method's state, its rounds and their costs. How clients are reached differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedpage.core.aggregate import add_rows, mean_rows
from fedpage.core.errors import InputError
from fedpage.core.random import RoundDraws, check_seed
from fedpage.core.types import Draws, Ints, Method, Vector
from fedpage.engine.policy import Answer, Policy
from fedpage.engine.round import Costs, Rounds
from fedpage.runs.checkpoint import filled, outline_of


class Server:
    """Rounds of a method from x0 (d,) over N clients. Subclasses say how to `ask` clients and what to `measure`."""

    def __init__(
        self, method: Method, N: int, x0: Vector, *, seed: int, policy: Policy | None = None
    ) -> None:
        for name in ("init", "call", "client", "server"):
            if isinstance(method, type) or not hasattr(method, name):
                raise InputError(f"method must be a method such as FedPAGE(S=10), not {method!r}")
        self.method, self.N, self.seed = method, N, check_seed(seed)
        self.state = method.init(x0, N)
        self.rounds = Rounds(method, N, self, policy=policy)
        self.costs = self.rounds.costs

    @property
    def x(self) -> Vector:
        """(d,) the current model."""
        x: Vector = self.state.x
        return x

    @property
    def effective_step(self) -> float:
        """The method's."""
        return float(self.method.effective_step)

    @property
    def code(self) -> dict[str, type[Any]]:
        """The classes whose code decides what a round computes."""
        return {"method": type(self.method)}

    def draws(self) -> Draws:
        """The coming round's random numbers."""
        return RoundDraws(self.seed, self.costs.round)

    def step(self) -> None:
        """One round."""
        self.state = self.rounds.play(self.state, self.draws())

    def ask(self, clients: Ints, message: Any, wave: int) -> Iterable[Answer]:
        """Send a message to clients."""
        raise NotImplementedError

    def accept(self, clients: Ints, client_state: Any) -> None:
        """The replies of these clients count."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Any]:
        """All that the coming rounds depend on."""
        return {
            "state": outline_of(self.state),
            "costs": dict(vars(self.costs)),
            "misses": {str(client): times for client, times in self.rounds.roster.misses.items()},
        }

    def restore(self, tree: Mapping[str, Any], source: str) -> None:
        """Go back to a snapshot of a run with the same method."""
        kinds = {name: type(value) for name, value in vars(Costs()).items()}
        try:
            state, costs = tree["state"], dict(tree["costs"])
            misses = {int(client): int(times) for client, times in tree["misses"].items()}
            sound = {name: type(value) for name, value in costs.items()} == kinds
            sound = sound and all(0 <= value < 2**63 for value in costs.values())
            if not sound or any(
                times < 1 or not 0 <= client < self.N for client, times in misses.items()
            ):
                raise TypeError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of this method on this problem") from None
        self.state = filled(self.state, state, source)
        for name, value in costs.items():
            setattr(self.costs, name, value)
        self.rounds.roster.misses = misses


def mean_evaluations(losses: Iterable[Vector], gradients: Iterable[Vector]) -> dict[str, float]:
    """{"loss", "grad_norm"} of the mean of clients' own, in client order; chunks of losses (n,), gradients (n, d)."""
    count, loss, total = 0, None, None
    for values, rows in zip(losses, gradients, strict=True):
        count += len(values)
        loss = add_rows(loss, np.ascontiguousarray(values)[:, None])
        total = add_rows(total, rows)
    if loss is None or total is None:
        return {"loss": math.nan, "grad_norm": math.nan}
    mean = total / count
    squares = mean_rows((mean * mean)[:, None])[0] * len(mean)
    return {
        "loss": float(loss[0] / count),
        "grad_norm": math.sqrt(squares) if squares >= 0 else math.nan,
    }
