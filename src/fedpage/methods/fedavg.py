"""FedAvg, or local SGD with two step sizes.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data" (2017), as Karimireddy et al. (2020) write it. Variants: `fedavg_variants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.local import LocalSGD
from fedpage.methods.messages import Model, ModelState, Move
from fedpage.methods.registry import register


@register(
    "fedavg",
    presets={"fedavg-full": ("FedAvg-Full", {"b": None})},
    group="local",
    assumes="similar clients; biased otherwise",
)
@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """FedAvg: S clients take K SGD steps; the server adds eta_g times their mean move.

    A local step is y -= eta_l grad_I(y) with |I| = b rows. The effective step is
    K eta_g eta_l. If b is None it is FedAvg-Full of the FedPAGE paper's appendix. The
    moves are changes, so any unbiased codec may compress them.
    """

    name = "FedAvg"
    paper = "McMahan et al. 2017"
    messages = {Model: Move}
    up_codecs = "unbiased"
    changes = {Model: {"dy": None}}
    takes_any_mean = True

    def init(self, x0: Vector, N: int) -> ModelState:
        """Return the start."""
        self.check_sample(N)
        return ModelState(x=x0, N=N)

    def call(self, state: ModelState, draws: Draws) -> Call[Model]:
        """Send the model to S clients."""
        return Call(draws.clients(state.N, self.S), Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: None
    ) -> tuple[Move, None]:
        """Take K steps; y_K - x is -K eta_l times their mean direction."""
        K, eta = self.K, self.eta_l
        direction = local_sgd(oracle, message.x, K=K, eta=eta, b=self.b)
        return Move(-(K * eta) * direction), None

    def server(self, state: ModelState, replies: Replies[Move]) -> ModelState:
        """Set x += eta_g mean(dy)."""
        return ModelState(x=state.x + self.eta_g * replies.mean.dy, N=state.N)
