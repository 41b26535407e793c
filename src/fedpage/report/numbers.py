"""Write numbers: units, digits, and the side of a limit on which a number lies."""

from __future__ import annotations

import math

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def scale_unit(value: float, unit: str) -> tuple[float, str]:
    """Return a divisor for costs of about this value, and the unit with its prefix.

    >>> scale_unit(1.2e6, "B"), scale_unit(1.2e6, "")
    ((1000000.0, ' MB'), (1.0, ''))
    """
    if unit not in ("B", "bit"):
        return 1.0, f" {unit}" if unit else ""
    power = sum(value >= 0.9995 * 1000.0**k for k in range(1, len(_PREFIXES)))
    return 1000.0**power, f" {_PREFIXES[power]}{unit}"


def format_digits(value: float) -> str:
    """Write a number with three digits, or four if it is a large count.

    >>> format_digits(1.2345), format_digits(123456), format_digits(math.inf)
    ('1.23', '123500', 'not reached')
    """
    if not math.isfinite(value):
        return "not reached"
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.4g}'):.0f}"


def format_beside(value: float, *limits: float) -> str:
    """Write a number with two decimals, or more if rounding would move it across a limit.

    >>> [format_beside(value, 1.0) for value in (0.42, 0.9996, 1.0, 0.0123, 1234.5)]
    ['0.42', '0.9996', '1.00', '0.012', '1234']
    """

    def side(number: float, limit: float) -> int:
        return 0 if math.isclose(number, limit, rel_tol=1e-9) else 1 if number > limit else -1

    if not math.isfinite(value):
        return "unbounded"
    size = math.floor(math.log10(abs(value))) if value else 0
    first = 0 if size >= 2 else max(2, 1 - size)
    texts = [f"{value:.{decimals}f}" for decimals in range(first, first + 7)]
    right = (t for t in texts if all(side(float(t), end) == side(value, end) for end in limits))
    return next(right, texts[0])


def format_p(p: float, alpha: float = 0.05) -> str:
    """Write a p-value with two digits, or more if rounding would move it across alpha.

    >>> [format_p(p) for p in (0.00001, 0.0021, 0.0497, 0.7)]
    ['p < 0.001', 'p = 0.0021', 'p = 0.0497', 'p = 0.7']
    """
    if p < 0.001:
        return "p < 0.001"
    texts = (f"{p:.{digits}g}" for digits in (2, 3, 4, 5))
    return f"p = {next((t for t in texts if (float(t) < alpha) == (p < alpha)), f'{p:g}')}"
