"""FRECON: compressed differences and a compressed table, never a full round.

Zhao, Burlachenko, Li, Richtárik, "Faster Rates for Compressed Federated Learning with
Client-Variance Reduction" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpage.core.types import Fields, Replies
from fedpage.methods.messages import ChangeAndDrift, Gradient
from fedpage.methods.registry import register
from fedpage.methods.zerosarah import ClientState, State, ZeroSARAH


@register("frecon", group="compressed")
@dataclass(frozen=True)
class FRECON(ZeroSARAH):
    """FRECON: compressed differences, pulled towards COFIG's estimate of the gradient.

    Clients reply as in ZeroSARAH. The server receives both parts of a reply compressed,
    with independent draws, and the client keeps y_i, the paper's h_i, as COFIG does.
    The effective step is eta. No round calls all clients, not even the first.

    Args:
        lam: The weight of COFIG's estimate. If None, use S/(2 (1 + omega) N).
        a: How far h_i moves towards the gradient. If None, use 1/(1 + omega) of `up`.
        up: The codec of both parts of a reply, an unbiased one or a cast.
    """

    name = "FRECON"
    paper = "Zhao, Burlachenko, Li, Richtárik 2021"
    up_codecs = "unbiased"
    codec_hint = ""

    a: float | None = None

    def weight(self, d: int, N: int) -> float:
        """Return lam, given or by default S/(2 (1 + omega) N), for d parameters."""
        return self.S / (2 * (1 + self.omega(d)) * N) if self.lam is None else self.lam

    def update_client_state(
        self,
        message: Fields,
        sent: Gradient | ChangeAndDrift,
        client_state: ClientState,
    ) -> ClientState:
        """Set h_i += a U_i, where U_i is the compressed drift; h_i = 0 in round 0."""
        U = sent.g if isinstance(sent, Gradient) else sent.drift
        return ClientState(client_state.y + self.rate(len(message[0])) * U)

    def server(
        self, state: State, replies: Replies[Gradient | ChangeAndDrift]
    ) -> State:
        """Set the estimator v, move along it, and keep h = mean h_i."""
        x, _, v, h, N = state
        mean, part = replies.mean, replies.count / N
        if isinstance(mean, Gradient):
            U = mean.g
            v = U + h  # lam_0 = 1
        else:
            U, lam = mean.drift, self.weight(len(x), N)
            v = mean.change + (1 - lam) * v + lam * (U + h)
        h = h + self.rate(len(x)) * part * U
        return State(x=x - self.eta * v, x_prev=x, v=v, h=h, N=N)
