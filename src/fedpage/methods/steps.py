"""Step sizes of theorems, as functions of constants.

`fedpage.theory` adds the rounds that the theorems guarantee.
"""

from __future__ import annotations

import math

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Smoothness

VARIANTS = ("corrected", "printed")


def check_variant(variant: str) -> None:
    """Check that the variant is "corrected" or "printed"."""
    if variant not in VARIANTS:
        raise InputError(
            f"variant must be 'corrected' or 'printed', not {short_repr(variant)}"
        )


def page_nonconvex(
    L: float, N: int, S: int, p: float, variant: str = "corrected"
) -> float:
    """Return eta_g of Theorem 1 (K = 1): 1/(L (1 + sqrt((1-p)/(pS)))).

    The paper prints 2pS instead of pS, a step at which PAGE can diverge.

    >>> page_nonconvex(L=2.0, N=100, S=10, p=0.1)
    0.25658...
    """
    check_variant(variant)
    c = (1 - p) / ((2 if variant == "printed" else 1) * p * S)
    return 1 / (L * (1 + math.sqrt(c)))


def fedpage_nonconvex(
    L: float, N: int, S: int, K: int, p: float, variant: str = "corrected"
) -> tuple[float, float]:
    """Return eta_g and eta_l of Theorem 2.

    eta_g = 1/(L (1 + sqrt(3(1-p/3)/(pS)))), where the paper prints 2pS instead of pS
    (its proof does not cover that step where 3(1-p/3) > 2pS), and
    eta_l = sqrt(2) p/(24 sqrt(S) K L).

    >>> steps = fedpage_nonconvex(L=14.0, N=3250, S=10, K=10, p=10 / 3250)
    >>> [round(1000 * eta, 4) for eta in steps]
    [6.5717, 0.0004]
    """
    check_variant(variant)
    c = 3 * (1 - p / 3) / ((2 if variant == "printed" else 1) * p * S)
    return 1 / (L * (1 + math.sqrt(c))), math.sqrt(2) * p / (24 * math.sqrt(S) * K * L)


def page_strongly_convex(L: float, mu: float, S: int, p: float) -> float:
    """Return eta_g of PAGE for a mu-strongly convex f (docs/theory.md).

    It is the smaller of 1/(L (1 + sqrt(2(1-p)/(pS)))) and p/(2 mu), or 1/L where p = 1.

    >>> page_strongly_convex(L=2.0, mu=0.1, S=10, p=0.1)
    0.21352...
    """
    check_strong_convexity(L, mu)
    if p == 1:
        return 1 / L
    return min(1 / (L * (1 + math.sqrt(2 * (1 - p) / (p * S)))), p / (2 * mu))


def fedpage_strongly_convex(
    L: float, mu: float, S: int, K: int, p: float
) -> tuple[float, float]:
    """Return eta_g and eta_l of FedPAGE for a mu-strongly convex f (docs/theory.md).

    eta_g is the smaller of 1/(L (1 + 2 sqrt((1 - 5p/12)/(pS)))) and p/(4 mu), and
    eta_l = p/(24 sqrt(S) K L).
    """
    check_strong_convexity(L, mu)
    eta_g = min(1 / (L * (1 + 2 * math.sqrt((1 - 5 * p / 12) / (p * S)))), p / (4 * mu))
    return eta_g, p / (24 * math.sqrt(S) * K * L)


def check_strong_convexity(L: float, mu: float) -> None:
    """Check that 0 < mu <= L."""
    if not 0 < mu <= L:
        raise InputError(
            f"mu must be above 0 and at most L={L:g}, not {short_repr(mu)}"
        )


def nonconvex_batches(
    sigma2: float, epsilon: float, S: int, p: float
) -> tuple[int | None, int | None]:
    """Return b1 and b2 of Theorem 2, before the minimum with M.

    b1 = 24 sigma^2/(S epsilon^2) and b2 = 48 sigma^2/(p S epsilon^2). Both are None
    (all rows) where sigma^2 = 0.
    """
    if sigma2 == 0:
        return None, None
    b1, b2 = 24 * sigma2 / (S * epsilon**2), 48 * sigma2 / (p * S * epsilon**2)
    return max(1, math.ceil(b1)), max(1, math.ceil(b2))


