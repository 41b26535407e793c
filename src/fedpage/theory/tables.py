"""Evaluate Tables 1 and 2 of the paper, and later analyses: rounds to epsilon, up to constants.

The paper prints the terms with L, f(x0) - f* and |x0 - x*| set to 1. Here each term has the factor
that makes it a pure number (`Setting.L`, `D0` and `R2`). With their default of 1 the terms equal
the printed ones. `RIVALS` has the methods that came before and after the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from fedpage.core.errors import InputError, short_repr
from fedpage.core.validate import as_number

_RANGE = 1e30
"""Above it the fourth powers of the formulas overflow."""


def check_number(
    name: str, value: float, *, positive: bool = True, power: int = 1, bounded: bool = True
) -> None:
    """Check a constant of the formulas.

    Args:
        name: The constant's name.
        value: Its value.
        positive: Whether it must be above 0, and not only at least 0.
        power: The power of a length or of f that the constant is.
        bounded: Whether to refuse values whose powers in the formulas overflow or vanish.

    Raises:
        InputError: The value is out of range.
    """
    number = as_number(value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        least = "above 0" if positive else "of at least 0"
        raise InputError(f"{name} must be a finite number {least}, not {short_repr(value)}")
    low, high = _RANGE**-power, _RANGE**power
    if bounded and not low <= (number if positive else max(number, 1.0)) <= high:
        raise InputError(
            f"{name} must be from {low:g} to {high:g}, not {short_repr(value)}; rescale f or x"
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
        omega: Variance of an unbiased codec, 0 without one.
        alpha: Contraction of a biased codec, 1 without one.
        mu: Strong convexity of every f_i, or None if it is 0 or not known.
        delta: Dissimilarity of the clients' Hessians, or None if it is not known.

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
        for name in ("N", "S", "K", "M", "epsilon", "L", "D0", "R2", "alpha"):
            check_number(name, getattr(self, name))
        for name in ("sigma", "G", "B", "omega"):
            check_number(name, getattr(self, name), positive=False)
        if self.S > self.N:
            raise InputError(f"S must be at most N={self.N}, not {self.S}")
        if self.alpha > 1:
            raise InputError(f"alpha must be at most 1, not {short_repr(self.alpha)}")
        if self.mu is not None:
            check_number("mu", self.mu)
            if self.mu > self.L:
                raise InputError(f"mu must be at most L={self.L:g}, not {short_repr(self.mu)}")
        if self.delta is not None:
            check_number("delta", self.delta, positive=False)

    @property
    def scaled_gap(self) -> float:
        """L (f(x0) - f*), a factor of every nonconvex term."""
        return self.L * self.D0


@dataclass(frozen=True)
class RoundCosts:
    """The costs of an average round of a method.

    Attributes:
        clients: Clients called.
        down: Vectors that a called client receives.
        up: Vectors that it sends uncompressed.
        gradients: Row gradients that it computes.
        coded: Vectors that it sends through the codec.
    """

    clients: float
    down: float
    up: float
    gradients: float
    coded: float = 0.0


Formula = Callable[[Setting], float]


@dataclass(frozen=True)
class Entry:
    """A row of the tables.

    Attributes:
        method: The method's name.
        source: The paper of the analysis.
        assumption: The assumptions. BV: bounded variance of rows within a client (sigma).
            (G,B)-BGD: bounded gradient dissimilarity of clients. C: the codec of replies.
        costs: The costs of an average round, without first rounds that differ.
        convex: Rounds for a convex f, or None if the paper has no result, as in the next three.
        nonconvex: Rounds for a nonconvex f.
        convex_gradients: Gradients per client for a convex f.
        nonconvex_gradients: Gradients per client for a nonconvex f.
        all_clients: Whether the analysis needs S = N.
        convex_needs: Fields of `Setting` without which `convex` cannot be evaluated.
        nonconvex_needs: Fields of `Setting` without which `nonconvex` cannot be evaluated.
        codec: The codecs that the analysis covers: "unbiased", "contractive", or "" for none.
        unverified: Which of "convex" and "nonconvex" were not checked against a proof or a paper.
    """

    method: str
    source: str
    assumption: str
    costs: Callable[[Setting], RoundCosts]
    _: KW_ONLY
    convex: Formula | None = None
    nonconvex: Formula | None = None
    convex_gradients: Formula | None = None
    nonconvex_gradients: Formula | None = None
    all_clients: bool = False
    convex_needs: tuple[str, ...] = ()
    nonconvex_needs: tuple[str, ...] = ()
    codec: str = ""
    unverified: tuple[str, ...] = ()


def convex_case(N: int, S: int) -> tuple[str, float]:
    """Find which of FedPAGE's three convex cases applies (Theorem 3, as the paper states it).

    `convex_page` needs fewer rounds if S > sqrt(N) (docs/theory.md).

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


