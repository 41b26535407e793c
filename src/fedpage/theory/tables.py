"""Evaluate Tables 1 and 2 of the paper, and later analyses: rounds to epsilon, up to constants.

The paper prints the terms with L, f(x0) - f* and |x0 - x*| set to 1. Here each term has the factor
that makes it a pure number (`Setting.L`, `D0` and `R2`). With these at their default of 1 the terms
are those of the printed tables. `RIVALS` has the methods that came before and after the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedpage.core.errors import InputError, short_repr

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
            f"{name} must be from {_RANGE**-power:g} to {_RANGE**power:g}, not "
            f"{short_repr(value)}; "
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
        omega: Variance of an unbiased codec; 0: none.
        alpha: Contraction of a biased codec; 1: none.
        mu: Strong convexity of every f_i; None: not known, or 0.
        delta: Dissimilarity of the clients' Hessians; None: not known.

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
    omega: float = 0.0
    alpha: float = 1.0
    mu: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        for name in ("N", "S", "K", "M", "epsilon", "L", "D0", "R2"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise InputError(f"{name} must be a finite number above 0, not {short_repr(value)}")
            check_range(name, value)
        for name in ("sigma", "G", "B"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(
                    f"{name} must be a finite number of at least 0, not {short_repr(value)}"
                )
            check_range(name, max(value, 1.0))
        if self.S > self.N:
            raise InputError(f"S must be at most N={self.N}, not {self.S}")
        self._check_optional()

    def _check_optional(self) -> None:
        if not (math.isfinite(self.omega) and self.omega >= 0):
            raise InputError(
                f"omega must be a finite number of at least 0, not {short_repr(self.omega)}"
            )
        check_range("omega", max(self.omega, 1.0))
        if not 0 < self.alpha <= 1:
            raise InputError(f"alpha must be above 0 and at most 1, not {short_repr(self.alpha)}")
        check_range("alpha", self.alpha)
        if self.mu is not None:
            if not 0 < self.mu <= self.L:
                raise InputError(
                    f"mu must be above 0 and at most L={self.L:g}, not {short_repr(self.mu)}"
                )
            check_range("mu", self.mu)
        if self.delta is not None:
            if not (math.isfinite(self.delta) and self.delta >= 0):
                raise InputError(
                    f"delta must be a finite number of at least 0, not {short_repr(self.delta)}"
                )
            check_range("delta", max(self.delta, 1.0))

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
            (G,B)-BGD: bounded gradient dissimilarity of clients. C: the codec of replies.
        convex: Rounds for a convex f; None where the paper has a dash, as in the next three.
        nonconvex: Rounds for a nonconvex f.
        convex_gradients: Gradients per client for a convex f.
        nonconvex_gradients: Gradients per client for a nonconvex f.
        all_clients: Whether the analysis needs S = N.
        convex_needs: Fields of `Setting` without which `convex` cannot be evaluated.
        nonconvex_needs: The same of `nonconvex`.
        codec: The codecs that the analysis allows for: "unbiased", "contractive", or "" for none.
        unverified: Which of "convex" and "nonconvex" were not checked against a proof or a paper.
    """

    method: str
    source: str
    assumption: str
    convex: Formula | None
    nonconvex: Formula | None
    convex_gradients: Formula | None
    nonconvex_gradients: Formula | None
    all_clients: bool = False
    convex_needs: tuple[str, ...] = ()
    nonconvex_needs: tuple[str, ...] = ()
    codec: str = ""
    unverified: tuple[str, ...] = ()


def convex_case(N: int, S: int) -> tuple[str, float]:
    """Find which of FedPAGE's three convex cases applies (Theorem 3, as the paper states it).

    `convex_page` needs fewer rounds where S > sqrt(N) (docs/theory.md).

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
                s.G**2 * s.N * s.K / s.epsilon**2 / s.scaled_gap
                + s.sigma**2 / (s.N * s.K * s.epsilon**4)
            )
        ),
        None,
        lambda s: (
            s.scaled_gap
            * (
                s.G**2 * s.N * s.K**2 / s.epsilon**2 / s.scaled_gap
                + s.sigma**2 / (s.N * s.epsilon**4)
            )
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
        _work(_fedpage_convex, lambda s: s.N**1.5 * s.sigma**2 * s.R2 / (s.S * s.epsilon**2)),
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


# Methods that are not in the paper's tables. Rounds are exchanges: a method that calls its clients
# twice in an iteration counts two.


def _nonconvex(s: Setting, factor: float) -> float:
    """Return gradient descent's L D0/epsilon^2 times a factor."""
    return s.scaled_gap / s.epsilon**2 * factor


def _convex(s: Setting, factor: float) -> float:
    """Return gradient descent's L R2/epsilon times a factor."""
    return s.L * s.R2 / s.epsilon * factor


def _linear(s: Setting, factor: float) -> float:
    """Return the rounds of a linear rate: a factor times log(D0/epsilon)."""
    return factor * math.log(max(math.e, s.D0 / s.epsilon))


def _known(value: float | None) -> float:
    """Return a constant that the entry's needs guarantee."""
    assert value is not None
    return value


