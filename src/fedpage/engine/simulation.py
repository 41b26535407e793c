"""The simulator: all clients in this process."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np

from fedpage.codecs.base import IDENTITY
from fedpage.codecs.wire import Size, Wire
from fedpage.core.arrays import DeviceArrays, OnDevice, to_host
from fedpage.core.errors import InputError, short_repr
from fedpage.core.metrics import mean_metrics
from fedpage.core.types import (
    AnyMethod,
    ClientEvaluator,
    ClientStateT,
    HeldOutEvaluator,
    MessageT,
    Method,
    Problem,
    ReplyT,
    StateT,
    Vector,
    dtype_of,
)
from fedpage.core.validate import check_whole, is_word
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.base import Engine, check_is_method, mean_evaluations
from fedpage.engine.client_states import ClientStates
from fedpage.engine.clock import Clock
from fedpage.engine.delivery import LateReply
from fedpage.engine.devices import Devices
from fedpage.engine.faults import Faults, FaultSampler
from fedpage.engine.fixed_point import FixedPointMean
from fedpage.engine.local_transport import LocalTransport
from fedpage.engine.policy import Policy
from fedpage.engine.round import RoundInfo, TimedCosts
from fedpage.problems.client_scores import ClientScoring
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.fingerprint import Code
from fedpage.runs.spec import start_of

Evaluation = Literal["pooled", "per_client"]
"""Over all rows at once, or client by client as in a federation; the last bits may differ."""

_CHUNK = 512
"""The most clients computed at once, per thread."""
_CHUNK_BYTES = 1 << 22
"""The most memory that one vector of each of them may take. No chunk size changes a bit."""


@runtime_checkable
class HasCode(Protocol):
    """A problem whose arithmetic depends on more code than its own class."""

    @property
    def code(self) -> dict[str, type]:
        """Further classes, by role."""
        ...


@runtime_checkable
class HasClientsAtOnce(Protocol):
    """A problem that knows how many clients its memory allows to compute at once."""

    @property
    def clients_at_once(self) -> int:
        """The number of clients."""
        ...


class Simulation(Engine[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds in this process, one `step()` at a time; `simulate` is the loop around it.

    Args:
        problem: The problem.
        method: The method.
        seed: The run's seed.
        x0: The start, (d,); None: the problem's own, or zeros.
        threads: Threads that compute chunks of clients.
        chunk: The most clients computed at once; None: by memory.
        faults: How clients fail; None: they do not.
        policy: What to do about clients that fail.
        evaluate: "pooled" or "per_client".
        devices: The clients' devices, to simulate time; None: time is not simulated.
        aggregation: How replies are combined; None: by their mean.
        noise_key: Where the noise of a private mean comes from; None: the seed.

    Raises:
        InputError: An argument is wrong, or they do not fit each other.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        *,
        seed: int,
        x0: Vector | None = None,
        threads: int = 1,
        chunk: int | None = None,
        faults: Faults | None = None,
        policy: Policy | None = None,
        evaluate: Evaluation = "pooled",
        devices: Devices | None = None,
        aggregation: Aggregation | None = None,
        noise_key: bytes | None = None,
    ) -> None:
        parts = ("oracle", "evaluate", "describe")
        if isinstance(problem, type) or not all(hasattr(problem, name) for name in parts):
            raise InputError(
                "problem must be a problem such as RobustRegression(data, clients=10), "
                f"not {short_repr(problem)}"
            )
        check_is_method(method)
        options: tuple[tuple[str, object, type], ...] = (
            ("faults", faults, Faults),
            ("policy", policy, Policy),
            ("devices", devices, Devices),
        )
        for name, value, type_ in options:
            if value is not None and not isinstance(value, type_):
                raise InputError(
                    f"{name} must be a {type_.__name__}, such as {type_.__name__}(), "
                    f"not {short_repr(value)}"
                )
        if not is_word(evaluate, get_args(Evaluation)):
            raise InputError(
                f"evaluate must be 'pooled' or 'per_client', not {short_repr(evaluate)}"
            )
        check_whole("threads", threads, 1)
        if chunk is None and threads == 1 and isinstance(problem, HasClientsAtOnce):
            chunk = min(_CHUNK, problem.clients_at_once)
        if chunk is None:
            chunk = max(1, min(_CHUNK, _CHUNK_BYTES // (8 * problem.d)))
        check_whole("chunk", chunk, 1)
        policy = Policy() if policy is None else policy
        start = start_of(problem, x0)
        self.problem, self.evaluation, self.threads = problem, evaluate, int(threads)
        is_plain = faults is None and devices is None and aggregation is None
        device = _device_of(problem, method) if is_plain else None
        self.client_states: ClientStates[ClientStateT] = ClientStates(
            method.client_state, problem.N, problem.d, start.dtype, device
        )
        if devices is not None and devices.deadline is not None and faults is None:
            faults = Faults()  # replies may be late
        sampler = None if faults is None else FaultSampler(faults, problem, seed)
        self._clock = None if devices is None else Clock(devices, problem.N, problem.d, seed)
        self._timed = TimedCosts()
        self._transport = LocalTransport(
            problem, method, self.client_states,
            threads=int(threads), chunk=int(chunk), sampler=sampler, policy=policy,
            clock=self._clock,
        )  # fmt: skip
        costs = None if devices is None else self._timed
        super().__init__(
            method, problem.N, start, self._transport,
            seed=seed, policy=policy, costs=costs, aggregation=aggregation, noise_key=noise_key,
            compared=_factors_of(problem) if faults is not None and faults.huge else None,
            device=device,
        )  # fmt: skip

    @property
    def code(self) -> dict[str, Code]:
        """The classes and schedules that decide what a round computes, by role."""
        further = self.problem.code if isinstance(self.problem, HasCode) else {}
        return {**super().code, "problem": type(self.problem), **further}

    def __repr__(self) -> str:
        done = f"after {self.costs.round:,} rounds"
        return f"Simulation({self.method!r} on {self.problem!r}, seed={self.seed}, {done})"

    def step(self) -> RoundInfo:
        """Run one round.

        Raises:
            RoundFailed: Too few clients answered.
        """
        try:
            return super().step()
        finally:
            if self._clock is not None:
                self._timed.seconds_simulated += self._clock.pop_round()

    def evaluate(self) -> Mapping[str, float]:
        """Evaluate x by the problem, or by each of its clients."""
        if self.evaluation == "pooled":
            return self.problem.evaluate(self.x, self.threads)
        problem = self.problem
        if not isinstance(problem, ClientEvaluator):
            raise InputError(
                f"{type(problem).__name__} has no evaluate_clients; leave evaluate at 'pooled'"
            )
        chunks = self._transport.split(np.arange(self.N, dtype=np.int64))
        parts = [problem.evaluate_clients(clients, self.x) for clients in chunks]
        record = mean_evaluations(
            (part.losses for part in parts), (part.gradients for part in parts)
        )
        factors = problem.client_factors if isinstance(problem, ClientScoring) else None
        record |= mean_metrics((part.metrics for part in parts), factors)
        if isinstance(self.round.aggregation, FixedPointMean):
            losses = np.concatenate([part.losses for part in parts])
            metrics = {
                name: np.concatenate([part.metrics[name] for part in parts])
                for name in parts[0].metrics
            }
            record |= self.round.aggregation.mean_values(losses, metrics, factors, self.N)
        if isinstance(problem, ClientScoring):
            record |= problem.combine_clients(parts)
            record |= problem.compare_with_reference(self.x, record["loss"])
        if isinstance(problem, HeldOutEvaluator):
            record |= problem.evaluate_held_out(self.x)
        return record

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on."""
        clients = self.client_states.find_written()
        states = self.client_states.get(clients)
        late = [
            {
                "client": one.client,
                "round": one.round,
                "type": type(one.reply).__name__,
                "parts": list(one.reply),
                "size": list(one.size),
            }
            for one in self._transport.late
        ]
        if self._device is not None:
            states = to_host(self._device, states)
        table = None if states is None else {"clients": clients, "parts": list(states)}
        return {**super().snapshot(), "client_state": table, "late": late}

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot of a run with the same method, problem, seed and faults."""
        try:
            table, clients, states = tree["client_state"], np.empty(0, dtype=np.int64), None
            if (table is None) != (self.method.client_state is None):
                raise TypeError
            if table is not None and self.method.client_state is not None:
                clients, parts = table["clients"], table["parts"]
                shape, dtype = (len(clients), self.problem.d), dtype_of(self.problem)
                if clients.dtype != np.int64 or clients.ndim != 1:
                    raise TypeError
                if any(part.shape != shape or part.dtype != dtype for part in parts):
                    raise TypeError
                if len(clients) and not 0 <= clients.min() <= clients.max() < self.N:
                    raise TypeError
                states = self.method.client_state(*parts)
            late = [_late_reply(entry) for entry in tree["late"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of this method on this problem") from None
        super().restore(tree, source)
        if states is not None:
            if self._device is not None:
                states = type(states)(*map(self._device.to_device, states))
            self.client_states.put(clients, states)
        self._transport.late = late


def _late_reply(entry: Snapshot) -> LateReply:
    """Rebuild a late reply from a snapshot; only its fields' values still matter."""
    parts = entry["parts"]
    if not all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        raise TypeError
    type_ = namedtuple(str(entry["type"]), [f"part{i}" for i in range(len(parts))])  # type: ignore[misc]
    size = Size(*map(int, entry["size"]))
    return LateReply(int(entry["client"]), int(entry["round"]), type_(*parts), size)


def _device_of(problem: Problem, method: AnyMethod) -> DeviceArrays | None:
    """Return where the vectors of rounds are kept; None: in numpy's arrays.

    Codecs and methods that say so with `needs_numpy` compute on the host.
    """
    arrays = problem.device_arrays if isinstance(problem, OnDevice) else None
    if arrays is None or getattr(method, "needs_numpy", False):
        return None
    wire = Wire(method, problem.d, dtype_of(problem))
    return None if wire.is_active or wire.down is not IDENTITY else arrays


def _factors_of(problem: Problem) -> Vector:
    """Return the factors N w_i of the clients' objectives, (N,); ones where they are not known."""
    if isinstance(problem, ClientScoring):
        return problem.client_factors
    return np.ones(problem.N)