def _fedavg_strongly_convex(s: Setting) -> float:
    mu, e = _known(s.mu), s.epsilon
    noise = s.sigma**2 / s.K + (1 - s.S / s.N) * s.G**2
    drift = math.sqrt(s.L) * s.G / (mu * math.sqrt(e))
    return noise / (mu * s.S * e) + drift + _linear(s, (1 + s.B**2) * s.L / mu)


def _scaffold_strongly_convex(s: Setting) -> float:
    mu = _known(s.mu)
    return s.sigma**2 / (mu * s.S * s.K * s.epsilon) + _linear(s, s.L / mu + s.N / s.S)


def _known(value: float | None) -> float:
    """Return a constant that the entry's needs guarantee."""
    assert value is not None
    return value


def _linear(s: Setting, factor: float) -> float:
    """Return the rounds of a linear rate: a factor times log(D0/epsilon)."""
    return factor * math.log(max(math.e, s.D0 / s.epsilon))


def _nonconvex(s: Setting, factor: float) -> float:
    """Return gradient descent's L D0/epsilon^2 times a factor."""
    return s.scaled_gap / s.epsilon**2 * factor


def _convex(s: Setting, factor: float) -> float:
    """Return gradient descent's L R2/epsilon times a factor."""
    return s.L * s.R2 / s.epsilon * factor


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


def _share(rounds: Formula) -> Formula:
    """Return gradients per client if S sampled clients take K steps: rounds times S K/N."""
    return lambda s: rounds(s) * s.S * s.K / s.N


def _work(rounds: Formula, batch: Formula) -> Formula:
    """Return gradients per client of FedPAGE: rounds times S (batch + K)/N."""
    return lambda s: rounds(s) * s.S * (batch(s) + s.K) / s.N


# Costs of average rounds


def fedpage_costs(s: Setting, K: int) -> RoundCosts:
    """Average over full rounds (probability p = S/N) and rounds of local steps at S clients."""
    p = s.S / s.N
    clients = p * s.N + (1 - p) * s.S
    down = (p * s.N * 1 + (1 - p) * s.S * 2) / clients
    work = p * s.M + (1 - p) * (2 * s.M + 2 * (K - 1))
    return RoundCosts(clients, down, 1, work)


def _svrg_costs(s: Setting) -> RoundCosts:
    """Average over a full gradient and 1/q rounds of local steps, q = min(1, K/M).

    Only the first of these local rounds sends the full gradient beside the model.
    """
    local_rounds = 1 / min(1.0, s.K / s.M)
    down = (1 + 2 + (local_rounds - 1) * 1) / (1 + local_rounds)
    return RoundCosts(s.N, down, 1, (s.M + local_rounds * 2 * s.K) / (1 + local_rounds))


def _proximal_costs(s: Setting, S: int, down: float, up: float, again: float = 0.0) -> RoundCosts:
    """Average over proximal steps at S clients and, with probability S/N, a full gradient before.

    Args:
        s: The setting.
        S: Clients that take proximal steps.
        down: Vectors to each of them.
        up: Vectors from each of them.
        again: Vectors that a message right after a full gradient does not need.
    """
    p = S / s.N
    calls = S + p * s.N
    vectors_down = S * (down - p * again) + p * s.N
    work = S * (s.K + 1) * s.M + p * s.N * s.M
    return RoundCosts(
        calls / (1 + p), vectors_down / calls, (S * up + p * s.N) / calls, work / calls
    )


def _fedpage(
    source: str, assumption: str, convex_batch: Formula, nonconvex_batch: Formula
) -> Entry:
    """Return an entry of FedPAGE, whose analyses differ in the minibatches of full rounds."""
    return Entry(
        "FedPAGE",
        source,
        assumption,
        lambda s: fedpage_costs(s, s.K),
        convex=_fedpage_convex,
        nonconvex=_fedpage_nonconvex,
        convex_gradients=_work(_fedpage_convex, convex_batch),
        nonconvex_gradients=_work(_fedpage_nonconvex, nonconvex_batch),
    )


