"""Compute what each theorem gives: a method's hyper-parameters and the rounds that it guarantees.

The theorems hide constants in O(...). The constants here are explicit: they are read off the last
lines of the proofs (docs/theory.md shows where), so that `rounds` is a bound. All bounds are on the
mean over rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedpage.core.errors import InputError
from fedpage.methods import PAGE, SCAFFOLD, FedAvg, FedPAGE
from fedpage.methods.steps import (
    check_variant,
    fedpage_nonconvex,
    nonconvex_batches,
    page_nonconvex,
)
from fedpage.theory.tables import check_range


@dataclass(frozen=True)
class Tuned:
    """A method with a theorem's hyper-parameters, and what the theorem guarantees.

    Attributes:
        method: The method.
        rounds: Rounds after which the mean over rounds is at most epsilon: of the gradient norm,
            or of f(x) - f* in the convex case.
        theorem: The theorem's name.
        variant: "corrected", or "printed" for the constants that the paper prints.
    """

    method: FedPAGE
    rounds: float
    theorem: str
    variant: str


def _check_constants(N: int, S: int, epsilon: float, **positive: float) -> float:
    """Check the constants and return p = S/N."""
    if isinstance(N, bool) or not hasattr(N, "__index__") or N < 1:
        raise InputError(f"N must be a whole number of at least 1, not {N!r}")
    if isinstance(S, bool) or not hasattr(S, "__index__") or not 1 <= S <= N:
        raise InputError(f"S must be a whole number from 1 to N={N}, not {S!r}")
    for name, value in {"epsilon": epsilon, **positive}.items():
        if not (isinstance(value, (int, float)) and math.isfinite(value)) or value <= 0:
            raise InputError(f"{name} must be a finite number above 0, not {value!r}")
        check_range(name, value)
    return S / N


def _check_variance(sigma2: float) -> None:
    if not math.isfinite(sigma2) or sigma2 < 0:
        raise InputError(f"sigma2 must be a finite number of at least 0, not {sigma2!r}")
    check_range("sigma2", max(sigma2, 1.0), 2)


def nonconvex_page(
    *, L: float, N: int, S: int, D0: float, epsilon: float, variant: str = "corrected"
) -> Tuned:
    """Tune PAGE (K = 1) for a nonconvex f by Theorem 1.

    The proof gives: sum of E|grad f(x^r)|^2 <= 2 D0/eta_g, hence R = 2 D0/(eta_g epsilon^2).

    Args:
        L: Average smoothness of the f_i (Assumption 2).
        N: Clients.
        S: Clients sampled in a round.
        D0: f(x0) - f*.
        epsilon: Bound of E|grad f|.
        variant: "corrected" or "printed".

    Returns:
        PAGE with its step, and R.

    Raises:
        InputError: A constant is out of range.

    >>> tuned = nonconvex_page(L=1.0, N=100, S=10, D0=1.0, epsilon=0.1)
    >>> round(tuned.method.eta_g, 6), round(tuned.rounds, 3)  # c = 0.9, eta_g = 1/(1 + sqrt 0.9)
    (0.513167, 389.737)
    """
    p = _check_constants(N, S, epsilon, L=L, D0=D0)
    eta_g = page_nonconvex(L, N, S, p, variant)
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), 2 * D0 / (eta_g * epsilon**2), "Theorem 1", variant)


def nonconvex_fedpage(
    *,
    L: float,
    N: int,
    S: int,
    K: int,
    D0: float,
    epsilon: float,
    sigma2: float = 0.0,
    M: int | None = None,
    variant: str = "corrected",
) -> Tuned:
    """Tune FedPAGE for a nonconvex f by Theorem 2.

    With full minibatches (sigma2 = 0, or both b >= M) the proof's last line gives
    R = 4 D0/(eta_g epsilon^2). With smaller ones its error terms leave
    R = 16 D0/(eta_g epsilon^2) + 1.

    Args:
        L: Smoothness of every f_ij (Assumption 1).
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        D0: f(x0) - f*.
        epsilon: Bound of E|grad f|.
        sigma2: Variance of the rows' gradients within a client; 0 uses full minibatches.
        M: Rows per client; minibatches that large are full.
        variant: "corrected" or "printed".

    Returns:
        FedPAGE with its steps and minibatches, and R.

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, epsilon, L=L, D0=D0)
    _check_variance(sigma2)
    if isinstance(K, bool) or K < 1:
        raise InputError(f"K must be a whole number of at least 1, not {K!r}")
    eta_g, eta_l = fedpage_nonconvex(L, N, S, K, p, variant)
    b1, b2 = _at_most(nonconvex_batches(sigma2, epsilon, S, p), M)
    method = FedPAGE(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)
    full = b1 is None and b2 is None
    rounds = 4 * D0 / (eta_g * epsilon**2) if full else 16 * D0 / (eta_g * epsilon**2) + 1
    return Tuned(method, rounds, "Theorem 2", variant)


