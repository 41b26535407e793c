"""Each theorem as a function: from the constants to a tuned method and the rounds that its proof guarantees.

The theorems hide constants in O(...). The numbers here are explicit: they are read off the last lines of the proofs
(docs/theory.md shows where), so `rounds` is a bound and no guess. All bounds are on the mean over rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
    """A method with a theorem's hyper-parameters, and what the theorem promises."""

    method: Any
    rounds: float
    """Rounds after which the mean over rounds is at most epsilon (gradient norm, or gap of f in the convex case)."""
    theorem: str
    variant: str


def _constants(N: int, S: int, epsilon: float, **positive: float) -> float:
    """p = S/N, after refusing what cannot be."""
    if isinstance(N, bool) or not hasattr(N, "__index__") or N < 1:
        raise InputError(f"N must be a whole number of at least 1, not {N!r}")
    if isinstance(S, bool) or not hasattr(S, "__index__") or not 1 <= S <= N:
        raise InputError(f"S must be a whole number from 1 to N={N}, not {S!r}")
    for name, value in {"epsilon": epsilon, **positive}.items():
        if not (isinstance(value, (int, float)) and math.isfinite(value)) or value <= 0:
            raise InputError(f"{name} must be a finite number above 0, not {value!r}")
        check_range(name, value)
    return S / N


def _variance(sigma2: float) -> None:
    if not math.isfinite(sigma2) or sigma2 < 0:
        raise InputError(f"sigma2 must be a finite number of at least 0, not {sigma2!r}")
    check_range("sigma2", max(sigma2, 1.0), 2)


def nonconvex_page(
    *, L: float, N: int, S: int, D0: float, epsilon: float, variant: str = "corrected"
) -> Tuned:
    """Theorem 1: PAGE (K = 1), f_i average L-smooth, D0 = f(x0) - f*. E|grad f| <= epsilon after R rounds.

    Proof: sum of E|grad f(x^r)|^2 <= 2 D0/eta_g, so R = 2 D0/(eta_g epsilon^2).

    >>> tuned = nonconvex_page(L=1.0, N=100, S=10, D0=1.0, epsilon=0.1)
    >>> round(tuned.method.eta_g, 6), round(tuned.rounds, 3)  # c = 0.9, eta_g = 1/(1 + sqrt 0.9)
    (0.513167, 389.737)
    """
    p = _constants(N, S, epsilon, L=L, D0=D0)
    eta_g = page_nonconvex(L, N, S, p, variant)
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), 2 * D0 / (eta_g * epsilon**2), "Theorem 1", variant)


def nonconvex_fedpage(
    *, L: float, N: int, S: int, K: int, D0: float, epsilon: float, sigma2: float = 0.0, M: int | None = None,
    variant: str = "corrected",
) -> Tuned:  # fmt: skip
    """Theorem 2: FedPAGE, every f_ij L-smooth. E|grad f| <= epsilon after R rounds.

    With full minibatches (sigma2 = 0, or both b >= M) the proof's last line gives R = 4 D0/(eta_g epsilon^2); with
    minibatches its error terms leave R = 16 D0/(eta_g epsilon^2) + 1.
    """
    p = _constants(N, S, epsilon, L=L, D0=D0)
    _variance(sigma2)
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
    """min(M, b), None where that is all rows."""
    b1, b2 = (None if b is None or (M is not None and b >= M) else b for b in batches)
    return b1, b2


def _delta(N: int, S: int) -> float:
    """delta = 1/(S^(1/4) p^(3/4)) = N^(3/4)/S, the proofs' weight between the two descent lemmas."""
    return float(N**0.75 / S)


def convex_page(*, L: float, N: int, S: int, R2: float, epsilon: float) -> Tuned:
    """Theorem 3: PAGE on a convex f, R2 = |x0 - x*|^2. Mean gap of f <= epsilon after R rounds.

    eta_g is the largest with w <= 0 in the proof: 1/(L c), c = (1 + 1/sqrt(Sp)) + (1-p)/(p^1.5 sqrt(S) (1+delta))
    + (1-p)/sqrt(pS) + (1-p)^2/(p (1+delta) sqrt(pS)). R = (1/(2 eta_g) + L delta/2) R2/epsilon.
    """
    p = _constants(N, S, epsilon, L=L, R2=R2)
    delta, q = _delta(N, S), 1 - p
    c = 1 + 1 / math.sqrt(S * p) + q / (p**1.5 * math.sqrt(S) * (1 + delta)) + q / math.sqrt(p * S)
    c += q**2 / (p * (1 + delta) * math.sqrt(p * S))
    eta_g = 1 / (L * c)
    rounds = (1 / (2 * eta_g) + L * delta / 2) * R2 / epsilon
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), rounds, "Theorem 3", "corrected")


