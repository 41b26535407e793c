"""Bounds of a plan: theorems with explicit constants.

Where several theorems apply, the one that needs the fewest rounds is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpage.codecs import IDENTITY
from fedpage.core.types import Smoothness
from fedpage.methods import sdane
from fedpage.methods import steps as step_sizes
from fedpage.theory.rounds import Round, count_vectors, difference_round, fedpage_round
from fedpage.theory.rows import BOUND, DESCENT, Question, Row, codec_constant, make_row
from fedpage.theory.steps import (
    Tuned,
    convex_fedpage,
    convex_page,
    nonconvex_fedpage,
    nonconvex_page,
    strongly_convex_fedpage,
    strongly_convex_page,
)


def marina_bounds(q: Question) -> list[Row]:
    """Compute MARINA's rows, and PP-MARINA's, where there is a codec to compress differences."""
    omega, found = codec_constant("unbiased", q.codec, q.d), q.get("grad_norm")
    if found is None or omega is None or q.codec == IDENTITY:
        return []  # without a codec they are gradient descent and PAGE
    s, converted = found
    L = q.average_L
    share = q.codec.bits(q.d, np.dtype(np.float64)) / (64 * q.d)
    rows = []
    for method, theorem, S in (("PP-MARINA", "4.1", s.S), ("MARINA", "2.1", s.N)):
        p = min(1.0, S / s.N * share)
        constants = Smoothness(row=s.L, client=L, average=L, whole=L)
        eta = step_sizes.marina(constants, s.N, S, p, omega)
        rounds = max(1.0, math.ceil(2 * s.D0 / (eta * s.epsilon**2)))
        each = difference_round(s, p, everyone=S == s.N)
        needs = "average smooth, unbiased C" + ", S = N" * (method == "MARINA")
        label = (method, f"Theorem {theorem}, all rows", needs, BOUND)
        steps = {"eta_g": eta}
        rows.append(
            make_row(label, rounds, each, q, codec=q.codec, steps=steps, converted=converted)
        )
    return rows[:1] if s.S == s.N else rows


def fedpage_bound(q: Question, K: int) -> Row:
    """Compute the row of FedPAGE with K local steps, or of PAGE (K = 1), by its best theorem."""
    rows = []
    each = fedpage_round(q.setting, K)
    for tuned, converted in _page_theorems(q) if K == 1 else _fedpage_theorems(q, K):
        method = tuned.method
        steps = {"eta_g": method.eta_g}
        if K > 1 and method.eta_l is not None:
            steps["eta_l"] = method.eta_l
        needs = ("average smooth" if K == 1 else "smooth") + ", mu" * ("strongly" in tuned.theorem)
        label = (str(method.name), f"{tuned.theorem}, all rows", needs, BOUND)
        rounds = max(1.0, math.ceil(tuned.rounds))
        rows.append(make_row(label, rounds, each, q, steps=steps, converted=converted))
    return min(rows, key=lambda row: row.rounds or math.inf)


def _page_theorems(q: Question) -> Iterator[tuple[Tuned, bool]]:
    for measure, s, converted in q.settings():
        common: dict[str, Any] = {"L": q.average_L, "N": s.N, "S": s.S, "epsilon": s.epsilon}
        if measure == "grad_norm":
            yield nonconvex_page(**common, D0=s.D0), converted
            continue
        yield convex_page(**common, R2=s.R2), converted
        if s.mu is not None:
            yield strongly_convex_page(**common, mu=s.mu, D0=s.D0), converted


def _fedpage_theorems(q: Question, K: int) -> Iterator[tuple[Tuned, bool]]:
    for measure, s, converted in q.settings():
        common: dict[str, Any] = {"L": s.L, "N": s.N, "S": s.S, "K": K, "epsilon": s.epsilon}
        if measure == "grad_norm":
            yield nonconvex_fedpage(**common, D0=s.D0), converted
            continue
        yield convex_fedpage(**common, R2=s.R2), converted
        if s.mu is not None:
            yield strongly_convex_fedpage(**common, mu=s.mu, D0=s.D0), converted


def descent_bound(q: Question) -> Row:
    """Compute the row of gradient descent with the step 1/L, all clients in every round."""
    L, rows = q.whole_L, []
    for measure, s, converted in q.settings():
        needs, rounds = "f smooth", 2 * L * s.D0 / s.epsilon**2
        if measure == "gap":
            needs, rounds = "f smooth, convex", L * s.R2 / (2 * s.epsilon)
            if s.mu is not None and s.mu < L:
                linear = math.log(max(1.0, s.D0 / s.epsilon)) / -math.log1p(-s.mu / L)
                if linear < rounds:
                    needs, rounds = "f smooth, mu", linear
        label = (DESCENT, "step 1/L, all rows", needs, BOUND)
        rounds = max(1.0, math.ceil(rounds))
        each = Round(s.N, 1, 1, s.M)
        rows.append(make_row(label, rounds, each, q, steps={"eta_g": 1 / L}, converted=converted))
    return min(rows, key=lambda row: row.rounds or math.inf)


def similarity_bounds(q: Question) -> list[Row]:
    """Compute the rows of S-DANE and its acceleration, whose steps take two rounds."""
    found = q.get("gap")
    if found is None or not q.setting.delta:
        return []
    s, converted = found
    lam, eta_l, K = step_sizes.s_dane(s.L, q.setting.delta)
    pairs = {
        "S-DANE": lam * s.R2 / (2 * s.epsilon),
        "Acc-S-DANE": math.sqrt(2 * lam * s.R2 / s.epsilon),
    }
    down = sum(count_vectors(sdane.Centre, sdane.Subproblem)) / 2
    up = sum(count_vectors(sdane.Gradient, sdane.Solution)) / 2
    each = Round(s.N, down, up, (K + 3) * s.M / 2)
    rows = []
    for method, steps in pairs.items():
        label = (method, "Jiang et al. 2024, all rows", "f_i convex, delta, S = N", BOUND)
        rounds = 2.0 * max(1, math.ceil(steps))
        sizes = {"lam": lam, "eta_l": eta_l, "K": float(K)}
        rows.append(make_row(label, rounds, each, q, steps=sizes, converted=converted))
    return rows
