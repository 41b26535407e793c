"""Send a method's calls to nodes so that the server learns the mean of their replies only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedpage.callbacks.base import Event, Slowest
from fedpage.codecs.message_codec import MessageSize
from fedpage.core.errors import InputError
from fedpage.core.metrics import Metric, row_metrics
from fedpage.core.types import Call, ClientStateT, Draws, MessageT, ReplyT, StateT, Vector
from fedpage.engine.fixed_point import FixedPointMean, decode, read_values, scale_exponent
from fedpage.engine.transport import Chunk
from fedpage.flower import messages
from fedpage.flower.config import EvaluationLevel
from fedpage.flower.exchange import check_sender
from fedpage.flower.grid_transport import GridTransport
from fedpage.flower.secure_aggregation import protocol
from fedpage.flower.secure_aggregation.primitives import Words
from fedpage.flower.secure_aggregation.server import SecureSum


class SecureTransport(GridTransport[StateT, MessageT, ReplyT, ClientStateT]):
    """Send calls to Flower's nodes, which mask their replies.

    Args:
        settings: The settings of secure aggregation.
        retries: Further attempts to reach missing clients in each exchange.
        options: The arguments of `GridTransport`.
    """

    def __init__(self, settings: FixedPointMean, retries: int, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self.settings = settings
        self.sums = SecureSum(self, least=settings.least, retries=retries)
        self.exponent = scale_exponent(settings.bound, len(self.nodes))

    def request(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterable[Chunk[ReplyT, ClientStateT]]:
        """Compute the mean of the replies of those called clients that answer."""
        now, message_type = draws.round, type(call.message)
        self._version = messages.state_version(now, message_type)
        layout = self.codec.replies[message_type]
        counts: dict[int, messages.TrainReply] = {}

        def check(client: int, content: RecordDict) -> None:
            answer = messages.decode_header(content, messages.TrainReply)
            check_sender(client, answer.client)
            self.check_counts(answer)
            if answer.round != now:
                raise messages.ProtocolError(f"late: it belongs to round {answer.round}")
            counts[client] = answer

        found = self.sums.request(
            protocol.TRAIN,
            self.make_requests(call, draws),
            layout.floats,
            check,
            run=self.run_name,
            round=now,
            message=message_type.__name__,
            require_all=call.require_all,
        )
        mean = None
        if found.total is not None:
            parts = self.decode_mean(found.total, len(found.clients), layout.sizes, layout.dtypes)
            mean = layout.build(parts)
        arrived = [counts[client] for client in found.headers]
        floats, bits, nbytes = self.settings.measure_reply(layout)
        n = len(arrived)
        chunk = Chunk[ReplyT, ClientStateT](
            call.clients,
            np.array(found.clients, dtype=np.int64),
            None,
            gradients=sum(answer.gradients for answer in arrived),
            evaluations=sum(answer.evaluations for answer in arrived),
            received=n,
            rejected=found.rejected,
            size=MessageSize(n * floats, n * bits, n * nbytes),
            slowest=max(
                (Slowest(client, found.seconds[client]) for client in found.seconds),
                default=None,
                key=lambda each: each.seconds,
            ),
            mean=mean,
            responsive=np.array(sorted(found.responsive), dtype=np.int64),
        )
        return (chunk,)

    def evaluate(
        self, requests: Mapping[int, RecordDict], metrics: Sequence[str], now: int
    ) -> tuple[dict[str, float], tuple[int, ...]]:
        """Compute the mean loss and metrics of those clients that answer.

        Args:
            requests: The ordinary request to each client.
            metrics: The names of the metrics that clients send.
            now: The number of rounds after which the model is evaluated.

        Returns:
            The values, and the clients that they are of; none if there are too few.
        """

        def check(client: int, content: RecordDict) -> None:
            answer = messages.decode_header(content, messages.EvaluateReply)
            check_sender(client, answer.client)
            if answer.round != now:
                raise messages.ProtocolError(f"late: it belongs to round {answer.round}")

        found = self.sums.request(
            protocol.EVALUATE,
            requests,
            1 + 2 * len(metrics),
            check,
            run=self.run_name,
            round=now,
            message=protocol.EVALUATION,
            require_all=False,
        )
        for client, reason, _ in found.rejected:
            text = f"evaluation of client {client}: {reason}"
            self.events.append(Event("rejected", now, text))
        if found.total is None:
            return {}, ()
        float64 = np.dtype(np.float64)
        means = decode(found.total.view(np.int64), len(found.clients), self.exponent, float64)
        share = 1.0
        if len(found.clients) < len(self.nodes):  # the weights of the others are missing
            share = float(self.scale[list(found.clients)].mean())
        return read_values(means, metrics, share), found.clients

    def decode_mean(
        self,
        total: Words,
        count: int,
        sizes: Iterable[int],
        dtypes: Iterable[np.dtype[Any]],
    ) -> list[Vector]:
        """Return the mean of fields whose numbers were added up.

        Args:
            total: The sum modulo 2^64.
            count: The number of clients in it.
            sizes: The size of each field.
            dtypes: The type of each field.
        """
        cuts = np.cumsum(list(sizes))[:-1]
        parts = np.split(total.view(np.int64), cuts)
        return [
            decode(part, count, self.exponent, dtype)
            for part, dtype in zip(parts, dtypes, strict=True)
        ]


def check_evaluation(level: EvaluationLevel, metrics: Mapping[str, Metric]) -> None:
    """Refuse evaluations that would reveal the values of single clients.

    Raises:
        InputError: They would.
    """
    if level == "gradients":
        raise InputError(
            "aggregation=secure: sites send no gradients when they evaluate a model; set "
            'evaluation = "values" (loss and metrics) or "none" in the run config'
        )
    for name in metrics:
        if name not in row_metrics(metrics):
            raise InputError(
                f"aggregation=secure: {name} needs the values of single clients, which the server "
                "does not learn; leave it out of metrics"
            )
