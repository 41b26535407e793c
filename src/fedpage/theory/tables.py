"""Evaluate Tables 1 and 2 of the paper: rounds and gradients to epsilon, up to constants.

The paper prints the terms with L, f(x0) - f* and |x0 - x*| set to 1. Here each term has the factor
that makes it a pure number (`Setting.L`, `D0` and `R2`). With these at their default of 1 the terms
are those of the printed tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedpage.core.errors import InputError

_RANGE = 1e30
"""Above it the fourth powers of the formulas overflow."""


def check_range(name: str, value: float, power: int = 1) -> None:
    """Refuse a constant whose powers in the formulas would overflow or vanish.

    Args:
        name: The constant's name.
        value: Its value.
        power: The power of a length or of f that the constant is.

    Raises:
        InputError: The value is out of range.
    """
    if not _RANGE**-power <= value <= _RANGE**power:
        raise InputError(
            f"{name} must be from {_RANGE**-power:g} to {_RANGE**power:g}, not {value!r}; "
            "rescale f or x"
        )


@dataclass(frozen=True)
class Setting:
    """The constants that the complexities depend on.

    Attributes:
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        M: Rows per client.
        epsilon: The gradient norm to reach (nonconvex), or f(x) - f* (convex).
        sigma: Standard deviation of the rows' gradients within a client.
        G: The constant part of the clients' dissimilarity.
        B: Its relative part.
        L: Smoothness of the rows.
        D0: f(x0) - f*.
        R2: |x0 - x*|^2.
        delta: Second-order dissimilarity of the clients, which the tables do not use.

    Raises:
        InputError: A number is out of range.
    """

    N: int
    S: int
    K: int
    M: float
    epsilon: float
    sigma: float = 0.0
    G: float = 0.0
    B: float = 1.0
    L: float = 1.0
    D0: float = 1.0
    R2: float = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        for name in ("N", "S", "K", "M", "epsilon", "L", "D0", "R2"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise InputError(f"{name} must be a finite number above 0, not {value!r}")
            check_range(name, value)
        for name in ("sigma", "G", "B", "delta"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(f"{name} must be a finite number of at least 0, not {value!r}")
            check_range(name, max(value, 1.0))
        if self.S > self.N:
            raise InputError(f"S must be at most N={self.N}, not {self.S}")

    @property
    def scaled_gap(self) -> float:
        """L (f(x0) - f*), a factor of every nonconvex term."""
        return self.L * self.D0


Formula = Callable[[Setting], float]


@dataclass(frozen=True)
class Entry:
    """A row of the tables.

    Attributes:
        method: The method's name.
        source: The paper of the analysis.
        assumption: What it assumes. BV: bounded variance of rows within a client (sigma).
            (G,B)-BGD: bounded gradient dissimilarity of clients.
        convex: Rounds for a convex f; None where the paper has a dash, as in the next three.
        nonconvex: Rounds for a nonconvex f.
        convex_gradients: Gradients per client for a convex f.
        nonconvex_gradients: Gradients per client for a nonconvex f.
        all_clients: Whether the analysis needs S = N.
    """

    method: str
    source: str
    assumption: str
    convex: Formula | None
    nonconvex: Formula | None
    convex_gradients: Formula | None
    nonconvex_gradients: Formula | None
    all_clients: bool = False


def convex_case(N: int, S: int) -> tuple[str, float]:
    """Find which of FedPAGE's three convex cases applies (Theorem 3).

    Args:
        N: Clients.
        S: Clients sampled in a round.

    Returns:
        The case in words, and its factor of L R2/epsilon.

    >>> convex_case(10_000, 10), convex_case(10_000, 500), convex_case(10_000, 5_000)
    (('S <= N^(1/2)', 100.0), ('N^(1/2) < S <= N^(3/4)', 10.0), ('N^(3/4) < S', 2.0))
    """
    if math.sqrt(N) >= S:
        return "S <= N^(1/2)", N**0.75 / S
    if S <= N**0.75:
        return "N^(1/2) < S <= N^(3/4)", N**0.25
    return "N^(3/4) < S", N / S


def _fedpage_convex(s: Setting) -> float:
    return convex_case(s.N, s.S)[1] * s.L * s.R2 / s.epsilon


def _fedpage_nonconvex(s: Setting) -> float:
    return s.scaled_gap * (math.sqrt(s.N) + s.S) / (s.S * s.epsilon**2)


def _fedavg_convex(s: Setting) -> float:
    e, root = s.epsilon, math.sqrt(s.L)
    return s.R2 * (
        s.G**2 / (s.S * e**2)
        + root * s.G / math.pow(e, 1.5)
        + s.L * s.B**2 / e
        + s.sigma**2 / (s.S * s.K * e**2)
    )


def _fedavg_nonconvex(s: Setting) -> float:
    e = s.epsilon
    return s.scaled_gap * (
        s.G**2 / (s.S * e**4) + s.G / e**3 + s.B**2 / e**2 + s.sigma**2 / (s.S * s.K * e**4)
    )


def _scaffold_convex(s: Setting) -> float:
    return s.R2 * (s.L * s.N / (s.S * s.epsilon) + s.sigma**2 / (s.S * s.K * s.epsilon**2))


def _scaffold_nonconvex(s: Setting) -> float:
    e = s.epsilon
    return s.scaled_gap * (math.pow(s.N / s.S, 2 / 3) / e**2 + s.sigma**2 / (s.S * s.K * e**4))


def _share(rounds: Formula) -> Formula:
    """Return gradients per client where S sampled clients take K steps: rounds times S K/N."""
    return lambda s: rounds(s) * s.S * s.K / s.N


def _work(rounds: Formula, batch: Formula) -> Formula:
    """Return gradients per client of FedPAGE: rounds times S (batch + K)/N."""
    return lambda s: rounds(s) * s.S * (batch(s) + s.K) / s.N


TABLE: tuple[Entry, ...] = (
    Entry(
        "FedAvg",
        "Yu et al. 2019",
        "smooth, BV, (G,0)-BGD",
        None,
        lambda s: (
            s.scaled_gap
            * (
                s.G**2 * s.N * s.K / s.epsilon**2 / _scale(s)
                + s.sigma**2 / (s.N * s.K * s.epsilon**4)
            )
        ),
        None,
        lambda s: (
            s.scaled_gap
            * (s.G**2 * s.N * s.K**2 / s.epsilon**2 / _scale(s) + s.sigma**2 / (s.N * s.epsilon**4))
        ),
        all_clients=True,
    ),
    Entry(
        "FedAvg",
        "Karimireddy et al. 2020",
        "smooth, BV, (G,B)-BGD",
        _fedavg_convex,
        _fedavg_nonconvex,
        _share(_fedavg_convex),
        _share(_fedavg_nonconvex),
    ),
    Entry(
        "FedProx",
        "Sahu et al. 2018",
        "smooth, (0,B)-BGD, S = N",
        lambda s: s.L * s.R2 * s.B**2 / s.epsilon,
        None,
        lambda s: s.L * s.R2 * s.B**2 / s.epsilon,
        None,
        all_clients=True,
    ),
    Entry(
        "VRL-SGD",
        "Liang et al. 2019",
        "smooth, BV, S = N",
        None,
        lambda s: s.scaled_gap * (s.N / s.epsilon**2 + s.N * s.sigma**2 / (s.K * s.epsilon**4)),
        None,
        lambda s: s.scaled_gap * (s.N * s.K / s.epsilon**2 + s.N * s.sigma**2 / s.epsilon**4),
        all_clients=True,
    ),
    Entry(
        "S-Local-SVRG",
        "Gorbunov et al. 2020",
        "smooth, S = N, K <= M",
        lambda s: (
            s.L * s.R2 * ((s.M / s.K) ** (1 / 3) + math.sqrt(s.M / (s.N * s.K**2))) / s.epsilon
        ),
        None,
        lambda s: (
            s.L * s.R2 * (s.K + math.sqrt(s.M / s.N) + s.M ** (1 / 3) * s.K ** (2 / 3)) / s.epsilon
        ),
        None,
        all_clients=True,
    ),
    Entry(
        "SCAFFOLD",
        "Karimireddy et al. 2020",
        "smooth, BV",
        _scaffold_convex,
        _scaffold_nonconvex,
        _share(_scaffold_convex),
        _share(_scaffold_nonconvex),
    ),
    Entry(
        "FedPAGE",
        "Zhao, Li, Richtárik 2021",
        "smooth",
        _fedpage_convex,
        _fedpage_nonconvex,
        _work(_fedpage_convex, lambda s: s.M),
        _work(_fedpage_nonconvex, lambda s: s.M),
    ),
    Entry(
        "FedPAGE",
        "minibatches, as printed",
        "smooth, BV",
        _fedpage_convex,
        _fedpage_nonconvex,
        _work(
            _fedpage_convex,
            lambda s: s.N**1.5 * s.sigma**2 / (s.S * s.epsilon**2) / _scale(s, convex=True),
        ),
        _work(_fedpage_nonconvex, lambda s: s.N * s.sigma**2 / (s.S * s.epsilon**2)),
    ),
    Entry(
        "FedPAGE",
        "minibatches, from b2",
        "smooth, BV",
        _fedpage_convex,
        _fedpage_nonconvex,
        _work(_fedpage_convex, lambda s: s.N**1.5 * s.sigma**2 / (s.S**2 * s.epsilon) / s.L),
        _work(_fedpage_nonconvex, lambda s: s.N * s.sigma**2 / (s.S**2 * s.epsilon**2)),
    ),
)
"""Every row of Tables 1 and 2, in the paper's order. FedPAGE's second row occurs twice: as the
paper prints it, and as its b2 gives it."""


def _scale(s: Setting, convex: bool = False) -> float:
    """Return the factor that makes two terms pure numbers, whose units do not match as printed."""
    return s.L**2 * s.R2 if convex else s.L * s.D0