def _condition(s: Setting) -> float:
    return s.L / _known(s.mu)


def _cofig_nonconvex(s: Setting) -> float:
    W = 1 + s.omega
    return _nonconvex(s, 1 + (W**1.5 * math.sqrt(s.N) + W * s.N ** (2 / 3)) / s.S)


def _cofig_convex(s: Setting) -> float:
    return _convex(s, 1 + (1 + s.omega) * (1 + math.sqrt(s.N)) / s.S)


def _dasha(s: Setting) -> float:
    variance = s.omega * (2 * s.omega + 1) + (s.N - s.S) / max(1, s.N - 1)
    return _nonconvex(s, 1 + math.sqrt(s.N * variance) / s.S)


def _svrp(s: Setting) -> float:
    ratio = _known(s.delta) / _known(s.mu)
    return _linear(s, (1 + s.S / s.N) * (s.N / s.S + ratio**2))


def _saber_nonconvex(s: Setting) -> float:
    return _known(s.delta) * s.D0 * math.sqrt(s.N) / s.epsilon**2 * (1 + 1 / s.N)


def _saber_convex(s: Setting) -> float:
    ratio = _known(s.delta) / _known(s.mu)
    return _linear(s, (1 + 1 / s.N) * (math.sqrt(s.N) * ratio + s.N))


def _rival(
    method: str,
    source: str,
    assumption: str,
    *,
    convex: Formula | None = None,
    nonconvex: Formula | None = None,
    all_clients: bool = False,
    convex_needs: tuple[str, ...] = (),
    nonconvex_needs: tuple[str, ...] = (),
    codec: str = "",
    unverified: tuple[str, ...] = (),
) -> Entry:
    return Entry(
        method, source, assumption, convex, nonconvex, None, None, all_clients, convex_needs,
        nonconvex_needs, codec, unverified,
    )  # fmt: skip


RIVALS: tuple[Entry, ...] = (
    _rival(
        "SAGA",
        "as COFIG, no codec",
        "smooth",
        convex=lambda s: _cofig_convex(replace(s, omega=0.0)),
        nonconvex=lambda s: _cofig_nonconvex(replace(s, omega=0.0)),
        unverified=("nonconvex",),
    ),
    _rival(
        "ZeroSARAH",
        "Li, Hanzely, Richtárik 2021",
        "smooth",
        nonconvex=lambda s: _nonconvex(s, 1 + math.sqrt(s.N) / s.S),
    ),
    _rival(
        "COFIG",
        "Zhao et al. 2021, COFIG",
        "smooth, unbiased C",
        convex=_cofig_convex,
        nonconvex=_cofig_nonconvex,
        codec="unbiased",
        unverified=("nonconvex",),
    ),
    _rival(
        "DIANA",
        "Horváth et al. 2019",
        "smooth, unbiased C, S = N",
        convex=lambda s: _linear(s, 1 + s.omega + _condition(s) * (1 + s.omega / s.N)),
        nonconvex=lambda s: _nonconvex(s, (1 + s.omega) * math.sqrt(1 + s.omega / s.N)),
        all_clients=True,
        convex_needs=("mu",),
        codec="unbiased",
    ),
    _rival(
        "FRECON",
        "Zhao et al. 2021, COFIG",
        "smooth, unbiased C",
        nonconvex=lambda s: _nonconvex(s, 1 + (1 + s.omega) * math.sqrt(s.N) / s.S),
        codec="unbiased",
    ),
    _rival(
        "DASHA-PP",
        "Tyurin, Richtárik 2023",
        "smooth, unbiased C",
        nonconvex=_dasha,
        codec="unbiased",
    ),
    _rival(
        "EF21",
        "Richtárik et al. 2021",
        "smooth, contractive C, S = N",
        convex=lambda s: _linear(s, (1 + _condition(s)) / s.alpha),
        nonconvex=lambda s: _nonconvex(s, 1 / s.alpha),
        all_clients=True,
        convex_needs=("mu",),
        codec="contractive",
        unverified=("convex",),
    ),
    _rival(
        "EF21-PP",
        "Fatkhullin et al. 2021",
        "smooth, contractive C",
        nonconvex=lambda s: _nonconvex(s, s.N / (s.S * s.alpha)),
        codec="contractive",
    ),
    _rival(
        "Scaffnew",
        "Mishchenko et al. 2022",
        "smooth, S = N",
        convex=lambda s: _linear(s, math.sqrt(_condition(s))),
        all_clients=True,
        convex_needs=("mu",),
    ),
    _rival(
        "SVRP",
        "Khaled, Jin 2023",
        "exact solves",
        convex=_svrp,
        convex_needs=("mu", "delta"),
    ),
    _rival(
        "SABER",
        "Mishchenko et al. 2023",
        "exact solves, S = 1",
        convex=_saber_convex,
        nonconvex=_saber_nonconvex,
        convex_needs=("mu", "delta"),
        nonconvex_needs=("delta",),
        unverified=("convex", "nonconvex"),
    ),
)
"""Analyses of methods that the paper's tables do not have. The theorems of MARINA and S-DANE,
which have explicit constants, are evaluated by `fedpage.theory.planner`."""
