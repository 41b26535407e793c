"""The engine whose clients are Flower's nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np
from flwr.serverapp import Grid

from fedpage.callbacks.base import Event
from fedpage.core.columns import MEASURED
from fedpage.core.errors import InputError
from fedpage.core.metrics import Metric, row_metrics
from fedpage.core.types import ClientStateT, MessageT, Method, ReplyT, StateT, Vector
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.collect import RejectionCounts
from fedpage.engine.fixed_point import FixedPointMean
from fedpage.engine.policy import Policy
from fedpage.engine.round import Engine
from fedpage.engine.transport import RoundFailed
from fedpage.flower import messages
from fedpage.flower.config import EvaluationLevel
from fedpage.flower.evaluation import Evaluator, ImpossibleValue, NotFinite
from fedpage.flower.exchange import Wait
from fedpage.flower.grid_transport import GridTransport
from fedpage.flower.nodes import Node
from fedpage.flower.secure_aggregation.transport import SecureTransport, check_evaluation
from fedpage.problems.base import client_scale
from fedpage.runs.checkpoint import Snapshot


class FlowerEngine(Engine[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds whose clients are Flower's nodes.

    Args:
        grid: Flower's Grid.
        nodes: The node of each client 0..N-1.
        method: The method.
        d: The number of parameters.
        seed: The run's seed.
        policy: What to do about clients that fail.
        wait: How long replies may take and how they are waited for.
        weights: "uniform" or "size": the weight of each client's objective.
        x0: The start, (d,); None: zeros.
        metrics: What to record, by name. Replies have the values of the metrics of rows among
            them, in their order; the server computes quantiles over the clients.
        held_out: What else the server records of a model, such as its accuracy on rows of its own.
        aggregation: How replies are combined; None: by their mean. With `FixedPointMean`, nodes
            mask their replies.
        level: What clients send when they evaluate a model: "gradients", "values" or "none".
        minimum: The least loss that rows can have; -inf: unknown.
        rounds: The number of rounds of the run. An evaluation before the last one is sent together
            with the first request of the next round. 0: every evaluation has messages of its own.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[int, Node],
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        d: int,
        *,
        seed: int,
        policy: Policy | None = None,
        wait: Wait | None = None,
        weights: Literal["uniform", "size"] = "uniform",
        x0: Vector | None = None,
        metrics: Mapping[str, Metric] | None = None,
        held_out: Callable[[Vector], Mapping[str, float]] | None = None,
        aggregation: Aggregation | None = None,
        level: EvaluationLevel = "gradients",
        minimum: float = -math.inf,
        rounds: int = 0,
    ) -> None:
        start = np.zeros(d) if x0 is None else x0
        policy = Policy() if policy is None else policy
        sizes = np.array([nodes[i].rows for i in range(len(nodes))], dtype=np.int64)
        scale = client_scale(weights, sizes)
        self._held_out, self._rounds = held_out, rounds
        make: Callable[..., GridTransport[StateT, MessageT, ReplyT, ClientStateT]] = GridTransport
        if isinstance(aggregation, FixedPointMean):
            check_evaluation(level, metrics or {})
            make = partial(SecureTransport, aggregation, policy.retries)
        self.transport = make(
            grid, nodes, method, d=d, dtype=start.dtype, seed=seed,
            scale=scale, wait=Wait() if wait is None else wait,
        )  # fmt: skip
        self.evaluator = Evaluator(
            metrics or {}, d=d, dtype=start.dtype, scale=scale, level=level, minimum=minimum,
            factor=policy.outlier_factor if policy.validate else 0.0,
        )  # fmt: skip
        super().__init__(
            method, len(nodes), start, self.transport,
            seed=seed, policy=policy, aggregation=aggregation,
            scale=self.transport.scale,
        )  # fmt: skip

    def pop_events(self) -> list[Event]:
        """Return and clear the events of nodes outside a round."""
        events, self.transport.events = self.transport.events, []
        return events

    @property
    def seconds_ahead(self) -> float:
        """The seconds that the requests of the last round took before it began."""
        return self.transport.seconds_ahead

    def evaluate(self) -> Mapping[str, float]:
        """Return the loss, the gradient norm and the metrics of x, each the mean over clients.

        Losses and gradients are added in client order. Where not every client has sent valid
        values, "measured_clients" says how many have. Evaluations are not part of the costs.

        Raises:
            RoundFailed: No client sent a valid reply.
        """
        record: dict[str, float] = {}
        if self.evaluator.level != "none":
            if isinstance(self.transport, SecureTransport):
                record, count = self._measure_sum(self.transport)
            else:
                found = self._measure()
                record, count = self.evaluator.combine(found), len(found)
            if count < self.N:
                text = f"{count} of {self.N} clients evaluated the model"
                self.transport.events.append(Event("measured", self.costs.round, text))
                record[MEASURED] = count
        return record if self._held_out is None else {**record, **self._held_out(self.x)}

    def _measure_sum(
        self, transport: SecureTransport[StateT, MessageT, ReplyT, ClientStateT]
    ) -> tuple[dict[str, float], int]:
        """Return the means of the clients' values at x, and of how many clients they are."""
        now = self.costs.round
        digests = {client: transport.nodes[client].digest for client in range(self.N)}
        agreement = transport.agreement.to_text()
        requests = self.evaluator.make_requests(digests, self.x, now, agreement)
        record, clients = transport.evaluate(
            requests, list(row_metrics(self.evaluator.metrics)), now
        )
        if not clients:
            raise RoundFailed(f"evaluation after round {now} failed: too few clients answered")
        return record, len(clients)

    def _measure(self) -> dict[int, messages.Evaluation]:
        """Return the valid values of the clients at x, by client."""
        transport, evaluator, now = self.transport, self.evaluator, self.costs.round
        found: dict[int, messages.Evaluation] = {}
        diverged: dict[int, messages.Evaluation] = {}
        wrong: set[int] = set()
        rejections = RejectionCounts("evaluation", "evaluations")
        for attempt in range(self.collector.policy.full_retries + 1):
            missing = [i for i in range(self.N) if i not in found and i not in wrong]
            nodes = {client: transport.nodes[client].node_id for client in missing}
            transport.backoff.pause(("evaluation", now), nodes)
            if attempt:
                transport.find_new_nodes(now)
            digests = {client: transport.nodes[client].digest for client in missing}
            agreement = transport.agreement.to_text()
            requests = evaluator.make_requests(digests, self.x, now, agreement)
            if attempt == 0 and self._is_followed():
                draws = self.draws()
                call = self.first_call(draws)
                answers = transport.request_ahead(call, draws, requests)
            else:
                answers = transport.exchange(messages.EVALUATE, requests, now)
            for client, answer in answers.items():
                try:
                    found[client] = evaluator.decode(client, answer, now)
                except messages.ProtocolError as error:
                    if isinstance(error, NotFinite):
                        diverged[client] = error.evaluation
                    if isinstance(error, ImpossibleValue):  # it would send the same again
                        wrong.add(client)
                    rejections.add(client, str(error))
            transport.backoff.note(missing, answers, found)
            if set(range(self.N)) <= {*found, *wrong, *self.health.lost}:
                break
        for client, why in evaluator.find_outliers(found, now).items():
            diverged[client] = found.pop(client)
            rejections.add(client, why)
        transport.events += rejections.list_events(now)
        if not found and len(diverged) == self.N:
            found = diverged
        if not found:
            raise RoundFailed(
                f"evaluation after round {now} failed: no valid reply from any client"
            )
        return found

    def _is_followed(self) -> bool:
        """Return whether the next round will begin from x, so that its requests may be sent now."""
        now = self.costs.round
        is_next = now < self._rounds and now != self.transport.begun_round
        return is_next and bool(np.isfinite(self.x).all())

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on; nodes keep client states."""
        versions = {str(client): name for client, name in self.transport.state_versions.items()}
        norms = self.evaluator.snapshot()
        return {**super().snapshot(), "state_versions": versions, "evaluation_norms": norms}

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot."""
        try:
            table = tree["state_versions"]
            versions = {int(client): name + "" for client, name in table.items()}
            if any(not 0 <= client < self.N for client in versions):
                raise ValueError
            self.evaluator.restore(tree["evaluation_norms"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of a federation") from None
        super().restore(tree, source)
        self.transport.state_versions = versions
        self.transport.forget_ahead()