def _at_most(
    batches: tuple[int | None, int | None], M: int | None
) -> tuple[int | None, int | None]:
    """Limit minibatches to M rows; None stands for all rows."""
    b1, b2 = (None if b is None or (M is not None and b >= M) else b for b in batches)
    return b1, b2


def _delta(N: int, S: int) -> float:
    """Compute the proofs' weight between the two descent lemmas: delta = N^(3/4)/S."""
    return float(N**0.75 / S)


def convex_page(*, L: float, N: int, S: int, R2: float, epsilon: float) -> Tuned:
    """Tune PAGE for a convex f by Theorem 3.

    eta_g is the largest with w <= 0 in the proof: 1/(L c), where
    c = (1 + 1/sqrt(Sp)) + (1-p)/(p^1.5 sqrt(S) (1+delta)) + (1-p)/sqrt(pS)
    + (1-p)^2/(p (1+delta) sqrt(pS)). Then R = (1/(2 eta_g) + L delta/2) R2/epsilon.

    Args:
        L: Average smoothness of the f_i (Assumption 2).
        N: Clients.
        S: Clients sampled in a round.
        R2: |x0 - x*|^2.
        epsilon: Bound of the mean of f(x) - f*.

    Returns:
        PAGE with its step, and R.

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, epsilon, L=L, R2=R2)
    delta, q = _delta(N, S), 1 - p
    c = 1 + 1 / math.sqrt(S * p) + q / (p**1.5 * math.sqrt(S) * (1 + delta)) + q / math.sqrt(p * S)
    c += q**2 / (p * (1 + delta) * math.sqrt(p * S))
    eta_g = 1 / (L * c)
    rounds = (1 / (2 * eta_g) + L * delta / 2) * R2 / epsilon
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), rounds, "Theorem 3", "corrected")


def convex_fedpage(
    *,
    L: float,
    N: int,
    S: int,
    K: int,
    R2: float,
    epsilon: float,
    sigma2: float = 0.0,
    M: int | None = None,
    variant: str = "corrected",
) -> Tuned:
    """Tune FedPAGE for a convex f by Theorem 4.

    The paper leaves eta_g and eta_l to "a small constant". Here they are the largest that satisfy
    the inequalities at the end of the proof, with the factors of L and p that the text omits
    (docs/theory.md). eta_g is then reduced by a tenth, so that eta_l can be positive.
    R = ((2 delta + 1) (f(x0) - f*) + 2 R2/eta_g)/epsilon with full minibatches and 16/9 of that
    with smaller ones, where f(x0) - f* <= L R2/2. eta_l depends on R, as in the paper.

    Args:
        L: Smoothness of every f_ij (Assumption 1).
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        R2: |x0 - x*|^2.
        epsilon: Bound of the mean of f(x) - f*.
        sigma2: Variance of the rows' gradients within a client; 0 uses full minibatches.
        M: Rows per client; minibatches that large are full.
        variant: "printed" takes the paper's b1 and b2, "corrected" those that the inequalities
            need.

    Returns:
        FedPAGE with its steps and minibatches, and R.

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, epsilon, L=L, R2=R2)
    _check_variance(sigma2)
    check_variant(variant)
    if isinstance(K, bool) or K < 1:
        raise InputError(f"K must be a whole number of at least 1, not {K!r}")
    delta = _delta(N, S)
    unit = (1 + delta) * p / (L * (1 + math.sqrt(1 / (S * p))))  # the theorem's order of eta_g

    def holds(eta_g: float, local: float, T: float) -> bool:
        """Check the proof's inequalities; local = 12 K^2 L^2 eta_l^2 T, c' = 2 T eta_g/p."""
        w1, w2 = _weights(L, S, p, delta, eta_g, local)
        noise = p * eta_g / (16 * w1)  # of the minibatches, in units of epsilon; see below
        drift = local * 2 * eta_g**2 / p**2
        return (
            (1 + delta) * w2 + 3 * (1 - p / 3) * L**2 / (p * S) * w1 <= 0
            and drift * S * noise / 6 <= eta_g / 16
            and drift + 12 * local / T * w1 / p**2 <= eta_g / (4 * L)
        )

    eta_g = 0.9 * _largest(lambda eta: eta == 0 or holds(eta, 0.0, 1.0), unit)
    gap = L * R2 / 2
    full = sigma2 == 0
    rounds = ((2 * delta + 1) * gap + 2 * R2 / eta_g) / epsilon * (1 if full else 16 / 9)
    rounds = max(rounds, 1 / (3 * p), 1.0)  # so that the first round's error averages out
    local = _largest(lambda value: holds(eta_g, value, rounds), 1.0)
    eta_l = math.sqrt(local / (12 * rounds)) / (K * L)  # S/(N^(5/4) K L sqrt(R)) up to the constant
    # the lemma of Theorem 2, which this proof uses too
    eta_l = min(eta_l, math.sqrt(2) * p / (24 * math.sqrt(S) * K * L))
    batches: tuple[int | None, int | None] = (None, None)
    if not full and variant == "printed":
        batches = (
            math.ceil(24 * sigma2 / (math.sqrt(p * S) * epsilon)),
            math.ceil(48 * sigma2 / (p**1.5 * math.sqrt(S) * epsilon)),
        )
    elif not full:
        # (3/p) noise w1 (T + 1/(3p)) <= 3 eta_g epsilon T/8: b1 gets a third of the noise
        w1, _ = _weights(L, S, p, delta, eta_g, local)
        noise = p * eta_g * epsilon / (16 * w1)
        batches = (
            math.ceil(3 * p * sigma2 / (N * noise)),
            math.ceil(1.5 * (4 * (1 - p / 2) + p / 6) * sigma2 / (S * noise)),
        )
    b1, b2 = _at_most(batches, M)
    method = FedPAGE(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)
    return Tuned(method, rounds, "Theorem 4", variant)


