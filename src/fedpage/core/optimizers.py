"""Client optimisers: frozen values that turn gradients into the directions of local steps.

`Momentum(0.9, weight_decay=1e-4, clip=1.0)` turns each client's gradient into a direction u, and
the local step is y -= eta u. The moments begin at zero in every round, as is usual, because clients
keep nothing between rounds. The formulas follow `torch.optim` and
`torch.nn.utils.clip_grad_norm_`. They use arithmetic operators on (n, d) arrays only, so that the
same code runs on numpy arrays and on tensors, and a client's numbers do not depend on the other
called clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from fedpage.core.errors import InputError, short_repr
from fedpage.core.spec import Registry, number, parse, split_sum
from fedpage.core.types import Vector
from fedpage.core.validate import Checks, at_least_zero, check_fields, decay, flag, positive

Moments: TypeAlias = tuple[Vector, ...]
"""The arrays (n, d) that pass from one step of a round to the next; () before the first."""
OPTIMIZERS: Registry[Callable[..., Optimizer]] = Registry("optimizer")
"""Every client optimiser by its name in text."""


@dataclass(frozen=True)
class Optimizer:
    """Turn gradients into directions; the base class of all client optimisers, which take its Args.

    Your own is a frozen dataclass that overrides `update`. A gradient is clipped first, then the
    weight decay is added, then it is given to `update`.

    Args:
        weight_decay: The weight w of the decay. It is coupled: w y is added to the gradient, as an
            l2 regulariser would. Only AdamW's is decoupled.
        clip: The largest norm of a client's gradient, before the decay. If None, it is not clipped.
    """

    label: ClassVar[str] = ""
    """Its name in text."""
    checks: ClassVar[Checks] = {}
    """The check of each field of a subclass."""
    decoupled: ClassVar[bool] = False
    """Whether w y is added to the direction instead of the gradient."""

    weight_decay: float = field(default=0.0, kw_only=True)
    clip: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if type(self) is Optimizer:
            raise InputError("optimizer: write one as text, such as momentum:0.9+clip:1")
        label = f"optimizer {self.label}"
        shared: Checks = {"weight_decay": at_least_zero, "clip": positive}
        check_fields(self, label, {**shared, **self.checks})

    def direction(
        self, gradient: Vector, y: Vector, moments: Moments, step: int
    ) -> tuple[Vector, Moments]:
        """Return the direction u of a local step y -= eta u, and the new moments.

        Args:
            gradient: The clients' gradients at y, (n, d).
            y: The clients' models, (n, d), or (d,) where they are equal.
            moments: The moments of the last step; () in the first step of a round.
            step: The number of the step in the round, from 1.
        """
        if self.clip is not None:
            gradient = clip_rows(gradient, self.clip)
        if self.weight_decay and not self.decoupled:
            gradient = gradient + self.weight_decay * y
        u, moments = self.update(gradient, moments, step)
        if self.weight_decay and self.decoupled:
            u = u + self.weight_decay * y
        return u, moments

    def update(self, g: Vector, moments: Moments, step: int) -> tuple[Vector, Moments]:
        """Return the direction of a clipped and decayed gradient, and the new moments."""
        raise NotImplementedError

    @classmethod
    def from_text(cls, text: str) -> Optimizer:
        """Return the optimiser of a text.

        Args:
            text: "sgd", "momentum:0.9", "nesterov:0.9", "adam:0.9:0.999" or "adamw:0.9:0.999",
                each with "+decay:0.0001" and "+clip:1" after it.

        Returns:
            The optimiser; `Optimizer.from_text(str(optimizer)) == optimizer`.

        Raises:
            InputError: The optimiser is unknown, or a number is impossible.

        >>> Optimizer.from_text("momentum:0.9+clip:1")
        Momentum(weight_decay=0.0, clip=1, beta=0.9, nesterov=False)
        >>> str(Optimizer.from_text("adamw+decay:0.01"))
        'adamw:0.9:0.999:1e-08+decay:0.01'
        """
        first, *parts = split_sum(text)
        spec = parse(first)
        options: dict[str, Any] = {}
        for part in map(parse, parts):
            name = {"decay": "weight_decay", "clip": "clip"}.get(part.name, "")
            value = number(":".join(part.values))
            if not name or name in options or value is None:
                raise InputError(
                    f"optimizer {short_repr(text)}: after + write decay:NUMBER or clip:NUMBER, "
                    "each once"
                )
            options[name] = value
        return spec.build(OPTIMIZERS[spec.name], "optimizer", **options)

    def __str__(self) -> str:
        own = [entry.name for entry in fields(self) if not entry.kw_only]
        text = ":".join([self.label, *(str(getattr(self, name)) for name in own)])
        if self.weight_decay:
            text += f"+decay:{self.weight_decay}"
        return text if self.clip is None else f"{text}+clip:{self.clip}"


@OPTIMIZERS.register("sgd")
@dataclass(frozen=True)
class SGD(Optimizer):
    """Take the gradient for the direction: plain local SGD, with decay or clipping."""

    def update(self, g: Vector, moments: Moments, step: int) -> tuple[Vector, Moments]:
        """Return the gradient."""
        return g, ()


@OPTIMIZERS.register("momentum")
@dataclass(frozen=True)
class Momentum(Optimizer):
    """Add up gradients with heavy-ball or Nesterov momentum: m = beta m + g.

    Args:
        beta: The momentum, in [0, 1).
        nesterov: The direction is g + beta m instead of m.
    """

    checks: ClassVar[Checks] = {"beta": decay, "nesterov": flag}

    beta: float = 0.9
    nesterov: bool = field(default=False, kw_only=True)

    def update(self, g: Vector, moments: Moments, step: int) -> tuple[Vector, Moments]:
        """Return m, or g + beta m."""
        m = self.beta * moments[0] + g if moments else g
        return (g + self.beta * m if self.nesterov else m), (m,)

    def __str__(self) -> str:
        text = super().__str__()
        return text.replace("momentum", "nesterov") if self.nesterov else text


@OPTIMIZERS.register("nesterov")
def _nesterov(
    beta: float = 0.9, *, weight_decay: float = 0.0, clip: float | None = None
) -> Momentum:
    return Momentum(beta, nesterov=True, weight_decay=weight_decay, clip=clip)


@OPTIMIZERS.register("adam")
@dataclass(frozen=True)
class Adam(Optimizer):
    """Divide a running mean of gradients by the root of one of their squares (Kingma, Ba 2015).

    Both means are corrected for their start at zero.

    Args:
        beta1: The decay of the mean of gradients, in [0, 1).
        beta2: The decay of the mean of squares, in [0, 1).
        eps: The number that is added to the root.
    """

    checks: ClassVar[Checks] = {"beta1": decay, "beta2": decay, "eps": positive}

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def update(self, g: Vector, moments: Moments, step: int) -> tuple[Vector, Moments]:
        """Return m/(1 - beta1^step) / (sqrt(v/(1 - beta2^step)) + eps)."""
        m, v = (1 - self.beta1) * g, (1 - self.beta2) * g**2
        if moments:
            m, v = self.beta1 * moments[0] + m, self.beta2 * moments[1] + v
        root = (v / (1 - self.beta2**step)) ** 0.5
        return m / (1 - self.beta1**step) / (root + self.eps), (m, v)


@OPTIMIZERS.register("adamw")
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w y is added to the direction (Loshchilov, Hutter 2019)."""

    decoupled: ClassVar[bool] = True


def clip_rows(gradient: Vector, clip: float) -> Vector:
    """Scale rows (n, d) that are longer than `clip` down to that length.

    The factor is min(1, clip/(|g| + 1e-6)), as in `torch.nn.utils.clip_grad_norm_`.
    """
    norms = row_norms(gradient) + 1e-6
    is_long = norms > clip
    return gradient * (is_long * (clip / norms) + ~is_long * 1.0)


def row_norms(v: Vector) -> Vector:
    """Return the norms of rows (n, d), as (n, 1).

    Squares are added in halves, in an order that depends on d alone. So a row has the same bits
    among any others, as an array of numpy and as a tensor.
    """
    squares: Any = v * v
    rest: Any = 0.0
    while (d := squares.shape[1]) > 1:
        if d % 2:
            rest = rest + squares[:, -1:]
        squares = squares[:, : d // 2] + squares[:, d // 2 : d // 2 * 2]
    norms: Vector = (squares + rest) ** 0.5
    return norms
