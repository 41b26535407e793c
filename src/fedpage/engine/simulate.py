"""Run a method on a problem in this process: the simulator, and the functions that start it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from fedpage.callbacks.base import Callback, check_callbacks
from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.callbacks.progress import Progress
from fedpage.codecs.base import IDENTITY
from fedpage.codecs.message_codec import MessageCodec, MessageSize
from fedpage.core.capabilities import (
    ClientEvaluator,
    HasCode,
    device_arrays_of,
    dtype_of,
    to_host,
)
from fedpage.core.columns import RecordEvery
from fedpage.core.errors import InputError, short_repr
from fedpage.core.metrics import mean_metrics
from fedpage.core.types import AnyMethod, ClientStateT, MessageT, Method, Problem, ReplyT, StateT
from fedpage.core.validate import check_whole, choice
from fedpage.engine.devices import Clock, Devices, check_time
from fedpage.engine.faults import Faults, FaultSampler
from fedpage.engine.local import ClientStates, LateReply, LocalTransport
from fedpage.engine.loop import Run
from fedpage.engine.policy import Policy
from fedpage.engine.round import Engine, mean_evaluations
from fedpage.engine.stopping import Stop
from fedpage.problems.scores import ClientScoring
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.fingerprint import CodeOwner
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec, StopRule, as_options, start_of
from fedpage.runs.store import RunStore

_CHUNK = 512
"""The most clients computed at once, per thread."""
_CHUNK_BYTES = 1 << 22
"""The most memory that one vector of each of them may take. No chunk size changes a bit."""
_PROBLEM_PARTS = ("oracle", "evaluate", "describe")


class Simulation(Engine[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds in this process, one `step()` at a time; `simulate` is the loop around it.

    Args:
        problem: The problem.
        method: The method.
        seed: The run's seed.
        options: Rarely used options: first model, threads, faults, devices, aggregation.

    Raises:
        InputError: An argument is wrong, or they do not fit each other.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        *,
        seed: int,
        options: RunOptions | None = None,
    ) -> None:
        options = as_options(options)
        if isinstance(problem, type) or not all(hasattr(problem, name) for name in _PROBLEM_PARTS):
            raise InputError(
                "problem must be a problem such as RobustRegression(data, clients=10), "
                f"not {short_repr(problem)}"
            )
        check_is_method(method)
        _check_options(options)
        self.problem, self.options = problem, options
        N, d, start = problem.N, problem.d, start_of(problem, options.x0)
        faults, devices, policy = options.faults, options.devices, options.policy or Policy()
        codec = MessageCodec(method, d, dtype_of(problem))
        device = None
        is_plain = faults is None and devices is None and options.aggregation is None
        is_coded = codec.is_active or codec.down is not IDENTITY
        if is_plain and not is_coded and not getattr(method, "needs_numpy", False):
            device = device_arrays_of(problem)
        self.client_states: ClientStates[ClientStateT] = ClientStates(
            method.client_state, N, d, start.dtype, device
        )
        compared = faults is not None and faults.huge
        if faults is None and devices is not None and devices.deadline is not None:
            faults = Faults()  # replies may be late
        clock = None if devices is None else Clock(devices, N, d, seed)
        self.transport = LocalTransport(
            problem, method, codec, self.client_states, policy,
            threads=int(options.threads), chunk=_chunk_size(problem, options),
            sampler=None if faults is None else FaultSampler(faults, problem, seed), clock=clock,
        )  # fmt: skip
        scale = problem.client_factors if isinstance(problem, ClientScoring) else np.ones(N)
        super().__init__(
            method, N, start, self.transport,
            seed=seed, policy=policy, aggregation=options.aggregation, device=device, clock=clock,
            scale=scale if compared else None,
        )  # fmt: skip

    def __repr__(self) -> str:
        done = f"after {self.costs.round:,} rounds"
        return f"Simulation({self.method!r} on {self.problem!r}, seed={self.seed}, {done})"

    @property
    def code(self) -> dict[str, CodeOwner]:
        """The classes and schedules that decide what a round computes, by role."""
        further = self.problem.code if isinstance(self.problem, HasCode) else {}
        return {**super().code, "problem": type(self.problem), **further}

    def evaluate(self) -> Mapping[str, float]:
        """Evaluate x by the problem, or by each of its clients."""
        problem, x = self.problem, self.x
        if self.options.evaluate == "pooled":
            return problem.evaluate(x, self.transport.threads)
        if not isinstance(problem, ClientEvaluator):
            raise InputError(
                f"{type(problem).__name__} has no evaluate_clients; leave evaluate at 'pooled'"
            )
        chunks = self.transport.split(np.arange(self.N, dtype=np.int64))
        parts = [problem.evaluate_clients(clients, x) for clients in chunks]
        losses = [part.losses for part in parts]
        record = mean_evaluations(losses, [part.gradients for part in parts])
        factors = problem.client_factors if isinstance(problem, ClientScoring) else None
        record |= mean_metrics((part.metrics for part in parts), factors)
        metrics = {
            name: np.concatenate([part.metrics[name] for part in parts])
            for name in parts[0].metrics
        }
        aggregation = self.collector.aggregation
        record |= aggregation.mean_values(np.concatenate(losses), metrics, factors, self.N)
        if isinstance(problem, ClientScoring):
            record |= problem.combine_clients(parts)
            record |= problem.compare_with_reference(x, record["loss"])
        if hasattr(problem, "evaluate_held_out"):
            record |= problem.evaluate_held_out(x)
        return record

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on."""
        clients = self.client_states.find_written()
        states = self.client_states.get(clients)
        if self._device is not None:
            states = to_host(self._device, states)
        table = None if states is None else {"clients": clients, "parts": list(states)}
        late = [
            [one.client, one.round, list(one.reply), list(one.size)] for one in self.transport.late
        ]
        return {**super().snapshot(), "client_state": table, "late": late}

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot of a run with the same method, problem, seed and faults."""
        super().restore(tree, source)
        table, late, make = tree["client_state"], tree["late"], self.method.client_state
        if make is not None:
            parts = table["parts"]
            states = make(*(parts if self._device is None else map(self._device.to_device, parts)))
            self.client_states.put(table["clients"], states)
        self.transport.late = [
            LateReply(client, round, tuple(parts), MessageSize(*size))
            for client, round, parts, size in late
        ]


def check_is_method(method: object) -> None:
    """Raise an InputError if it is not a method: a class, or without a part of the protocol."""
    parts = ("init", "call", "client", "server")
    if isinstance(method, type) or not all(hasattr(method, name) for name in parts):
        raise InputError(f"method must be a method such as FedPAGE(S=10), not {short_repr(method)}")


def _check_options(options: RunOptions) -> None:
    """Raise an InputError for an option of the wrong type or out of range."""
    for name, kind in {"faults": Faults, "policy": Policy, "devices": Devices}.items():
        value = getattr(options, name)
        if value is not None and not isinstance(value, kind):
            what = f"{kind.__name__}, such as {kind.__name__}()"
            raise InputError(f"{name} must be a {what}, not {short_repr(value)}")
    choice("options", "evaluate", options.evaluate, ("pooled", "per_client"))
    check_whole("threads", options.threads, 1)
    if options.chunk is not None:
        check_whole("chunk", options.chunk, 1)


def _chunk_size(problem: Problem, options: RunOptions) -> int:
    """Return the largest number of clients to compute at once."""
    if options.chunk is not None:
        return int(options.chunk)
    if options.threads == 1 and hasattr(problem, "clients_at_once"):
        return min(_CHUNK, int(problem.clients_at_once))
    return max(1, min(_CHUNK, _CHUNK_BYTES // (8 * problem.d)))


def simulate(
    problem: Problem,
    method: AnyMethod,
    *,
    rounds: int,
    seed: int,
    record_every: RecordEvery = 10,
    stop: StopRule = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    out: str | os.PathLike[str] | None = None,
    options: RunOptions | None = None,
) -> History:
    """Run a method on a problem and return the history.

    The same seed gives the same history, bit for bit. A run that diverges ends early.

    Args:
        problem: The problem.
        method: The method with its hyper-parameters.
        rounds: The number of rounds.
        seed: The seed of all random numbers.
        record_every: The number of rounds between two records of loss, gradient norm and metrics;
            0 records the end only. "log" records rounds 1, 2, ..., 10, 12, 14, 17, 20, ..., 90,
            100, 120, ..., which takes little time in a long run.
        stop: When to end early: a `Stop`, or a function of the newest record that returns a reason
            or None.
        callbacks: Observers such as `Track("tensorboard")` or `Best(problem, "best.npz")`.
        progress: Whether to show a progress bar.
        out: A directory to write the run to while it runs. If the process dies,
            `RunOptions(resume=True)` continues from the newest checkpoint, with the same bits.
            A run that is already there is refused unless `RunOptions` says to resume it or to
            overwrite it.
        options: Rarely used options: first model, threads, faults, devices, resuming.

    Returns:
        The history: its records, the last model `x` (d,), and `stop_reason`.

    Raises:
        InputError: If an argument cannot be used.
        Interrupted: If the run was interrupted by a signal, after it had written a checkpoint.

    >>> import fedpage as fp
    >>> problem = fp.RobustRegression(fp.load("census", rows=200), clients=20)
    >>> history = fp.simulate(problem, fp.FedPAGE(S=2, K=5, eta_g=0.1), rounds=50, seed=0)
    >>> bool(history.last("grad_norm") < history["grad_norm"][0])
    True
    """
    spec = RunSpec(problem, method, rounds, seed, record_every, stop, as_options(options))
    if not isinstance(progress, bool):
        raise InputError(
            f"progress must be True or False, not {short_repr(progress)}; "
            "for a function of yours, see fp.FunctionCallback"
        )
    observers = check_callbacks(callbacks) + ((Progress(),) if progress else ())
    return execute(spec, observers, out)


def execute(
    spec: RunSpec, callbacks: Sequence[Callback] = (), out: str | os.PathLike[str] | None = None
) -> History:
    """Run what a spec describes, and return and raise what `simulate` does."""
    run, options = prepare(spec), spec.options
    if out is None:
        if options.resume:
            raise InputError("resume=True needs out=, the directory of the run")
        return run.run(callbacks)
    with RunStore(out, checkpoint_every=options.checkpoint_every) as store:
        finished = store.open_run(run, resume=options.resume, overwrite=options.overwrite)
        # The store comes last: a checkpoint says that every other callback has seen the round.
        return run.run([*callbacks, Checkpointing(store)]) if finished is None else finished


def prepare(spec: RunSpec) -> Run:
    """Return a run that has not begun, whose history holds its provenance.

    Raises:
        InputError: If a setting cannot be used.
    """
    engine = Simulation(spec.problem, spec.method, seed=spec.seed, options=spec.options)
    if isinstance(spec.stop, Stop):
        for budget in spec.stop.budgets:
            check_time(budget, spec.options.devices)
    run = Run(engine, History(), rounds=spec.rounds, record_every=spec.record_every, stop=spec.stop)
    run.history.meta = spec.describe()
    return run
