"""FedOpt: FedAvg whose server takes the mean move for a gradient.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification" (2019), for momentum; Reddi et al., "Adaptive Federated
Optimization" (2021), for the adaptive servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.core import validate
from fedpage.core.types import Replies, Vector
from fedpage.methods.fedavg_variants import LocalTraining
from fedpage.methods.messages import MomentumState, Move
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class AdaptiveState(NamedTuple):
    """The model, the moments m and v of its moves, and the number of clients."""

    x: Vector
    m: Vector
    v: Vector
    N: int


@register("fedavgm", group="adaptive", page="fedopt")
@dataclass(frozen=True)
class FedAvgM(LocalTraining):
    """FedAvgM: FedAvg with heavy-ball momentum at the server.

    With beta = 0 it is FedAvg. The effective step is K eta_g eta_l/(1 - beta), the sum
    of all moves along one gradient.

    Args:
        beta: The momentum, in [0, 1).
    """

    name = "FedAvgM"
    paper = "Hsu et al. 2019"
    heavy_ball = True

    beta: float = 0.9

    def init(self, x0: Vector, N: int) -> MomentumState:  # type: ignore[override]
        """Start with m = 0."""
        self.check_sample(N)
        return MomentumState(x=x0, m=0.0 * x0, N=N)

    def server(  # type: ignore[override]  # the state has more fields than FedAvg's
        self, state: MomentumState, replies: Replies[Move]
    ) -> MomentumState:
        """Set m = beta m + D and x += eta_g m, where D = mean(dy)."""
        m = self.beta * state.m + replies.mean.dy
        return MomentumState(x=state.x + self.eta_g * m, m=m, N=state.N)


@register("fednesterov", page="fedopt")
@dataclass(frozen=True)
class FedNesterov(FedAvgM):
    """FedNesterov: FedAvg with Nesterov's momentum at the server.

    With all clients, all rows and K = 1, x is Nesterov's extrapolated sequence. With
    beta = 0 it is FedAvg. The effective step is K eta_g eta_l/(1 - beta).
    """

    name = "FedNesterov"
    paper = "Nesterov 1983; Hsu et al. 2019"

    def server(  # type: ignore[override]
        self, state: MomentumState, replies: Replies[Move]
    ) -> MomentumState:
        """Set m = beta m + D and x += eta_g (D + beta m), where D = mean(dy)."""
        D = replies.mean.dy
        m = self.beta * state.m + D
        x = state.x + self.eta_g * (D + self.beta * m)
        return MomentumState(x=x, m=m, N=state.N)


@dataclass(frozen=True)
class AdaptiveFedAvg(LocalTraining):
    """FedAvg whose server divides the moves of each coordinate by their size (Alg. 2).

    The effective step is eta_g: the length of a round's move in a coordinate where all
    moves agree, not a factor of a gradient. It cannot be compared with other methods'.

    Args:
        eta_g: The server's step: the length of a move where moves agree.
        beta1: The decay of m, in [0, 1).
        tau: The least divisor; v starts at tau^2.
    """

    checks = {"tau": validate.positive}
    step_sizes, step_factors = ("eta_g",), ()

    eta_g: StepSize = 0.01
    beta1: float = 0.9
    tau: float = 1e-3

    def second_moment(self, v: Vector, D: Vector) -> Vector:
        """Return the next v, given the mean move D."""
        raise NotImplementedError

    def init(self, x0: Vector, N: int) -> AdaptiveState:  # type: ignore[override]
        """Start with m = 0 and v = tau^2."""
        self.check_sample(N)
        return AdaptiveState(x=x0, m=0.0 * x0, v=0.0 * x0 + self.tau**2, N=N)

    def server(  # type: ignore[override]  # the state has more fields than FedAvg's
        self, state: AdaptiveState, replies: Replies[Move]
    ) -> AdaptiveState:
        """Set x += eta_g m/(sqrt(v) + tau), without a correction of Adam's bias."""
        D = replies.mean.dy
        m = self.beta1 * state.m + (1 - self.beta1) * D
        v = self.second_moment(state.v, D)
        x = state.x + self.eta_g * m / (v**0.5 + self.tau)
        return AdaptiveState(x=x, m=m, v=v, N=state.N)


@register("fedadagrad", group="adaptive", page="fedopt")
@dataclass(frozen=True)
class FedAdagrad(AdaptiveFedAvg):
    """FedAdagrad: the server divides by the root of the sum of all squared moves.

    The effective step is eta_g, a length that is not comparable with other methods'.
    """

    name = "FedAdagrad"
    paper = "Reddi et al. 2021"

    eta_g: StepSize = 0.1
    beta1: float = 0.0

    def second_moment(self, v: Vector, D: Vector) -> Vector:
        """Return v + D^2."""
        return v + D**2


@register("fedadam", group="adaptive", page="fedopt")
@dataclass(frozen=True)
class FedAdam(AdaptiveFedAvg):
    """FedAdam: the server divides by the root of a decaying mean of squared moves.

    As published there is no correction of Adam's bias; v starts at tau^2 instead of 0.
    The effective step is eta_g, a length that is not comparable with other methods'.

    Args:
        beta2: The decay of v, in [0, 1).
    """

    name = "FedAdam"
    paper = "Reddi et al. 2021"

    beta2: float = 0.99

    def second_moment(self, v: Vector, D: Vector) -> Vector:
        """Return beta2 v + (1 - beta2) D^2."""
        return self.beta2 * v + (1 - self.beta2) * D**2


@register("fedyogi", page="fedopt")
@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedYogi: FedAdam whose v changes by (1 - beta2) D^2 at most.

    After large moves v falls slowly, by a part of D^2 instead of a part of itself.
    """

    name = "FedYogi"

    def second_moment(self, v: Vector, D: Vector) -> Vector:
        """Return v - (1 - beta2) D^2 sign(v - D^2)."""
        square = D**2
        return v + (1 - self.beta2) * (square * (square > v) - square * (square < v))
