"""FedProx: FedAvg with a proximal term at the clients.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpage.core import validate
from fedpage.core.types import Oracle
from fedpage.methods.fedavg import FedAvg, Model, Reply
from fedpage.methods.registry import register


@register("fedprox", group="local", assumes="similar clients; biased otherwise")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx: FedAvg whose clients minimise f_i(y) + (mu/2)|y - x|^2.

    With mu = 0 it is FedAvg. The effective step is K eta_g eta_l.

    Args:
        mu: The weight of the proximal term.
    """

    name: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Sahu et al. 2018"

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least_zero(self.name, "mu", self.mu)

    def client(
        self, message: Model, oracle: Oracle, client_state: None
    ) -> tuple[Reply, None]:
        """Take K steps y -= eta_l (grad_I(y) + mu (y - x))."""
        return Reply(self.local_move(message.x, oracle, mu=self.mu)), None
