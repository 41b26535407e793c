"""Measure a model at Flower's nodes: requests, checks of what they reply, means over clients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from fedpage.core.errors import InputError
from fedpage.core.messages import mean_rows
from fedpage.core.metrics import Metric, client_quantiles, mean_metrics, row_metrics
from fedpage.core.types import DType, Ints, Vector
from fedpage.core.validate import is_finite
from fedpage.engine.outliers import ClientNorms
from fedpage.engine.round import mean_evaluations
from fedpage.engine.stopping import Stop
from fedpage.flower import messages
from fedpage.flower.config import EvaluationLevel
from fedpage.flower.exchange import check_sender, content_of, raise_refusal
from fedpage.problems.base import norm
from fedpage.runs.checkpoint import Snapshot

_ROUNDING = 1e-6
"""How far below its minimum a loss may be because of rounding."""


class NotFinite(messages.ProtocolError):
    """A loss or a gradient that is not finite.

    Args:
        evaluation: What the client sent.
    """

    def __init__(self, evaluation: messages.Evaluation) -> None:
        super().__init__("not finite")
        self.evaluation = evaluation


class ImpossibleValue(messages.ProtocolError):
    """A value that no rows can have. The text says which."""


class Evaluator:
    """Ask clients to evaluate a model, check their values, and combine them.

    A client's values are rejected where no rows can have them: a loss below the objective's
    minimum, a metric outside its range, a gradient or a loss that is far above those of the other
    clients (see `fedpage.engine.outliers`).

    Args:
        metrics: What to record, by name. Replies have the values of the metrics of rows among
            them, in their order; the server computes quantiles over the clients.
        d: The number of parameters.
        dtype: The type of the model's numbers.
        scale: The factor of each client's objective, (N,).
        level: What clients send: "gradients" (loss, gradient and metrics), "values" (loss and
            metrics) or "none".
        minimum: The least loss that rows can have; -inf: unknown.
        factor: How many times the median over the clients a value may be; 0: any.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        *,
        d: int,
        dtype: DType,
        scale: Vector,
        level: EvaluationLevel,
        minimum: float,
        factor: float,
    ) -> None:
        self.metrics, self.level, self._factor = dict(metrics), level, factor
        self._norms: dict[str, ClientNorms] = {}
        self._sent = row_metrics(self.metrics)
        self._d, self._dtype, self._scale, self._minimum = d, dtype, scale, minimum

    def make_requests(
        self, digests: Mapping[int, str], x: Vector, round: int, agreement: str = ""
    ) -> dict[int, RecordDict]:
        """Return the content of the message that asks each client to evaluate x.

        Args:
            digests: The digest of each asked client's rows.
            x: The model (d,).
            round: The number of rounds after which the model is evaluated.
            agreement: What the sites agreed on, as `Agreement.to_text` writes it.
        """
        return {
            client: messages.encode_message(
                messages.ModelArrays(x),
                messages.EvaluateRequest(
                    client=client,
                    round=round,
                    d=self._d,
                    scale=float(self._scale[client]),
                    agreement=agreement,
                    digest=digest,
                ),
            )
            for client, digest in digests.items()
        }

    def decode(self, client: int, reply: Message, round: int) -> messages.Evaluation:
        """Return a client's values.

        Args:
            client: The client that was asked.
            reply: What its node replied, to a request to evaluate or to one of the next round too.
            round: The number of rounds after which the model was evaluated.

        Raises:
            NotFinite: The loss or the gradient is not finite.
            ImpossibleValue: No rows have such values.
            ProtocolError: The reply is not an evaluation of this model.
        """
        content, joined = messages.split(content_of(reply))
        if joined is not None:
            raise_refusal(joined)
            content = joined
        answer = messages.decode_header(content, messages.EvaluateReply)
        check_sender(client, answer.client)
        if answer.round != round:
            raise messages.ProtocolError(f"late: it belongs to round {answer.round}")
        width = self._d if self.level == "gradients" else 0
        evaluation = messages.decode_evaluation(content, width, self._dtype, len(self._sent))
        # A metric may be undefined on a client's rows, such as the AUC of one class.
        if not all(map(is_finite, (evaluation.loss, evaluation.gradient))):
            raise NotFinite(evaluation)
        loss = float(evaluation.loss[0])
        if loss < self._scale[client] * self._minimum - _ROUNDING:
            raise ImpossibleValue(f"its loss {loss:.3g} is below {self._minimum:g}")
        for (name, metric), value in zip(self._sent.items(), evaluation.metrics, strict=True):
            if value < metric.minimum or value > metric.maximum:
                allowed = f"{metric.minimum:g} to {metric.maximum:g}"
                raise ImpossibleValue(f"its {name} {value:.3g} is not in {allowed}")
        return evaluation

    def find_outliers(self, found: Mapping[int, messages.Evaluation], round: int) -> dict[int, str]:
        """Return the clients whose values are far above those of the others; remember the others'.

        Losses and errors are compared by their square roots, because they may grow with the square
        of what a gradient grows with.

        Args:
            found: The values of the clients that sent valid ones.
            round: The number of rounds after which the model was evaluated.

        Returns:
            A sentence for each outlier, by client.
        """
        wrong: dict[int, str] = {}
        if not self._factor or not found:
            return wrong
        clients = np.array(sorted(found), dtype=np.int64)
        for name, sizes in self._measure_sizes([found[i] for i in clients.tolist()], clients):
            known = self._norms.setdefault(name, ClientNorms(len(self._scale)))
            median = known.add(clients, sizes, round)
            bound = self._factor * median if median > 0 else math.inf
            far = np.isinf(sizes) | (sizes > bound)
            known.accept(clients[~far], sizes[~far])
            for client in clients[far].tolist():
                wrong.setdefault(client, f"its {name} is far above the others'")
        return wrong

    def _measure_sizes(
        self, each: Sequence[messages.Evaluation], clients: Ints
    ) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Yield the size of each of the clients' values that have no upper bound, (n,)."""
        scale = self._scale[clients]
        if self.level == "gradients":
            yield "gradient", np.array([norm(e.gradient) for e in each]) / scale
        yield "loss", np.sqrt(np.abs([float(e.loss[0]) for e in each]) / scale)
        for place, (name, metric) in enumerate(self._sent.items()):
            if metric.minimum == 0 and metric.maximum == math.inf:
                errors = np.array([float(e.metrics[place]) for e in each])
                yield name, np.sqrt(np.where(np.isnan(errors), 0.0, errors))

    def snapshot(self) -> Snapshot:
        """Return the sizes so far, for a checkpoint."""
        return {name: norms.snapshot() for name, norms in self._norms.items()}

    def restore(self, tree: Snapshot) -> None:
        """Return to a snapshot.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It is not one of this federation.
        """
        restored = {str(name): ClientNorms(len(self._scale)) for name in tree}
        for name, norms in restored.items():
            norms.restore(tree[name])
        self._norms = restored

    def combine(self, found: Mapping[int, messages.Evaluation]) -> dict[str, float]:
        """Return the mean loss and metrics and the norm of the mean gradient, in client order.

        Args:
            found: The values of the clients that count, by client.

        Returns:
            "loss", "grad_norm" where clients send gradients, the metrics and their quantiles.
        """
        clients = sorted(found)
        each, scale = [found[client] for client in clients], self._scale[clients]
        losses = np.array([float(e.loss[0]) for e in each])
        if self.level == "gradients":
            record = mean_evaluations((e.loss for e in each), (e.gradient[None, :] for e in each))
        else:
            record = {"loss": float(mean_rows(losses[:, None])[0])}
        if len(each) < len(self._scale):  # the weights of the others are missing
            record = {name: value * len(each) / scale.sum() for name, value in record.items()}
        values = {
            name: np.array([e.metrics[place] for e in each])
            for place, name in enumerate(self._sent)
        }
        record |= mean_metrics([values], scale)
        return record | client_quantiles(self.metrics, {**values, "loss": losses / scale})


def check_stop(level: EvaluationLevel, stop: Stop | None, metrics: Sequence[str] = ()) -> None:
    """Refuse a stop rule that needs what clients do not send.

    Args:
        level: What clients send when they evaluate a model.
        stop: When the run ends before its last round.
        metrics: The metrics of the run.

    Raises:
        InputError: It does.
    """
    gradients = () if level == "gradients" else ("grad_norm",)
    missing = (*gradients, "loss", *metrics) if level == "none" else gradients
    needed = () if stop is None else stop.columns
    for column in missing:
        if column in needed:
            raise InputError(
                f'run config: evaluation = "{level}" does not measure {column}, which the rule to '
                "stop needs; remove target and early-stopping, or let the sites send more"
            )
