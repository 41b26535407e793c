"""Step sizes of theorems, as functions of constants.

`fedpage.theory` adds the rounds that the theorems guarantee. The docstrings say what of
each formula was derived or measured for this library. tests/laws compares the bounds
with runs on quadratics.
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


# --- methods whose clients keep a table of gradients ----------------------------------
# omega is the variance of the codec, 0 without one, and alpha its contraction.


def cofig_nonconvex(L: float, N: int, S: int, omega: float = 0.0) -> float:
    """Return COFIG's nonconvex step: the least of three, where W = 1 + omega.

    1/(2L), S/(5 L W N^(2/3)) and S/(5 L W^1.5 sqrt(N)), L = max L_i, as FL_PyTorch
    quotes them, with W^1.5 where it computes W^3/2. The order agrees with the paper's
    rounds, W^1.5 sqrt(N)/(S eps^2) + W N^(2/3)/(S eps^2), and without a codec with that
    of SAGA. The constants 2 and 5 come from that code only.

    >>> round(cofig_nonconvex(L=2.0, N=64, S=4), 6)
    0.025
    """
    W = 1 + omega
    return min(
        1 / (2 * L),
        S / (5 * L * W * math.pow(N, 2 / 3)),
        S / (5 * L * math.pow(W, 1.5) * math.sqrt(N)),
    )


def cofig_convex(L: float, N: int, S: int, omega: float = 0.0) -> float:
    """Return COFIG's convex step: the lesser of two, where W = 1 + omega.

    1/(L (2 + 8 W/S)) and S/(W sqrt(N) L), L = max L_i. FL_PyTorch leaves out the last
    L, without which the second is not a step. At either, derived for this library,
    the mean gap f(x^r) - f* over R rounds is at most
    (|x0 - x*|^2 + 2 N W^2/S^2 eta^2 mean |grad f_i(x*)|^2)/(eta R),
    and the second keeps the table's part of it below 2 mean |grad f_i(x*)|^2/L^2.

    >>> cofig_convex(L=2.0, N=16, S=4)
    0.125
    """
    W = 1 + omega
    return min(1 / (L * (2 + 8 * W / S)), S / (W * math.sqrt(N) * L))


def diana_nonconvex(L: float, N: int, omega: float = 0.0) -> float:
    """Return DIANA's nonconvex step, 1/(10 L sqrt(1 + omega/N) (omega + 2)).

    Horvath et al. 2019, Theorem 4 with m = 1, as FL_PyTorch quotes it. There L is that
    of f; derived for this library, it needs L = max L_i, and 4 is enough for 10: the
    mean of |grad f(x^r)|^2 over R rounds is at most 2 (f(x0) - f* + c H)/(eta R) where
    c = 2 L eta^2 omega (1 + omega)/N and H = mean |grad f_i(x0)|^2.

    >>> diana_nonconvex(L=2.0, N=10)
    0.025
    """
    return 1 / (10 * L * math.sqrt(1 + omega / N) * (omega + 2))


def diana_strongly_convex(
    L: float, mu: float, N: int, omega: float = 0.0, a: float = 1.0
) -> float:
    """Return DIANA's step where all f_i are mu-convex.

    It is min(a/(2 mu), 2/((L + mu)(1 + 6 omega/N))), L = max L_i. Derived for this
    library: |x - x*|^2 + 4 omega/(a N) eta^2 mean |h_i - grad f_i(x*)|^2 contracts by
    1 - eta mu a round, in expectation.

    >>> diana_strongly_convex(L=3.0, mu=1.0, N=10)
    0.5
    """
    return min(a / (2 * mu), 2 / ((L + mu) * (1 + 6 * omega / N)))


def zerosarah_nonconvex(L: float, N: int, S: int, lam: float | None = None) -> float:
    """Return ZeroSARAH's step 1/(L (1 + sqrt(M))), M = 2/(lam S) + 8 lam N^2/S^3.

    L^2 = mean L_i^2. At lam = S/(2N), the default, it is 1/(L (1 + sqrt(8N)/S)).
    Derived again for this library: the mean of |grad f(x^r)|^2 over R rounds is at most
    2 (f(x0) - f* + eta E/(2 lam) + 2 eta lam N Y/S^2)/(eta R), where E is the squared
    error of v and Y that of the table after round 0.

    >>> zerosarah_nonconvex(L=2.0, N=8, S=8)
    0.25
    """
    lam = S / (2 * N) if lam is None else lam
    return 1 / (L * (1 + math.sqrt(2 / (lam * S) + 8 * lam * N**2 / S**3)))


def frecon_nonconvex(L: float, N: int, S: int, omega: float = 0.0) -> float:
    """Return FRECON's step 1/(L (1 + W sqrt(10N)/S)), where W = 1 + omega.

    The paper's L is max L_i; derived again for this library, the bound needs only
    L^2 = mean L_i^2. The mean of |grad f(x^r)|^2 over R rounds is at most
    2 (f(x0) - f* + eta E/(2 lam) + eta W Y/S)/(eta R), lam = S/(2 W N), with E and Y as
    in `zerosarah_nonconvex`.

    >>> frecon_nonconvex(L=2.0, N=10, S=10)
    0.25
    """
    return 1 / (L * (1 + (1 + omega) * math.sqrt(10 * N) / S))


def ef21_nonconvex(L: float, L_average: float, alpha: float) -> float:
    """Return eta of EF21's Theorem 1, for a codec with contraction alpha.

    1/(L + L_average sqrt(beta/theta)) with theta = 1 - sqrt(1-alpha) and
    beta = (1-alpha)/theta.

    >>> ef21_nonconvex(L=2.0, L_average=3.0, alpha=1.0)
    0.5
    >>> ef21_nonconvex(L=2.0, L_average=3.0, alpha=0.75)  # theta = 1/2, beta = 1/2
    0.2
    """
    theta = 1 - math.sqrt(1 - alpha)
    return 1 / (L + L_average * math.sqrt(1 - alpha) / theta)


def ef21_bc_nonconvex(
    L: float, L_average: float, alpha_up: float, alpha_down: float
) -> float:
    """Return a step size for codecs with contractions alpha_up and alpha_down.

    1/(L + L_average sqrt(2 u + 16 v + 16 u v)), where u and v are beta/theta of EF21's
    Theorem 1 for the two codecs. The method's page has the proof; the order,
    1/(alpha_up alpha_down), is the paper's.

    >>> ef21_bc_nonconvex(L=2.0, L_average=3.0, alpha_up=1.0, alpha_down=1.0)
    0.5
    >>> ef21_bc_nonconvex(1.0, 1.0, alpha_up=0.75, alpha_down=0.75)  # u = v = 1
    0.14639...
    """
    u, v = (
        (1 - alpha) / (1 - math.sqrt(1 - alpha)) ** 2
        for alpha in (alpha_up, alpha_down)
    )
    return 1 / (L + L_average * math.sqrt(2 * u + 16 * v + 16 * u * v))


def dasha_nonconvex(L: float, L_average: float, N: int, S: int, omega: float) -> float:
    """Return eta of DASHA's theorem (S = N) or DASHA-PP's, for unbiased codecs.

    1/(L + L_average sqrt(c/N)) with c = 16 omega (2 omega + 1) where S = N, else
    (48 omega (2 omega + 1) + 16 (N-S)/(N-1)) N^2/S^2.

    >>> dasha_nonconvex(L=2.0, L_average=3.0, N=12, S=12, omega=1.0)  # c/N = 4
    0.125
    >>> round(dasha_nonconvex(L=2.0, L_average=3.0, N=12, S=6, omega=1.0), 6)
    0.042726
    """
    if S == N:
        c = 16 * omega * (2 * omega + 1)
    else:
        c = 48 * omega * (2 * omega + 1) + 16 * (N - S) / (N - 1)
        c = c * (N / S) ** 2
    return 1 / (L + L_average * math.sqrt(c / N))