def _weights(
    L: float, S: int, p: float, delta: float, eta_g: float, local: float
) -> tuple[float, float]:
    """Compute w_1 and w_2 of Theorem 4's proof, with lambda = 1/sqrt(Sp) and c = sqrt(Sp)/L."""
    lam, c = 1 / math.sqrt(S * p), math.sqrt(S * p) / L
    drift = local * 2 * eta_g**2 / p**2  # 12 K^2 L^2 eta_l^2 (c' eta_g/(2p) + T eta_g^2/p^2)
    w1 = eta_g * (1 + delta) / (2 * L * lam) + c * eta_g / (2 * p) + eta_g * c / (2 * p) + drift
    w2 = (L * eta_g * (lam + 1) - 1) / 2
    w2 += (eta_g / (2 * c * p) + 0.5 + eta_g / (2 * p * c) + drift * L**2) / (1 + delta)
    return w1, w2


def _largest(holds: Callable[[float], bool], scale: float) -> float:
    """Find the largest value at which a condition holds, by bisection; it must hold at 0."""
    low, high = 0.0, scale
    while holds(high) and high < 1e12 * scale:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def scaffold_steps(
    *, L: float, N: int, S: int, K: int, convex: bool, eta_g: float = 1.0
) -> SCAFFOLD:
    """Tune SCAFFOLD by Karimireddy et al. 2020, Theorem III, with its largest steps.

    K eta_g eta_l is 1/(81 L) for a convex f and (S/N)^(2/3)/(24 L) otherwise.

    Args:
        L: Smoothness of the rows.
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        convex: Whether f is convex.
        eta_g: The server's step.

    Returns:
        SCAFFOLD with its steps.

    Raises:
        InputError: A constant is out of range.
    """
    _check_constants(N, S, 1.0, L=L, eta_g=eta_g)
    step = 1 / (81 * L) if convex else (S / N) ** (2 / 3) / (24 * L)
    return SCAFFOLD(S=S, K=K, eta_g=eta_g).with_step(step)


def fedavg_steps(
    *, L: float, N: int, S: int, K: int, B: float, convex: bool, eta_g: float = 1.0
) -> FedAvg:
    """Tune FedAvg by Karimireddy et al. 2020, Theorem V, with its largest steps.

    K eta_g eta_l is 1/(6 (1 + B^2) L) for a convex f and 1/(8 (1 + B^2) L) otherwise.

    Args:
        L: Smoothness of the rows.
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        B: The relative part of the clients' dissimilarity.
        convex: Whether f is convex.
        eta_g: The server's step.

    Returns:
        FedAvg with its steps.

    Raises:
        InputError: A constant is out of range.
    """
    _check_constants(N, S, 1.0, L=L, B=B, eta_g=eta_g)
    return FedAvg(S=S, K=K, eta_g=eta_g).with_step(1 / ((6 if convex else 8) * (1 + B**2) * L))