def marina(
    L: Smoothness,
    N: int,
    S: int,
    p: float,
    omega: float,
    b: int | None = None,
    variant: str = "refined",
    *,
    joint: bool = False,
) -> float:
    """Return eta_g of MARINA's theorems.

    A mean of S compressed differences has a variance of at most V/S |x - x_prev|^2. The
    proof of each theorem then needs eta_g <= 1/(L + sqrt((1-p) V/(p S))).

    "refined" counts that clients are sampled without replacement:
    V = (omega + (N-S)/(N-1)) Lbar^2 + (1 + omega) Lrow^2/b, with L of f itself. At
    S = N this is Theorem 3.1 (VR-MARINA), and with all rows Theorem 2.1 (MARINA) but
    for L. "printed" has Theorem 2.1, 1/(Lbar (1 + sqrt((1-p) omega/(p N)))), or for
    S < N Theorem 4.1, which samples with replacement, with 1 + omega for omega.

    Args:
        L: The problem's constants: L, Lbar (`average`) and Lrow.
        N: Clients.
        S: Sampled clients.
        p: Probability of a full round.
        omega: The codec's variance.
        b: Rows in the minibatch of a difference. If None, use all rows.
        variant: "refined" or "printed".
        joint: The codec is PermK: clients send disjoint blocks, so that V is
            S (1 + omega) (Lbar^2 + Lrow^2/b), with omega of a codec that follows.

    >>> L = Smoothness(row=4.0, client=2.0, average=2.0, whole=1.0)
    >>> [round(marina(L, 100, S, 0.1, 9.0), 4) for S in (10, 100)]
    [0.1434, 0.3571]
    >>> round(marina(L, 100, 10, 0.1, 0.0, variant="printed"), 5)  # PAGE
    0.25658
    """
    if variant not in ("refined", "printed"):
        raise InputError(
            f"variant must be 'refined' or 'printed', not {short_repr(variant)}"
        )
    rows = 0.0 if b is None else L.row**2 / b
    if variant == "printed" and b is None:
        each = omega if S == N else 1 + omega  # Theorems 2.1, 4.1
        return 1 / (L.average * (1 + math.sqrt((1 - p) * each / (p * S))))
    if variant == "printed" and S < N:
        raise InputError("MARINA has no theorem for minibatches at sampled clients")
    V = (omega + (N - S) / max(1, N - 1)) * L.average**2 + (1 + omega) * rows
    if joint:
        V = S * (1 + omega) * (L.average**2 + rows)
    return 1 / (L.whole + math.sqrt((1 - p) * V / (p * S)))


def svrp(L: float, mu: float, delta: float) -> tuple[float | None, float, int]:
    """Return gamma = mu/(2 delta^2), eta_l and K of SVRP (docs/methods/svrp.md).

    After K steps the error of a subproblem is at most s/16 of that at the start, where
    s = gamma mu/(1 + gamma mu). Where delta = 0, gamma is infinite: None.

    >>> svrp(L=8.0, mu=0.5, delta=0.5)
    (1.0, 0.1111111111111111, 22)
    """
    gamma = mu / (2 * delta**2) if delta**2 > 0 else None
    prox = 0.0 if gamma is None else 1 / gamma
    K = _steps_to(mu / (mu + prox) / 16, mu + prox, L + prox)
    return gamma, 1 / (L + prox), K


def s_dane(L: float, delta: float, mu: float = 0.0) -> tuple[float, float, int]:
    """Return lam = 2 delta, eta_l and K of S-DANE (docs/methods/s-dane.md).

    After K steps a subproblem's gradient at y is at most lam |y - z|/2.

    >>> s_dane(L=8.0, delta=0.5)
    (1.0, 0.125, 25)
    """
    lam = 2 * delta
    K = _steps_to(lam / (lam + 2 * (L + lam)), mu + lam, L + lam)
    return lam, 1 / L, K


def icgm(
    L: float, delta: float, delta1: float, N: int, S: int
) -> tuple[float, float, float]:
    """Return lam, beta and p of I-CGM-RG-SAGA (Theorem 6.1).

    lam = 3 delta1 + 113 sqrt(N/S) delta_S, beta = S/(112 N), p = (lam - delta1)/(8 (L +
    lam)), where delta_S = delta sqrt((N-S)/((N-1) S)).

    >>> icgm(L=8.0, delta=0.1, delta1=0.2, N=1, S=1)[0]
    0.6000000000000001
    """
    delta_S = delta * math.sqrt((N - S) / (max(N - 1, 1) * S))
    lam = 3 * delta1 + 113 * math.sqrt(N / S) * delta_S
    return lam, S / (112 * N), (lam - delta1) / (8 * (L + lam))


def _steps_to(factor: float, mu: float, L: float) -> int:
    """Return the steps 1/L of gradient descent that reduce an error by this factor."""
    if mu >= L:
        return 1
    return max(1, math.ceil(math.log(factor) / math.log1p(-mu / L)))
