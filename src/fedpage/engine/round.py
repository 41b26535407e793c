"""The base class of engines: a method's state, its rounds, their costs, snapshots."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias

import numpy as np

from fedpage.callbacks.base import Event, Slowest
from fedpage.core.capabilities import DeviceArrays, to_device, to_host
from fedpage.core.messages import add_rows, mean_rows
from fedpage.core.random import RoundDraws, check_seed
from fedpage.core.types import Call, ClientStateT, Draws, MessageT, Method, ReplyT, StateT, Vector
from fedpage.engine.aggregation import Aggregation, Mean
from fedpage.engine.collect import Collector, Costs, TimedCosts
from fedpage.engine.devices import Clock
from fedpage.engine.policy import Policy
from fedpage.engine.transport import Transport
from fedpage.methods.schedules import at_round, effective_step, schedules_of
from fedpage.runs.checkpoint import Snapshot, state_from_tree, state_to_tree
from fedpage.runs.fingerprint import CodeOwner, method_code


class RoundInfo(NamedTuple):
    """A report about a round."""

    round: int
    """The number of the round, from 0."""
    count: int  # type: ignore[assignment]  # a tuple's own method `count` is never needed here
    """The number of clients whose replies were averaged."""
    events: tuple[Event, ...] = ()
    called: int = 0
    """The number of clients that were called."""
    slowest: Slowest | None = None
    """The client whose reply took longest, if the transport measures time."""


class Engine(ABC, Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds of a method: call, replies, their mean in client order, server.

    A subclass provides a transport, which reaches the clients, and `evaluate`. The mean is a
    running sum in client order, so it has the same bits for any chunks, threads and machines.

    Args:
        method: The method.
        N: The number of clients.
        x0: The start, (d,).
        transport: How clients are reached.
        seed: The run's seed. An aggregation draws its noise from it, too, unless
            `collector.noise_key` is set to a secret key.
        policy: What to do about clients that fail; by default the recommended policy.
        aggregation: How replies are combined; by default by their mean.
        scale: The factor N w_i of each client's objective, (N,), if the norms of replies are
            compared because clients may send wrong numbers.
        device: The device that keeps the state; by default the state has numpy arrays.
        clock: Simulates the time of rounds.

    Raises:
        InputError: The aggregation does not suit the method.
    """

    def __init__(
        self,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        N: int,
        x0: Vector,
        transport: Transport[MessageT, ReplyT, ClientStateT],
        *,
        seed: int,
        policy: Policy | None = None,
        aggregation: Aggregation | None = None,
        scale: Vector | None = None,
        device: DeviceArrays | None = None,
        clock: Clock | None = None,
    ) -> None:
        aggregation = aggregation or Mean()
        aggregation.check(method, N)
        self.method, self.N, self.seed = method, N, check_seed(seed)
        self._device, self._clock = device, clock
        self._is_scheduled = bool(schedules_of(method))
        self.state = method.init(x0 if device is None else device.to_device(x0), N)
        self.costs: Costs = Costs() if clock is None else TimedCosts()
        self.ledger = aggregation.make_ledger(method, N)
        """The privacy budget spent, if the aggregation is private."""
        key = self.seed.to_bytes(8, "little")
        self.collector = Collector(
            transport, policy or Policy(), aggregation, self.costs, N, key, scale
        )
        self.health = self.collector.health

    def step(self) -> RoundInfo:
        """Run one round.

        Raises:
            RoundFailed: Too few clients answered.
        """
        costs, draws = self.costs, self.draws()
        called, computed = costs.clients, costs.gradients
        method = at_round(self.method, draws.round) if self._is_scheduled else self.method
        try:
            replies, call, events, slowest = self.collector.collect(
                method.call(self.state, draws), draws
            )
        finally:
            if self._clock is not None:
                costs.seconds_simulated += self._clock.pop_round()  # type: ignore[attr-defined]
        n = len(call.clients)
        costs.round += 1
        costs.full_rounds += n == self.N
        costs.gradients_per_client += (costs.gradients - computed) / (costs.clients - called)
        if self.ledger is not None:
            mean: Any = replies.mean
            self.ledger.add(draws.round, mean, replies.clients, n)
        self.state = method.server(self.state, replies)
        return RoundInfo(draws.round, len(replies.clients), events, n, slowest)

    def first_call(self, draws: Draws) -> Call[MessageT]:
        """Return the call that `step` sends first, for engines that send it ahead of the round."""
        collector = self.collector
        method = at_round(self.method, draws.round)
        call = collector.require_all(method.call(self.state, draws))
        if call.fallback is not None and collector.find_lost(call):
            return collector.require_all(call.fallback())
        return call

    def draws(self) -> Draws:
        """Return the next round's random numbers."""
        return RoundDraws(self.seed, self.costs.round)

    @abstractmethod
    def evaluate(self) -> Mapping[str, float]:
        """Return the "loss", "grad_norm" and metrics of x, as far as they are measured.

        If not all clients measured them, "measured_clients" is the number of clients that did.
        """

    @property
    def x(self) -> Vector:
        """The current model, (d,)."""
        return self.state.x if self._device is None else self._device.to_host(self.state.x)

    @property
    def step_text(self) -> str:
        """The effective step in words, with schedules at their largest values, for messages."""
        most = "at most " if self._is_scheduled else ""
        return f"effective step {most}{effective_step(self.method):g}"

    @property
    def code(self) -> dict[str, CodeOwner]:
        """The classes and schedules that decide what a round computes, by role."""
        return method_code(self.method)

    @property
    def lost_clients(self) -> Sequence[int]:
        """The clients that are lost, ascending."""
        return self.health.lost if self.health.misses else ()

    @property
    def seconds_ahead(self) -> float:
        """The seconds that the requests of the last round took before `step` was called."""
        return 0.0

    def pop_events(self) -> list[Event]:
        """Return and clear the events outside a round since the last call."""
        return []

    def measure_privacy(self) -> Mapping[str, float]:
        """Return the privacy budget spent so far, if the aggregation is private."""
        return {} if self.ledger is None else self.ledger.measure()

    def _host_state(self) -> StateT:
        """Return the state with numpy's arrays."""
        return self.state if self._device is None else to_host(self._device, self.state)

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on."""
        tree: Snapshot = {
            "state": state_to_tree(self._host_state()),
            "costs": dict(vars(self.costs)),
            "misses": {str(client): times for client, times in self.health.misses.items()},
        }
        if self.ledger is not None:
            tree["privacy"] = self.ledger.snapshot()
        if self.collector.outliers is not None:
            tree["outliers"] = self.collector.outliers.snapshot()
        return tree

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot of a run with the same method, from the file `source`.

        `Run.restore` turns the errors of a snapshot that does not belong here into one.
        """
        state = state_from_tree(self._host_state(), tree["state"], source)
        self.state = state if self._device is None else to_device(self._device, state, self.state)
        costs = vars(self.costs)
        costs.update({name: type(costs[name])(tree["costs"][name]) for name in costs})
        self.health.misses = {int(client): int(n) for client, n in tree["misses"].items()}
        if self.ledger is not None:
            self.ledger.restore(tree["privacy"])
        if self.collector.outliers is not None:  # it may be new in a resumed federation
            self.collector.outliers.restore(tree.get("outliers", {}))


AnyEngine: TypeAlias = Engine[Any, Any, Any, Any]
"""An engine whose method's types the caller does not look into."""


def mean_evaluations(losses: Iterable[Vector], gradients: Iterable[Vector]) -> dict[str, float]:
    """Return "loss" and "grad_norm" of the mean over all clients, NaN if there is no client.

    Losses (n,) and gradients (n, d) come in chunks, in client order.
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
