"""FedAvg, or local SGD with two step sizes.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data" (2017), as Karimireddy et al. (2020) write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import Compressible
from fedpage.core import validate
from fedpage.core.errors import InputError, short_repr
from fedpage.core.local_steps import local_sgd, local_training
from fedpage.core.optimizers import Optimizer
from fedpage.core.types import (
    Call,
    Draws,
    HyperParameter,
    MessageTypes,
    Oracle,
    Replies,
    Vector,
)
from fedpage.methods.local import LocalSGD
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model and the number of clients."""

    x: Vector
    N: int


class Model(NamedTuple):
    """To S clients: K SGD steps from x."""

    x: Vector


class Reply(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


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
    K eta_g eta_l. `FedAvg.full` takes all rows in every step. The moves are changes, so
    any unbiased codec may compress them.

    Args:
        K: Local steps; None: those of `epochs`.
        epochs: In place of K: passes of each client over its rows, in minibatches of b
            rows in a fresh order. The effective step is then epochs eta_g eta_l, that
            of a client with one minibatch. None: K steps.
        client_optimizer: What a local step makes of the gradient, such as
            momentum:0.9+clip:1; its moments begin at zero in every round. It does not
            count in the effective step. None: the gradient itself.
    """

    name: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017"
    messages: ClassVar[MessageTypes] = {Model: Reply}
    client_state: ClassVar[None] = None
    compressible: ClassVar[Compressible] = {Model: {"dy": None}}
    takes_any_mean: ClassVar[bool] = True
    """A trimmed, clipped or noisy mean may replace that of the moves."""

    K: int | None = 10  # type: ignore[assignment]
    epochs: int | None = field(default=None, kw_only=True)
    client_optimizer: Optimizer | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.epochs is not None:
            validate.whole(self.name, "epochs", self.epochs)
            if self.K not in (None, type(self).K):
                raise InputError(f"{self.name}: give K or epochs, not both")
            object.__setattr__(self, "K", None)
        super().__post_init__()
        codecs.check(self, "unbiased")
        optimizer: object = self.client_optimizer
        if isinstance(optimizer, str):
            object.__setattr__(self, "client_optimizer", Optimizer.from_text(optimizer))
        elif optimizer is not None and not isinstance(optimizer, Optimizer):
            raise InputError(
                f"{self.name}: client_optimizer must be one such as "
                f"fp.optimizers.Momentum(0.9), not {short_repr(optimizer)}"
            )
        if type(self) is FedAvg and self.b is None:
            object.__setattr__(self, "name", "FedAvg-Full")

    @classmethod
    def full(cls, **hyper_parameters: HyperParameter) -> Self:
        """Return FedAvg-Full of the paper's appendix: gradients use all rows."""
        return cls(b=None, **hyper_parameters)

    @property
    def steps(self) -> int:
        """The number K of local steps, or of passes over a client's rows."""
        steps: Any = self.K if self.epochs is None else self.epochs
        return steps  # type: ignore[no-any-return]

    def init(self, x0: Vector, N: int) -> State:
        """Return the start."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the model to S clients."""
        return Call(draws.clients(state.N, self.S), Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: None
    ) -> tuple[Reply, None]:
        """Take K local steps; y_K - x is -K eta_l times the mean direction."""
        return Reply(self.local_move(message.x, oracle)), None

    def local_move(self, x: Vector, oracle: Oracle, mu: float = 0.0) -> Vector:
        """Return y_K - x of local steps along grad_I(y) + mu (y - x)."""
        eta, b, optimizer = self.eta_l, self.b, self.client_optimizer
        if self.epochs is not None or optimizer is not None:
            return local_training(
                oracle, x,
                K=self.K, epochs=self.epochs, eta=eta, b=b, mu=mu, optimizer=optimizer,
            )  # fmt: skip
        K = self.steps
        return -(K * eta) * local_sgd(oracle, x, K=K, eta=eta, b=b, mu=mu)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set x += eta_g mean(dy)."""
        return State(x=state.x + self.eta_g * replies.mean.dy, N=state.N)
