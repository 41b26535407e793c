"""FedAvg with epochs, optimisers and a proximal term at the clients.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks" (2018), for FedProx. The servers of `fedopt.py` have the same clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedpage.core import validate
from fedpage.core.errors import InputError, short_repr
from fedpage.core.local_steps import local_sgd, local_training
from fedpage.core.optimizers import Optimizer
from fedpage.core.types import Oracle
from fedpage.methods.fedavg import FedAvg
from fedpage.methods.messages import Model, Move
from fedpage.methods.registry import register


@register("fedavg-training", variant_of="fedavg")
@dataclass(frozen=True)
class LocalTraining(FedAvg):
    """FedAvg whose clients take epochs over their rows, or steps of an optimiser.

    Args:
        K: Local steps. It is None if epochs are given.
        epochs: In place of K: passes of each client over its rows, in minibatches of b
            rows in a fresh order. The effective step is then epochs eta_g eta_l, as if
            each client had one minibatch.
        client_optimizer: The rule that makes a step of a gradient, such as
            momentum:0.9+clip:1. Its moments begin at zero in every round. It does not
            count in the effective step. If None, a step is the gradient itself.
    """

    name = "FedAvg-training"
    checks = {"epochs": validate.whole}
    step_factors: ClassVar[tuple[str, ...]] = ("steps", "eta_g")

    mu = 0.0
    """The weight of a term (mu/2)|y - x|^2 in the clients' objectives, for FedProx."""

    K: int | None = 10  # type: ignore[assignment]
    epochs: int | None = field(default=None, kw_only=True)
    client_optimizer: Optimizer | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.epochs is not None:
            if self.K not in (None, type(self).K):
                raise InputError(f"{self.name}: give K or epochs, not both")
            object.__setattr__(self, "K", None)
        elif self.K is None:
            raise InputError(f"{self.name}: give K or epochs")
        super().__post_init__()
        optimizer: object = self.client_optimizer
        if isinstance(optimizer, str):
            object.__setattr__(self, "client_optimizer", Optimizer.from_text(optimizer))
        elif optimizer is not None and not isinstance(optimizer, Optimizer):
            raise InputError(
                f"{self.name}: client_optimizer must be one such as "
                f"fp.optimizers.Momentum(0.9), not {short_repr(optimizer)}"
            )

    @property
    def steps(self) -> int:
        """The number K of local steps, or of passes over a client's rows."""
        steps: Any = self.K if self.epochs is None else self.epochs
        return steps  # type: ignore[no-any-return]

    def client(
        self, message: Model, oracle: Oracle, client_state: None
    ) -> tuple[Move, None]:
        """Take local steps along grad_I(y) + mu (y - x), or train by an optimiser."""
        x, eta, b, optimizer = message.x, self.eta_l, self.b, self.client_optimizer
        mu, K = self.mu, self.K
        if self.epochs is not None or optimizer is not None:
            dy = local_training(
                oracle, x,
                K=K, epochs=self.epochs, eta=eta, b=b, mu=mu, optimizer=optimizer,
            )  # fmt: skip
        else:
            assert K is not None
            dy = -(K * eta) * local_sgd(oracle, x, K=K, eta=eta, b=b, mu=mu)
        return Move(dy), None


@register("fedprox")
@dataclass(frozen=True)
class FedProx(LocalTraining):
    """FedProx: FedAvg whose clients minimise f_i(y) + (mu/2)|y - x|^2.

    With mu = 0 it is FedAvg. The effective step is K eta_g eta_l.

    Args:
        mu: The weight of the proximal term.
    """

    name = "FedProx"
    paper = "Sahu et al. 2018"
    checks = {"mu": validate.at_least_zero}

    mu: float = 0.1
