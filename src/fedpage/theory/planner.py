"""Compare what methods need to reach epsilon by their theory, before a run: `fedpage plan`.

Every row says what its number is: a *bound* that a proof guarantees with explicit constants, or the
*order* of an analysis, which holds up to constants. Seconds are an *estimate* from the costs that
the user gives.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.core.errors import InputError, short_repr
from fedpage.theory.bounds import (
    descent_bound,
    fedpage_bound,
    marina_bounds,
    similarity_bounds,
)
from fedpage.theory.rounds import average_round
from fedpage.theory.rows import (
    DESCENT,
    NONE,
    ORDER,
    Costs,
    Measure,
    Question,
    Row,
    codec_constant,
    make_row,
)
from fedpage.theory.tables import RIVALS, TABLE, Entry, Formula, Setting

__all__ = ["DESCENT", "Costs", "Measure", "Row", "plan"]


def plan(
    setting: Setting,
    *,
    d: int,
    convex: bool,
    measure: Measure | None = None,
    costs: Costs | None = None,
    average_L: float | None = None,
    whole_L: float | None = None,
    up: Codec | str = IDENTITY,
) -> list[Row]:
    """Compute each method's rounds to epsilon and their cost, by every known analysis.

    Where an analysis has theorems about both measures, or several about one, the row is the
    theorem that needs the fewest rounds.

    Args:
        setting: N, S, K, M, epsilon and the constants; L is that of the rows (Assumption 1).
        d: Parameters.
        convex: Whether f is convex.
        measure: What epsilon is: "grad_norm" or, for a convex f, "gap". None: that of the theorems,
            a gap if f is convex.
        costs: What the time depends on; None estimates no time.
        average_L: The average smoothness of the clients (Assumption 2), for PAGE and MARINA;
            None: L.
        whole_L: The smoothness of f, for gradient descent and for conversions; None: average_L.
        up: The codec of replies, for the methods whose analysis allows for it. It decides the
            setting's omega and alpha; the other methods send whole vectors.

    Returns:
        A row for each method and analysis: bounds for FedPAGE, PAGE, gradient descent, MARINA and
        S-DANE, orders for the others. Analyses that need a constant which the setting does not have
        are left out.

    Raises:
        InputError: A number is out of range, a gap is asked of an f that is not convex, or the
            codec's size varies.
    """
    if isinstance(d, bool) or d < 1:
        raise InputError(f"d must be a whole number of at least 1, not {short_repr(d)}")
    measure = measure or ("gap" if convex else "grad_norm")
    if measure == "gap" and not convex:
        raise InputError(
            "a gap f - f* can be planned for a convex objective only; choose one, or ask for a "
            "gradient norm"
        )
    codec = as_codec(up)
    if not codec.has_fixed_size:
        raise InputError(
            f"a plan needs a codec of which every vector has the same size, not {codec}; "
            "use randk, topk, natural, dither or a cast"
        )
    average = setting.L if average_L is None else average_L
    whole = average if whole_L is None else whole_L
    q = Question(setting, measure, d, convex, costs or Costs(), average, whole, codec)
    rows = [fedpage_bound(q, K) for K in dict.fromkeys((setting.K, 1))]
    rows += [descent_bound(q), *marina_bounds(q), *similarity_bounds(q)]
    for entry in (*TABLE, *_STRONGLY_CONVEX, *RIVALS):
        row = _plan_entry(entry, q)
        rows += [] if row is None else [row]
    return rows


def _plan_entry(entry: Entry, q: Question) -> Row | None:
    """Compute the row of a table's entry; None where it is left out."""
    if entry.source == "minibatches, as printed":
        return None  # the row "from b2" uses b2 as the theorem gives it
    if "minibatches" in entry.source and q.setting.sigma == 0:
        return None
    if entry.method == "S-Local-SVRG" and q.setting.K > q.setting.M:
        return Row(entry.method, entry.source, entry.assumption + " (here K > M)", NONE)
    constant = codec_constant(entry.codec, q.codec, q.d) if entry.codec else 0.0
    if constant is None:
        return None
    rows = []
    for measure, s, converted in q.settings():
        is_gap = measure == "gap"
        rounds_of = entry.convex if is_gap else entry.nonconvex
        work_of = entry.convex_gradients if is_gap else entry.nonconvex_gradients
        needs = entry.convex_needs if is_gap else entry.nonconvex_needs
        if rounds_of is None or any(getattr(s, name) is None for name in needs):
            continue
        if entry.codec:
            unbiased = entry.codec == "unbiased"
            s = replace(s, omega=constant) if unbiased else replace(s, alpha=constant)
        rounds, each = max(1.0, rounds_of(s)), average_round(entry, s)
        doubt = ("convex" if is_gap else "nonconvex") in entry.unverified
        source = entry.source + ", unverified" * doubt
        label = (entry.method, source, ", ".join((entry.assumption, *needs)), ORDER)
        work = None if work_of is None else work_of(s)
        rows.append(
            make_row(
                label, rounds, each, q, gradients=work, codec=q.codec if entry.codec else IDENTITY,
                converted=converted,
            )
        )  # fmt: skip
    if not rows and entry in TABLE:
        return Row(entry.method, entry.source, entry.assumption, NONE)
    return min(rows, key=lambda row: row.rounds or math.inf, default=None)


def _fedavg_strongly_convex(s: Setting) -> float:
    mu, e = s.mu or math.nan, s.epsilon
    noise = s.sigma**2 / s.K + (1 - s.S / s.N) * s.G**2
    drift = math.sqrt(s.L) * s.G / (mu * math.sqrt(e))
    return noise / (mu * s.S * e) + drift + (1 + s.B**2) * s.L / mu * _log(s)


def _scaffold_strongly_convex(s: Setting) -> float:
    mu = s.mu or math.nan
    return s.sigma**2 / (mu * s.S * s.K * s.epsilon) + (s.L / mu + s.N / s.S) * _log(s)


def _log(s: Setting) -> float:
    return math.log(max(math.e, s.D0 / s.epsilon))


def _linear_entry(method: str, assumption: str, rounds: Formula) -> Entry:
    source = "Karimireddy et al. 2020, mu"
    return Entry(
        method, source, assumption, rounds, None, None, None, convex_needs=("mu",)
    )  # fmt: skip


_STRONGLY_CONVEX = (
    _linear_entry("FedAvg", "smooth, BV, (G,B)-BGD", _fedavg_strongly_convex),
    _linear_entry("SCAFFOLD", "smooth, BV", _scaffold_strongly_convex),
)
"""Theorems I and III of the paper, up to constants and logarithms of noise terms."""