def convex_fedpage(
    *, L: float, N: int, S: int, K: int, R2: float, epsilon: float, sigma2: float = 0.0, M: int | None = None,
    variant: str = "corrected",
) -> Tuned:  # fmt: skip
    """Theorem 4: FedPAGE on a convex f, every f_ij L-smooth, R2 = |x0 - x*|^2. Mean gap of f <= epsilon after R rounds.

    The paper leaves eta_g and eta_l to 'a small constant'. Here they are the largest that satisfy the inequalities at
    the end of the proof (with the factors of L and p that the text has lost, docs/theory.md), eta_g less a tenth to
    leave room for eta_l. Then R = ((2 delta + 1) (f(x0)-f*) + 2 R2/eta_g)/epsilon with full minibatches, 16/9 of that
    with others, and f(x0) - f* <= L R2/2. eta_l depends on R, as in the paper.
    variant "printed" takes the paper's b1 and b2, "corrected" those that the inequalities need.
    """
    p = _constants(N, S, epsilon, L=L, R2=R2)
    _variance(sigma2)
    check_variant(variant)
    if isinstance(K, bool) or K < 1:
        raise InputError(f"K must be a whole number of at least 1, not {K!r}")
    delta = _delta(N, S)
    unit = (1 + delta) * p / (L * (1 + math.sqrt(1 / (S * p))))  # the theorem's order of eta_g

    def holds(eta_g: float, local: float, T: float) -> bool:
        """The proof's inequalities; local = 12 K^2 L^2 eta_l^2 T, c' = 2 T eta_g/p."""
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
    rounds = max(rounds, 1 / (3 * p), 1.0)  # the first round's own error must be paid for
    local = _largest(lambda value: holds(eta_g, value, rounds), 1.0)
    eta_l = math.sqrt(local / (12 * rounds)) / (K * L)  # S/(N^(5/4) K L sqrt(R)) up to the constant
    eta_l = min(
        eta_l, math.sqrt(2) * p / (24 * math.sqrt(S) * K * L)
    )  # the lemma of Theorem 2, used here too
    batches: tuple[int | None, int | None] = (None, None)
    if not full and variant == "printed":
        batches = (
            math.ceil(24 * sigma2 / (math.sqrt(p * S) * epsilon)),
            math.ceil(48 * sigma2 / (p**1.5 * math.sqrt(S) * epsilon)),
        )
    elif not full:  # (3/p) noise w1 (T + 1/(3p)) <= 3 eta_g epsilon T/8: a third of the noise for b1, the rest for b2
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
    """w_1 and w_2 of Theorem 4's proof, with lambda = 1/sqrt(Sp), c = sqrt(Sp)/L, c' = 2 T eta_g/p."""
    lam, c = 1 / math.sqrt(S * p), math.sqrt(S * p) / L
    drift = local * 2 * eta_g**2 / p**2  # 12 K^2 L^2 eta_l^2 (c' eta_g/(2p) + T eta_g^2/p^2)
    w1 = eta_g * (1 + delta) / (2 * L * lam) + c * eta_g / (2 * p) + eta_g * c / (2 * p) + drift
    w2 = (L * eta_g * (lam + 1) - 1) / 2
    w2 += (eta_g / (2 * c * p) + 0.5 + eta_g / (2 * p * c) + drift * L**2) / (1 + delta)
    return w1, w2


def _largest(holds: Any, scale: float) -> float:
    """The largest value at which a condition that holds at 0 still does, by bisection."""
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
    """SCAFFOLD with the largest steps of its own paper (Karimireddy et al. 2020, Theorem III).

    Nonconvex: K eta_g eta_l = (S/N)^(2/3)/(24 L); convex: 1/(81 L).
    """
    _constants(N, S, 1.0, L=L, eta_g=eta_g)
    step = 1 / (81 * L) if convex else (S / N) ** (2 / 3) / (24 * L)
    return SCAFFOLD(S=S, K=K, eta_g=eta_g).with_step(step)


def fedavg_steps(
    *, L: float, N: int, S: int, K: int, B: float, convex: bool, eta_g: float = 1.0
) -> FedAvg:
    """FedAvg with the largest steps of Karimireddy et al. 2020, Theorem V, under (G, B)-bounded dissimilarity.

    K eta_g eta_l = 1/(6 (1 + B^2) L) for convex, 1/(8 (1 + B^2) L) for nonconvex objectives.
    """
    _constants(N, S, 1.0, L=L, B=B, eta_g=eta_g)
    return FedAvg(S=S, K=K, eta_g=eta_g).with_step(1 / ((6 if convex else 8) * (1 + B**2) * L))
