"""Step sizes of the nonconvex theorems, as functions of constants.

`fedpage.theory` adds the rounds that the theorems guarantee.
"""

from __future__ import annotations

import math

from fedpage.core.errors import InputError

VARIANTS = ("corrected", "printed")


def check_variant(variant: str) -> None:
    """Check that the variant is "corrected" or "printed"."""
    if variant not in VARIANTS:
        raise InputError(f"variant must be 'corrected' or 'printed', not {variant!r}")


def page_nonconvex(
    L: float, N: int, S: int, p: float, variant: str = "corrected"
) -> float:
    """Return eta_g of Theorem 1 (K = 1): 1/(L (1 + sqrt((1-p)/(pS)))).

    The paper prints 2pS instead of pS.

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

    eta_g = 1/(L (1 + sqrt(3(1-p/3)/(pS)))), where the paper prints 2pS instead of pS,
    and eta_l = sqrt(2) p/(24 sqrt(S) K L).

    >>> steps = fedpage_nonconvex(L=14.0, N=3250, S=10, K=10, p=10 / 3250)
    >>> [round(1000 * eta, 4) for eta in steps]
    [6.5717, 0.0004]
    """
    check_variant(variant)
    c = 3 * (1 - p / 3) / ((2 if variant == "printed" else 1) * p * S)
    return 1 / (L * (1 + math.sqrt(c))), math.sqrt(2) * p / (24 * math.sqrt(S) * K * L)


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
