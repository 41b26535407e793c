"""Step sizes of the theorems on methods whose clients keep a table of gradients.

omega is the variance of the codec, 0 without one, and alpha its contraction. The
docstrings say what of each formula was derived or measured for this library.
tests/laws/test_tables.py and test_ef.py compare the bounds with runs on quadratics.
"""

from __future__ import annotations

import math


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
