"""SCAFFOLD with option I, and with momentum.

`class Both(ScaffoldMomentum, ScaffoldOptionI)` has both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fedpage.core.types import Fields, Oracle, Replies, Vector
from fedpage.methods.registry import register
from fedpage.methods.scaffold import SCAFFOLD, ClientState, Controlled, State


class MoveAndChange(NamedTuple):
    """dy = y_K - x and dc = c_i+ - c_i."""

    dy: Vector
    dc: Vector


@register("scaffold-option-i", variant_of="scaffold")
@dataclass(frozen=True)
class ScaffoldOptionI(SCAFFOLD):
    """SCAFFOLD with option I: c_i+ is the client's gradient at x over b0 rows.

    Clients send two vectors.

    Args:
        b0: Rows of that gradient. If None, use all rows.
    """

    name = "SCAFFOLD-option-I"
    messages = {Controlled: MoveAndChange}
    changes = {Controlled: {"dy": None, "dc": None}}

    b0: int | None = None

    def client(
        self, message: Controlled, oracle: Oracle, client_state: ClientState
    ) -> tuple[Fields, ClientState]:
        """Take K corrected steps, and compute the gradient at x."""
        dy = -(self.K * self.eta_l) * self.direction(message, oracle, client_state)
        c_new = oracle.grad(message.x, oracle.batch(self.b0))
        return MoveAndChange(dy, c_new - client_state.c), client_state

    def update_client_state(
        self, message: Controlled, sent: Any, client_state: ClientState
    ) -> ClientState:
        """Add the change that was sent to c_i."""
        return ClientState(client_state.c + sent.dc)

    def server(self, state: State, replies: Replies[Any]) -> State:
        """Set x += eta_g mean(dy) and c += (S/N) mean(dc)."""
        dy, dc = replies.mean
        return self.move(state, dy, dc, replies.count / state.N)


class HeavyBallState(NamedTuple):
    """The state of SCAFFOLD, and the server's last move m."""

    x: Vector
    c: Vector
    N: int
    m: Vector


@register("scaffold-momentum", variant_of="scaffold")
@dataclass(frozen=True)
class ScaffoldMomentum(SCAFFOLD):
    """SCAFFOLD whose server has momentum (heavy ball), which is not in the paper.

    The effective step is K eta_g eta_l/(1 - beta).

    Args:
        beta: The momentum, in [0, 1).
    """

    name = "SCAFFOLD-momentum"
    heavy_ball = True

    beta: float = 0.9

    def init(self, x0: Vector, N: int) -> HeavyBallState:  # type: ignore[override]
        """Start with c = 0, as all c_i, and without a move."""
        return HeavyBallState(*super().init(x0, N), m=0.0 * x0)

    def move(  # type: ignore[override]  # the state has more fields than SCAFFOLD's
        self, state: HeavyBallState, dy: Vector, dc: Vector, part: float
    ) -> HeavyBallState:
        """Set m = beta m + eta_g dy and x += m; move c as SCAFFOLD does."""
        m = self.beta * state.m + self.eta_g * dy
        return state._replace(x=state.x + m, c=state.c + part * dc, m=m)
