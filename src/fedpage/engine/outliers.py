"""Find replies that are so much longer than those of other clients that they must be wrong.

A server that averages vectors cannot see what honest ones look like, but it can compare them. The
reference is the median norm, which no minority of clients can raise. Each field of a reply is
compared by itself, and only with replies to the same type of message. These choices keep honest
clients within the bound:

- the factor is large (`Policy.outlier_factor`), because clients' data differ;
- each client counts with the largest norm that it has sent so far, because gradients of clients
  that fit the model early vanish while those of others do not;
- where all replies grow together, as those of a run that diverges do, the median of the newest
  replies counts: those of this round, and of earlier rounds if fewer than nine clients answered;
- a client whose objective is multiplied by N w_i > 1 may send N w_i times as much;
- a reply that is no longer than the message it answers is never an outlier: in a run that starts at
  a good model, most clients' replies may be tiny;
- where most clients send exact zeros, such as a first correction, the median of the reply's other
  fields takes their place; where all fields are zeros, nothing is compared;
- a field of one number may be a squared norm, so its bound has the factor squared;
- a codec whose variance is at least |v|^2, such as RandK, makes norms that cannot be compared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.message_codec import MessageCodec
from fedpage.core.types import Call, ClientStateT, Ints, MessageT, ReplyT, Vector
from fedpage.engine.aggregation import norms_of
from fedpage.engine.transport import Chunk, Rejection
from fedpage.runs.checkpoint import Snapshot

_FEWEST = 3
"""Clients below which a median says nothing about who is wrong."""
_NEWEST = 9
"""Clients whose newest replies are compared, so that few wrong ones are no majority of a round."""

Floats = NDArray[np.float64]


class OutlierCheck:
    """Compare the norms of replies with the median norm of the clients.

    A norm may be `factor` times the median; `scale` has the factors N w_i of the clients, (N,).
    """

    def __init__(
        self, codec: MessageCodec[Any, Any, Any, Any], N: int, factor: float, scale: Vector
    ) -> None:
        self._N, self._factor = N, factor
        self._leeway = np.maximum(1.0, np.asarray(scale, dtype=np.float64))
        self._incomparable = {m: codec.places_of_high_variance(m) for m in codec.replies}
        self._norms: dict[str, ClientNorms] = {}

    def screen(
        self, chunk: Chunk[ReplyT, ClientStateT], call: Call[MessageT], round: int
    ) -> Chunk[ReplyT, ClientStateT]:
        """Move the outliers among the replies to a request to its rejections.

        A rejection has the reply itself if the method may have diverged: if the square of the norm
        overflows, or if several clients were called.
        """
        if not len(chunk.clients):
            return chunk
        replies: Any = chunk.replies
        message, clients = type(call.message), chunk.clients
        called = len(call.clients if call.cohort is None else call.cohort)
        length = float(norms_of([np.atleast_1d(field)[None] for field in call.message])[0])
        kinds = [f"{message.__name__}.{name}" for name in replies._fields]
        norms = {kind: norms_of([rows]) for kind, rows in zip(kinds, replies, strict=True)}
        known = {kind: self._norms.setdefault(kind, ClientNorms(self._N)) for kind in kinds}
        medians = {kind: known[kind].add(clients, norms[kind], round) for kind in kinds}
        vectors = [kind for kind, rows in zip(kinds, replies, strict=True) if rows.shape[1] > 1]
        typical = max((medians[kind] for kind in vectors), default=0.0)
        wrong: dict[int, Rejection] = {}
        for place, (kind, rows) in enumerate(zip(kinds, replies, strict=True)):
            power = 2 if rows.shape[1] == 1 else 1
            median = medians[kind] or typical**power
            with np.errstate(over="ignore"):
                huge = ~(np.square(norms[kind]) <= np.finfo(rows.dtype).max)
                bound = max(self._factor**power * median, length**power)
                far = norms[kind] > self._leeway[clients] ** power * bound
            if not median > 0.0 or place in self._incomparable[message]:
                far[:] = False
            for i in np.flatnonzero(huge | far).tolist():
                text = f"{replies._fields[place]} of norm {norms[kind][i]:.3g} "
                text += "is too large" if huge[i] else f"where the median is {median:.3g}"
                reply = chunk.reply_of(i) if huge[i] or called > 1 else None
                client = int(clients[i])
                wrong.setdefault(client, Rejection(client, f"outlier: {text}", reply))
        right = ~np.isin(chunk.clients, list(wrong))
        for kind, values in norms.items():
            known[kind].accept(clients[right], values[right])
        if not wrong:
            return chunk
        return chunk.select(right)._replace(rejected=[*chunk.rejected, *wrong.values()])

    def snapshot(self) -> Snapshot:
        """Return the norms so far, for a checkpoint."""
        return {kind: norms.snapshot() for kind, norms in self._norms.items()}

    def restore(self, tree: Snapshot) -> None:
        """Return to a snapshot of this federation."""
        self._norms = {kind: ClientNorms(self._N) for kind in tree}
        for kind, norms in self._norms.items():
            norms.restore(tree[kind])


class ClientNorms:
    """The norms of what N clients have sent, such as one field of their replies to a message."""

    def __init__(self, N: int) -> None:
        self._largest = np.full(N, math.nan)
        self._newest = np.full(N, math.nan)
        self._rounds = np.full(N, -1, dtype=np.int64)

    def add(self, clients: Ints, norms: Floats, round: int) -> float:
        """Add norms (n,) of clients (n,) in a round, and return the median to compare them with.

        It is the larger one of two medians: of the largest norms, and of the newest. It is NaN if
        there are too few clients.
        """
        self._newest[clients], self._rounds[clients] = norms, round
        count = max(_NEWEST, int((self._rounds == round).sum()))
        latest = np.argsort(-self._rounds, kind="stable")[:count]
        largest = _lower_median(np.fmax(self._largest, self._newest))
        return float(np.fmax(largest, _lower_median(self._newest[latest])))

    def accept(self, clients: Ints, norms: Floats) -> None:
        """Remember norms that are not outliers."""
        self._largest[clients] = np.fmax(self._largest[clients], norms)

    def snapshot(self) -> Snapshot:
        """Return the norms, for a checkpoint."""
        return {name.lstrip("_"): values.copy() for name, values in vars(self).items()}

    def restore(self, tree: Snapshot) -> None:
        """Return to a snapshot of the same clients; raise a KeyError or ValueError for others."""
        for name, values in vars(self).items():
            values[:] = tree[name.lstrip("_")]


def _lower_median(norms: Floats) -> float:
    """Return the median of the numbers, the lower one of two; NaN where there are too few."""
    norms = norms[~np.isnan(norms)]
    if len(norms) < _FEWEST:
        return math.nan
    return float(np.sort(norms)[(len(norms) - 1) // 2])
