"""The engine whose clients are Flower's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedpage.core.errors import InputError
from fedpage.core.metrics import Metric, client_quantiles, mean_metrics, row_metrics
from fedpage.core.types import ClientStateT, MessageT, Method, ReplyT, StateT, Vector
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.base import Engine, mean_evaluations
from fedpage.engine.policy import Policy
from fedpage.engine.rejections import Rejections
from fedpage.engine.transport import Event, RoundFailed
from fedpage.flower import messages
from fedpage.flower.exchange import Wait, check_sender, content_of, is_finite
from fedpage.flower.grid_transport import GridTransport
from fedpage.flower.nodes import Node
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
        aggregation: How replies are combined; None: by their mean.
        noise_key: The secret from which a private mean draws its noise.
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
        noise_key: bytes | None = None,
    ) -> None:
        start = np.zeros(d) if x0 is None else x0
        policy = Policy() if policy is None else policy
        sizes = np.array([nodes[i].rows for i in range(len(nodes))], dtype=np.int64)
        self._held_out, self._metrics = held_out, dict(metrics or {})
        self.transport = GridTransport(
            grid, nodes, method, d=d, dtype=start.dtype, seed=seed,
            scale=client_scale(weights, sizes), wait=Wait() if wait is None else wait,
        )  # fmt: skip
        super().__init__(
            method, len(nodes), start, self.transport,
            seed=seed, policy=policy, aggregation=aggregation, noise_key=noise_key,
            compared=self.transport.scale,
        )  # fmt: skip

    def pop_events(self) -> list[Event]:
        """Return and clear the events of nodes outside a round."""
        events, self.transport.events = self.transport.events, []
        return events

    def evaluate(self) -> Mapping[str, float]:
        """Return the loss, the gradient norm and the metrics of x, each the mean over clients.

        Losses and gradients are added in client order. Evaluations are not part of the costs.

        Raises:
            RoundFailed: No client sent a valid reply.
        """
        transport, now, x = self.transport, self.costs.round, self.x
        found: dict[int, messages.Evaluation] = {}
        not_finite: dict[int, messages.Evaluation] = {}
        rejections = Rejections("evaluation", "evaluations")
        for attempt in range(self.round.policy.full_retries + 1):
            missing = [client for client in range(self.N) if client not in found]
            nodes = {client: transport.nodes[client].node_id for client in missing}
            transport.backoff.pause(("evaluation", now), nodes)
            if attempt:
                transport.find_new_nodes(now)
            replies = transport.exchange(self._evaluate_messages(missing))
            for client, reply in replies.items():
                try:
                    evaluation = self._decode_evaluation(client, reply)
                    # A metric may be undefined on a client's rows, such as the AUC of one class.
                    if not is_finite((evaluation.loss, evaluation.gradient)):
                        not_finite[client] = evaluation
                        raise messages.ProtocolError("not finite")
                    found[client] = evaluation
                except messages.ProtocolError as error:
                    rejections.add(client, str(error))
            transport.backoff.note(missing, replies, found)
            if set(range(self.N)) <= {*found, *self.round.health.lost}:
                break
        transport.events += rejections.list_events(now)
        if not found and len(not_finite) == self.N:
            found = not_finite  # the run has diverged
        if not found:
            raise RoundFailed(
                f"evaluation after round {now} failed: no valid reply from any client"
            )
        if len(found) < self.N:
            text = f"loss and gradient over {len(found)} of {self.N} clients"
            transport.events.append(Event("measured", now, text))
        each = [found[client] for client in sorted(found)]
        record = mean_evaluations((e.loss for e in each), (e.gradient[None, :] for e in each))
        sent = row_metrics(self._metrics)
        values = {name: np.array([e.metrics[i] for e in each]) for i, name in enumerate(sent)}
        scale = transport.scale[sorted(found)]
        record |= mean_metrics([values], scale)
        losses = np.concatenate([e.loss for e in each]) / scale
        record |= client_quantiles(self._metrics, {**values, "loss": losses})
        return record if self._held_out is None else {**record, **self._held_out(x)}

    def _evaluate_messages(self, clients: Iterable[int]) -> dict[int, Message]:
        """Return the messages that ask clients to evaluate x."""
        transport, now = self.transport, self.costs.round
        sent = {}
        for client in clients:
            header = messages.EvaluateRequest(
                client=client, round=now, d=transport.d, scale=float(transport.scale[client])
            )
            content = messages.encode_message(messages.Model(self.x), header)
            sent[client] = transport.make_message(client, messages.EVALUATE, content, now)
        return sent

    def _decode_evaluation(self, client: int, reply: Message) -> messages.Evaluation:
        """Return a client's evaluation; a ProtocolError if the reply is not one of this round."""
        answer = messages.decode_header(content_of(reply), messages.EvaluateReply)
        check_sender(client, answer.client)
        if answer.round != self.costs.round:
            raise messages.ProtocolError(f"late: it belongs to round {answer.round}")
        return messages.decode_evaluation(
            reply.content, self.transport.d, self.x.dtype, len(row_metrics(self._metrics))
        )

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on; nodes keep client states."""
        versions = {str(client): name for client, name in self.transport.state_versions.items()}
        return {**super().snapshot(), "state_versions": versions}

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot."""
        try:
            table = tree["state_versions"]
            versions = {int(client): name + "" for client, name in table.items()}
            if any(not 0 <= client < self.N for client in versions):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of a federation") from None
        super().restore(tree, source)
        self.transport.state_versions = versions