PRINTED = "minibatches, as printed"
TABLE: tuple[Entry, ...] = (
    Entry(
        "FedAvg",
        "Yu et al. 2019",
        "smooth, BV, (G,0)-BGD",
        lambda s: RoundCosts(s.N, 1, 1, s.K),
        nonconvex=lambda s: (
            s.scaled_gap
            * (
                s.G**2 * s.N * s.K / s.epsilon**2 / s.scaled_gap
                + s.sigma**2 / (s.N * s.K * s.epsilon**4)
            )
        ),
        nonconvex_gradients=lambda s: (
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
        lambda s: RoundCosts(s.S, 1, 1, s.K),
        convex=_fedavg_convex,
        nonconvex=_fedavg_nonconvex,
        convex_gradients=_share(_fedavg_convex),
        nonconvex_gradients=_share(_fedavg_nonconvex),
    ),
    Entry(
        "FedProx",
        "Sahu et al. 2018",
        "smooth, (0,B)-BGD, S = N",
        lambda s: RoundCosts(s.N, 1, 1, s.K),
        convex=lambda s: s.L * s.R2 * s.B**2 / s.epsilon,
        convex_gradients=lambda s: s.L * s.R2 * s.B**2 / s.epsilon,
        all_clients=True,
    ),
    Entry(
        "VRL-SGD",
        "Liang et al. 2019",
        "smooth, BV, S = N",
        lambda s: RoundCosts(s.N, 1, 1, s.K),
        nonconvex=lambda s: (
            s.scaled_gap * (s.N / s.epsilon**2 + s.N * s.sigma**2 / (s.K * s.epsilon**4))
        ),
        nonconvex_gradients=lambda s: (
            s.scaled_gap * (s.N * s.K / s.epsilon**2 + s.N * s.sigma**2 / s.epsilon**4)
        ),
        all_clients=True,
    ),
    Entry(
        "S-Local-SVRG",
        "Gorbunov et al. 2020",
        "smooth, S = N, K <= M",
        _svrg_costs,
        convex=lambda s: (
            s.L * s.R2 * ((s.M / s.K) ** (1 / 3) + math.sqrt(s.M / (s.N * s.K**2))) / s.epsilon
        ),
        convex_gradients=lambda s: (
            s.L * s.R2 * (s.K + math.sqrt(s.M / s.N) + s.M ** (1 / 3) * s.K ** (2 / 3)) / s.epsilon
        ),
        all_clients=True,
    ),
    Entry(
        "SCAFFOLD",
        "Karimireddy et al. 2020",
        "smooth, BV",
        lambda s: RoundCosts(s.S, 2, 1, s.K),
        convex=_scaffold_convex,
        nonconvex=_scaffold_nonconvex,
        convex_gradients=_share(_scaffold_convex),
        nonconvex_gradients=_share(_scaffold_nonconvex),
    ),
    _fedpage("Zhao, Li, Richtárik 2021", "smooth", lambda s: s.M, lambda s: s.M),
    _fedpage(
        PRINTED,
        "smooth, BV",
        lambda s: s.N**1.5 * s.sigma**2 * s.R2 / (s.S * s.epsilon**2),
        lambda s: s.N * s.sigma**2 / (s.S * s.epsilon**2),
    ),
    _fedpage(
        "minibatches, from b2",
        "smooth, BV",
        lambda s: s.N**1.5 * s.sigma**2 / (s.S**2 * s.epsilon) / s.L,
        lambda s: s.N * s.sigma**2 / (s.S**2 * s.epsilon**2),
    ),
)
"""Every row of Tables 1 and 2, in the paper's order. FedPAGE's second row occurs twice: as the
paper prints it, and as its b2 gives it."""


STRONGLY_CONVEX: tuple[Entry, ...] = (
    Entry(
        "FedAvg",
        "Karimireddy et al. 2020, mu",
        "smooth, BV, (G,B)-BGD",
        lambda s: RoundCosts(s.S, 1, 1, s.K),
        convex=_fedavg_strongly_convex,
        convex_needs=("mu",),
    ),
    Entry(
        "SCAFFOLD",
        "Karimireddy et al. 2020, mu",
        "smooth, BV",
        lambda s: RoundCosts(s.S, 2, 1, s.K),
        convex=_scaffold_strongly_convex,
        convex_needs=("mu",),
    ),
)
"""Theorems I and III of the paper, up to constants and logarithms of noise terms."""


RIVALS: tuple[Entry, ...] = (
    Entry(
        "SAGA",
        "as COFIG, no codec",
        "smooth",
        lambda s: RoundCosts(s.S, 1, 1, s.M),
        convex=lambda s: _cofig_convex(replace(s, omega=0.0)),
        nonconvex=lambda s: _cofig_nonconvex(replace(s, omega=0.0)),
        unverified=("nonconvex",),
    ),
    Entry(
        "ZeroSARAH",
        "Li, Hanzely, Richtárik 2021",
        "smooth",
        lambda s: RoundCosts(s.S, 2, 2, 2 * s.M),
        nonconvex=lambda s: _nonconvex(s, 1 + math.sqrt(s.N) / s.S),
    ),
    Entry(
        "COFIG",
        "Zhao et al. 2021, COFIG",
        "smooth, unbiased C",
        lambda s: RoundCosts(s.S, 1, 0, s.M, coded=1),
        convex=_cofig_convex,
        nonconvex=_cofig_nonconvex,
        codec="unbiased",
        unverified=("nonconvex",),
    ),
    Entry(
        "DIANA",
        "Horváth et al. 2019",
        "smooth, unbiased C, S = N",
        lambda s: RoundCosts(s.N, 1, 0, s.M, coded=1),
        convex=lambda s: _linear(s, 1 + s.omega + s.L / _known(s.mu) * (1 + s.omega / s.N)),
        nonconvex=lambda s: _nonconvex(s, (1 + s.omega) * math.sqrt(1 + s.omega / s.N)),
        all_clients=True,
        convex_needs=("mu",),
        codec="unbiased",
    ),
    Entry(
        "FRECON",
        "Zhao et al. 2021, COFIG",
        "smooth, unbiased C",
        lambda s: RoundCosts(s.S, 2, 0, 2 * s.M, coded=2),
        nonconvex=lambda s: _nonconvex(s, 1 + (1 + s.omega) * math.sqrt(s.N) / s.S),
        codec="unbiased",
    ),
    Entry(
        "DASHA-PP",
        "Tyurin, Richtárik 2023",
        "smooth, unbiased C",
        lambda s: RoundCosts(s.S, 2, 0, 2 * s.M, coded=1),
        nonconvex=_dasha,
        codec="unbiased",
    ),
    Entry(
        "EF21",
        "Richtárik et al. 2021",
        "smooth, contractive C, S = N",
        lambda s: RoundCosts(s.N, 1, 0, s.M, coded=1),
        convex=lambda s: _linear(s, (1 + s.L / _known(s.mu)) / s.alpha),
        nonconvex=lambda s: _nonconvex(s, 1 / s.alpha),
        all_clients=True,
        convex_needs=("mu",),
        codec="contractive",
        unverified=("convex",),
    ),
    Entry(
        "EF21-PP",
        "Fatkhullin et al. 2021",
        "smooth, contractive C",
        lambda s: RoundCosts(s.S, 1, 0, s.M, coded=1),
        nonconvex=lambda s: _nonconvex(s, s.N / (s.S * s.alpha)),
        codec="contractive",
    ),
    Entry(
        "Scaffnew",
        "Mishchenko et al. 2022",
        "smooth, S = N",
        lambda s: RoundCosts(s.N, 1, 1, math.sqrt(s.L / _known(s.mu)) * s.M),
        convex=lambda s: _linear(s, math.sqrt(s.L / _known(s.mu))),
        all_clients=True,
        convex_needs=("mu",),
    ),
    Entry(
        "SVRP",
        "Khaled, Jin 2023",
        "exact solves",
        lambda s: _proximal_costs(s, s.S, down=3, up=1),
        convex=_svrp,
        convex_needs=("mu", "delta"),
    ),
    Entry(
        "SABER",
        "Mishchenko et al. 2023",
        "exact solves, S = 1",
        lambda s: _proximal_costs(s, 1, down=3, up=2 - 1 / s.N, again=1),
        convex=_saber_convex,
        nonconvex=_saber_nonconvex,
        convex_needs=("mu", "delta"),
        nonconvex_needs=("delta",),
        unverified=("convex", "nonconvex"),
    ),
)
"""Analyses of methods that the paper's tables do not have. The theorems of MARINA and S-DANE,
which have explicit constants, are evaluated by `fedpage.theory.planner`. Rounds are exchanges: a
method that calls its clients twice in an iteration counts two."""
