"""The base class of engines: a method's state, its rounds, their costs, snapshots."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias

import numpy as np

from fedpage.core.aggregate import add_rows, mean_rows
from fedpage.core.arrays import DeviceArrays, to_device, to_host
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import RoundDraws, check_seed
from fedpage.core.schedules import effective_step, schedules_of
from fedpage.core.types import (
    ClientStateT,
    Draws,
    MessageT,
    Method,
    ReplyT,
    StateT,
    Vector,
)
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.policy import Policy
from fedpage.engine.round import Costs, Round, RoundInfo
from fedpage.engine.transport import Event, Transport
from fedpage.runs.checkpoint import Snapshot, state_from_tree, state_to_tree
from fedpage.runs.fingerprint import Code, method_code


class Engine(ABC, Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds of a method; a subclass says how clients are reached and what is evaluated.

    Args:
        method: The method.
        N: The number of clients.
        x0: The start, (d,).
        transport: How clients are reached.
        seed: The run's seed.
        policy: What to do about clients that fail.
        costs: The counters of costs; None: `Costs()`.
        aggregation: How replies are combined; None: by their mean.
        noise_key: Secret bytes from which an aggregation draws its noise; None: it is drawn from
            the seed, which suits simulations only.
        compared: The factor N w_i of each client's objective, (N,), if the norms of replies are
            compared because clients may send wrong numbers; None: they are not.
        device: Where the state is kept; None: in numpy's arrays.
    """

    def __init__(
        self,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        N: int,
        x0: Vector,
        transport: Transport[MessageT, ReplyT, ClientStateT],
        *,
        seed: int,
        policy: Policy,
        costs: Costs | None = None,
        aggregation: Aggregation | None = None,
        noise_key: bytes | None = None,
        compared: Vector | None = None,
        device: DeviceArrays | None = None,
    ) -> None:
        self.method, self.N, self.seed, self._device = method, N, check_seed(seed), device
        self.state = method.init(x0 if device is None else device.to_device(x0), N)
        key = self.seed.to_bytes(8, "little") if noise_key is None else noise_key
        self.round = Round(
            method, N, len(x0), x0.dtype, transport, policy, costs, aggregation, key, compared
        )
        self.costs = self.round.costs

    @property
    def x(self) -> Vector:
        """The current model, (d,)."""
        return self.state.x if self._device is None else self._device.to_host(self.state.x)

    def _host_state(self) -> StateT:
        """Return the state with numpy's arrays."""
        if self._device is None:
            return self.state
        state: StateT = to_host(self._device, self.state)
        return state

    @property
    def effective_step(self) -> float:
        """The method's effective step, with schedules at their largest values."""
        return effective_step(self.method)

    @property
    def step_text(self) -> str:
        """The effective step in words, for messages."""
        most = "at most " if schedules_of(self.method) else ""
        return f"effective step {most}{self.effective_step:g}"

    @property
    def code(self) -> dict[str, Code]:
        """The classes and schedules that decide what a round computes, by role."""
        return method_code(self.method)

    @property
    def lost_clients(self) -> Sequence[int]:
        """The clients that are lost, ascending."""
        health = self.round.health
        return health.lost if health.misses else ()

    def draws(self) -> Draws:
        """Return the next round's random numbers."""
        return RoundDraws(self.seed, self.costs.round)

    def step(self) -> RoundInfo:
        """Run one round.

        Raises:
            RoundFailed: Too few clients answered.
        """
        self.state, info = self.round.step(self.state, self.draws())
        return info

    def pop_events(self) -> list[Event]:
        """Return and clear the events outside a round since the last call."""
        return []

    def measure_privacy(self) -> Mapping[str, float]:
        """Return the privacy budget spent so far, if the aggregation is private."""
        return {} if self.round.ledger is None else self.round.ledger.measure()

    @abstractmethod
    def evaluate(self) -> Mapping[str, float]:
        """Return what is recorded of x: "loss", "grad_norm" and metrics, as far as measured.

        Where not all clients measured it, "measured_clients" says how many did.
        """

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on."""
        misses = self.round.health.misses
        ledger, outliers = self.round.ledger, self.round.outliers
        tree: Snapshot = {
            "state": state_to_tree(self._host_state()),
            "costs": dict(vars(self.costs)),
            "misses": {str(client): times for client, times in misses.items()},
        }
        if ledger is not None:
            tree["privacy"] = ledger.snapshot()
        if outliers is not None:
            tree["outliers"] = outliers.snapshot()
        return tree

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot of a run with the same method.

        Args:
            tree: The snapshot.
            source: Where it comes from, for error messages.

        Raises:
            InputError: The snapshot is not one of this method on this problem.
        """
        types = {name: type(value) for name, value in vars(type(self.costs)()).items()}
        try:
            costs = dict(tree["costs"])
            misses = {int(client): int(times) for client, times in tree["misses"].items()}
            valid = {name: type(value) for name, value in costs.items()} == types
            valid = valid and all(0 <= value < 2**63 for value in costs.values())
            if not valid or any(t < 1 or not 0 <= c < self.N for c, t in misses.items()):
                raise TypeError
            state = state_from_tree(self._host_state(), tree["state"], source)
            if self._device is not None:
                state = to_device(self._device, state, self.state)
            if self.round.ledger is not None:
                self.round.ledger.restore(tree["privacy"])
            if self.round.outliers is not None:  # a federation may be resumed with the check
                self.round.outliers.restore(tree.get("outliers", {}))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of this method on this problem") from None
        self.state = state
        vars(self.costs).update(costs)
        self.round.health.misses = misses


AnyEngine: TypeAlias = Engine[Any, Any, Any, Any]
"""An engine whose method's types the caller does not look into."""


def check_is_method(method: object) -> None:
    """Refuse what is not a method.

    Raises:
        InputError: It is a class, or lacks a part of the protocol.
    """
    parts = ("init", "call", "client", "server")
    if isinstance(method, type) or not all(hasattr(method, name) for name in parts):
        raise InputError(f"method must be a method such as FedPAGE(S=10), not {short_repr(method)}")


def mean_evaluations(losses: Iterable[Vector], gradients: Iterable[Vector]) -> dict[str, float]:
    """Average clients' own losses and gradients in client order.

    Args:
        losses: Chunks of losses, (n,) each.
        gradients: Chunks of gradients, (n, d) each.

    Returns:
        "loss" and "grad_norm" of the mean; NaN if there is no client.
    """
    count = 0
    loss: Vector | None = None
    total: Vector | None = None
    for values, rows in zip(losses, gradients, strict=True):
        count += len(values)
        loss = add_rows(loss, np.ascontiguousarray(values)[:, None])
        total = add_rows(total, rows)
    if loss is None or total is None:
        return {"loss": math.nan, "grad_norm": math.nan}
    mean = total / count
    squares = mean_rows((mean * mean)[:, None])[0] * len(mean)
    norm = math.sqrt(squares) if squares >= 0 else math.nan
    return {"loss": float(loss[0] / count), "grad_norm": norm}
