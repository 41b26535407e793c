"""SCALLION: SCAFFOLD that sends one compressed vector.

Huang, Li, Li, "Stochastic Controlled Averaging for Federated Learning with
Communication Compression" (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.core import validate
from fedpage.core.types import Oracle, Replies, Vector
from fedpage.methods.registry import register
from fedpage.methods.scaffold import SCAFFOLD, ClientState, Controlled, State


class Reply(NamedTuple):
    """delta_i, the change of c_i."""

    delta: Vector


@register("scallion", group="compressed", assumes="clients that keep a state")
@dataclass(frozen=True)
class SCALLION(SCAFFOLD):
    """SCALLION: SCAFFOLD whose change of c_i is scaled, compressed and sent.

    It is SCAFFOLD (option II) where `up` is the identity. The effective step is
    K eta_g eta_l.

    Args:
        a: The scale of the change, in (0, 1]. If None, use 1/(1 + omega) of the codec.
        unbiased: The server undoes the scale in its move along the mean change, which
            makes the move unbiased, with more variance.
        up: The codec of the change: unbiased ones, such as randk:0.1 or natural.
        down: The codec of x and c: casts, such as float32.
    """

    name = "SCALLION"
    paper = "Huang, Li, Li 2024"
    messages = {Controlled: Reply}
    checks = {"unbiased": validate.flag}
    up_codecs = "unbiased"
    codec_hint = ""
    changes = {Controlled: {"delta": None}}

    a: float | None = None
    unbiased: bool = False

    def client(
        self, message: Controlled, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Take SCAFFOLD's K steps; reply a ((x - y_K)/(K eta_l) - c), through C."""
        direction = self.direction(message, oracle, client_state)
        a, c = self.rate(len(message.x)), message.c
        return Reply(a * (direction - c)), client_state

    def update_client_state(
        self, message: Controlled, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set c_i += delta_i, as it was compressed."""
        return ClientState(client_state.c + sent.delta)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Move along mean(delta) + c, and set c += (S/N) mean(delta)."""
        delta = replies.mean.delta
        change = delta / self.rate(len(state.x)) if self.unbiased else delta
        return State(
            x=state.x - (self.eta_g * self.K * self.eta_l) * (change + state.c),
            c=state.c + (replies.count / state.N) * delta,
            N=state.N,
        )
