"""Step sizes that the theorems allow, as plain functions of constants. `fedpage.theory` adds what they guarantee."""

from __future__ import annotations

import math

from fedpage.core.errors import InputError

VARIANTS = ("corrected", "printed")


def check_variant(variant: str) -> None:
    """'corrected' or 'printed'."""
    if variant not in VARIANTS:
        raise InputError(f"variant must be 'corrected' or 'printed', not {variant!r}")


def page_nonconvex(L: float, N: int, S: int, p: float, variant: str = "corrected") -> float:
    """eta_g of Theorem 1 (K = 1): 1/(L (1 + sqrt((1-p)/(pS)))); as printed, with 2pS.

    >>> page_nonconvex(L=2.0, N=100, S=10, p=0.1)
    0.25658...
    """
    check_variant(variant)
    c = (1 - p) / ((2 if variant == "printed" else 1) * p * S)
    return 1 / (L * (1 + math.sqrt(c)))


def fedpage_nonconvex(
    L: float, N: int, S: int, K: int, p: float, variant: str = "corrected"
) -> tuple[float, float]:
    """(eta_g, eta_l) of Theorem 2: 1/(L (1 + sqrt(3(1-p/3)/(pS)))), as printed with 2pS; sqrt(2) p/(24 sqrt(S) K L).

    >>> [round(1000 * eta, 4) for eta in fedpage_nonconvex(L=14.0, N=3250, S=10, K=10, p=10 / 3250)]
    [6.5717, 0.0004]
    """
    check_variant(variant)
    c = 3 * (1 - p / 3) / ((2 if variant == "printed" else 1) * p * S)
    return 1 / (L * (1 + math.sqrt(c))), math.sqrt(2) * p / (24 * math.sqrt(S) * K * L)


def nonconvex_batches(
    sigma2: float, epsilon: float, S: int, p: float
) -> tuple[int | None, int | None]:
    """(b1, b2) of Theorem 2, before the minimum with M: 24 sigma^2/(S eps^2) and 48 sigma^2/(p S eps^2).

    None (all rows) where sigma^2 = 0: then b1 = b2 = M costs nothing in the theorem.
    """
    if sigma2 == 0:
        return None, None
    b1, b2 = 24 * sigma2 / (S * epsilon**2), 48 * sigma2 / (p * S * epsilon**2)
    return max(1, math.ceil(b1)), max(1, math.ceil(b2))
