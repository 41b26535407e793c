"""Judge claims on made-up runs whose truth is known."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.report.plots import FigureRuns
from fedpage.runs.config import structure
from fedpage.studies import claims
from fedpage.studies.claims import TunedCurve
from fedpage.studies.paper import book


def runs(ends, diverged=False, clients=9.5, gradients=38.0):
    """Histories that fall to the given ends."""
    made = []
    for seed, end in enumerate(ends):
        history = fp.History({"seed": seed})
        for r in range(101):
            norm = end + (1.0 - end) * max(0.0, 1 - r / 50)
            row = {"round": r, "loss": 0.4 * norm, "grad_norm": norm}
            history.append(
                row
                | {"clients": clients * r, "gradients": gradients * clients * r, "full_rounds": 0}
            )
        history.meta["problem"] = {"rows": 500, "N": 50}
        history.meta["method"] = {"name": "FedPAGE", "S": 5}
        history.stop_reason = StopReason.DIVERGED if diverged else StopReason.FINISHED
        made.append(history)
    return made


def claim(kind, curves, **more):
    fields = {
        "name": "c",
        "text": "t",
        "where": "w",
        "figures": ("f",),
        "choices": {},
        "column": "",
        "printed": (),
    }
    return claims.Claim(kind=kind, curves=tuple(curves), **(fields | more))


def judge(one, a, b, a2=None, b2=None, **more):
    first, second = {"A": a, "B": b} | more, {"A": a2 or a, "B": b2 or b} | more
    panels = tuple(
        claims.Panel(f"50 clients, step {step:g}", curves, {"clients": 50, "step": step})
        for step, curves in ((0.1, first), (0.03, second))
    )
    return claims.judge(one, {"f": FigureRuns("f", "F", "", 2, panels)})


LOW, HIGH = [0.010, 0.011, 0.009, 0.012, 0.010], [0.05, 0.06, 0.04, 0.05, 0.055]
MIXED = [0.005, 0.02, 0.007, 0.03, 0.01]


def test_order():
    strict, weak = claim("order", ["A", ">", "B"]), claim("order", ["A", ">=", "B"])
    assert judge(strict, runs(LOW), runs(HIGH)).verdict == claims.HOLDS
    assert judge(strict, runs(HIGH), runs(LOW)).verdict == claims.FAILS
    assert judge(strict, runs(LOW), runs(MIXED)).verdict == claims.UNDECIDED
    assert judge(weak, runs(LOW), runs(LOW)).verdict == claims.HOLDS
    assert judge(strict, runs(LOW), runs(LOW)).verdict == claims.UNDECIDED
    assert judge(weak, runs(HIGH), runs(LOW)).verdict == claims.FAILS
    assert judge(weak, runs([1.2 * e for e in LOW]), runs(LOW)).verdict == claims.WITHIN
    one_bad_panel = judge(strict, runs(LOW), runs(HIGH), runs(HIGH), runs(LOW))
    assert one_bad_panel.verdict == claims.FAILS
    assert one_bad_panel.counts == "1 of 2 hold, 1 do not, 0 undecided"


def first_number(text):
    return float(re.search(r"[\d.]+", text).group())


@pytest.mark.parametrize("factor", [0.7, 0.92, 1.0, 1.05, 1.2, 1.4, 2.0])
def test_verdict_and_number_agree_for_an_order(factor):
    """'A >= B holds' stands beside a ratio of at least 1 only; below 1 the tolerance is named."""
    found = judge(
        claim("order", ["A", ">=", "B"]), runs([factor * e for e in LOW]), runs(LOW)
    ).findings[0]
    ratio = first_number(found.measured)  # B's end over A's
    assert ratio == pytest.approx(1 / factor, abs=0.006)
    if ratio >= 1:
        assert found.verdict == claims.HOLDS
    else:
        assert found.verdict == (claims.WITHIN if ratio > 1 / 1.5 else claims.FAILS)
    assert found.needed == "at least 1x; interval above 0.667x (tolerance 1.5x)"


@pytest.mark.parametrize(
    ("clients", "verdict"),
    [(9.5, claims.HOLDS), (9.9, claims.HOLDS), (10.4, claims.FAILS), (12.0, claims.FAILS)],
)
def test_verdict_and_number_agree_for_clients_per_round(clients, verdict):
    """With S = 5 of N = 50 the expected number is 9.5, 2S is 10 and the tolerance ends at 9.975."""
    counted = claim("count", ["A"], column="clients")
    found = judge(counted, runs(LOW, clients=clients), runs(LOW)).findings[0]
    assert first_number(found.measured) == pytest.approx(clients)
    assert found.verdict == verdict
    assert "less than 2S = 10" in found.needed
    assert "tolerance 1.05x" in found.needed


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.3])
def test_no_row_contradicts_itself(spread):
    """The printed numbers give the verdict, for every rule, however close they are to a limit."""
    rng = np.random.default_rng(0)
    kinds = {
        ">": claim("order", ["A", ">", "B"]),
        ">=": claim("order", ["A", ">=", "B"]),
        "=": claim("alike", ["A", "B"]),
        "below": claim("below", ["A", "B"]),
    }
    seen = set()
    for factor in (0.5, 0.65, 0.667, 0.97, 0.9995, 1.0, 1.002, 1.03, 1.3, 1.5, 1.6, 2.5):
        noise = np.exp(spread * rng.standard_normal(5))
        b = runs([factor * end * e for end, e in zip(LOW, noise, strict=True)])
        for rule, one in kinds.items():
            found = judge(one, runs(LOW), b).findings[0]
            numbers = re.match(r"B ends (\S+)x as high \[(\S+), (\S+)\]", found.measured).groups()
            mean, low, high = map(float, numbers)
            if rule in (">", "below"):
                wanted = claims.HOLDS if low > 1 else claims.FAILS if high < 1 else claims.UNDECIDED
            elif rule == ">=":
                wanted = claims.HOLDS if mean >= 1 else claims.WITHIN
                wanted = wanted if low > 1 / 1.5 else claims.UNDECIDED
                wanted = claims.FAILS if high < 1 / 1.5 else wanted
            else:
                wanted = claims.HOLDS if low > 1 / 1.5 and high < 1.5 else claims.UNDECIDED
                wanted = claims.FAILS if low > 1.5 or high < 1 / 1.5 else wanted
            assert found.verdict == wanted
            seen.add((rule, found.verdict))
    assert len(seen) >= 6


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_no_verdict_from_fewer_than_five_seeds(seeds):
    """However clear the numbers are; the row and the note say how many seeds there are."""
    low, high = runs(LOW[:seeds]), runs(HIGH[:seeds])
    for one in (
        claim("order", ["A", ">", "B"]), claim("order", ["A", ">=", "B"]), claim("below", "AB"),
        claim("alike", ["A", "B"]), claim("faster", ["A"]),
        claim("count", ["A"], column="clients"), claim("count", "AB", column="gradients"),
    ):  # fmt: skip
        found = judge(one, low, high, a2=high)
        assert {finding.verdict for finding in found.findings} == {claims.UNDECIDED}
        assert {finding.needed for finding in found.findings} == {f"5 seeds, not {seeds}"}
        assert found.verdict == claims.UNDECIDED
        assert found.note == f"Undecided: {seeds} of 5 seeds; add --seeds 5."


def test_runs_that_diverged_have_no_ratio():
    """Both curves diverging supports nothing, not even that they are equally good."""
    gone, weak = runs(LOW, diverged=True), claim("order", ["A", ">=", "B"])
    for one in (weak, claim("alike", ["A", "B"])):
        found = judge(one, gone, gone)
        assert found.verdict == claims.UNDECIDED
        assert found.findings[0].measured == (
            "B diverged on 5 of 5 seeds, A on 5; B ends higher on 0, lower on 0 (p = 1)"
        )
    assert judge(weak, runs(LOW), gone).verdict == claims.HOLDS
    assert judge(weak, gone, runs(LOW)).verdict == claims.FAILS
    assert judge(claim("alike", ["A", "B"]), gone, runs(LOW)).verdict == claims.FAILS
    once = runs(LOW[:4]) + runs(LOW[:1], diverged=True)
    assert judge(weak, runs(LOW), once).verdict == claims.UNDECIDED


def test_clients_per_round_above_the_limit_by_chance_hold_within_tolerance():
    counted = claim("count", ["A"], column="clients")
    spread = [run for c in (9.0, 9.6, 10.2, 10.6, 11.0) for run in runs(LOW[:1], clients=c)]
    found = judge(counted, spread, runs(LOW)).findings[0]
    assert first_number(found.measured) > 10
    assert found.verdict == claims.WITHIN


def test_the_overall_verdict_is_the_weakest():
    order = [claims.HOLDS, claims.WITHIN, claims.UNDECIDED, claims.FAILS]
    for i, weaker in enumerate(order):
        findings = [claims.Finding("p", "c", verdict, "") for verdict in order[: i + 1]]
        assert claims.combine(findings) == weaker
    assert claims.combine([]) == claims.UNDECIDED
    four = claims.Verdict(claim("alike", ["A", "B"]), claims.FAILS, tuple(findings))
    assert four.counts == "1 of 4 hold, 1 within tolerance, 1 do not, 1 undecided"


def test_choices_that_decide_are_named():
    both = claim("order", ["A", ">", "B"], choices={"A": "A2"})
    verdict = judge(both, runs(LOW), runs(HIGH), A2=runs(HIGH))
    assert verdict.verdict == claims.CHOICES
    assert "With A2 instead: undecided" in verdict.note
    assert judge(both, runs(LOW), runs(HIGH), A2=runs(LOW)).verdict == claims.HOLDS
    assert judge(both, runs(HIGH), runs(LOW), A2=runs(HIGH)).verdict == claims.FAILS


def test_a_run_that_diverged_or_went_far_away_is_worse_than_any_number():
    strict = claim("order", ["A", ">", "B"])
    assert judge(strict, runs(HIGH), runs([1e-9] * 5, diverged=True)).verdict == claims.HOLDS
    far = runs([1e-9] * 5)
    for history in far:
        for row in history.rows[1:]:
            row["loss"] = 30.0
    assert claims.final_log_norm(far[0]) == math.inf
    assert judge(strict, runs(HIGH), far).verdict == claims.HOLDS
    assert judge(strict, far, far).verdict == claims.UNDECIDED


def test_a_claim_may_be_about_the_beginning():
    early = claim("order", ["A", ">", "B"], at=60)
    late = runs(LOW)
    for history in late:
        for row in history.rows:
            if row["round"] <= 60:
                row["grad_norm"] = 1.0
    assert judge(early, late, runs(HIGH)).verdict == claims.FAILS
    assert judge(claim("order", ["A", ">", "B"]), late, runs(HIGH)).verdict == claims.HOLDS


def test_alike():
    alike = claim("alike", ["A", "B"])
    assert judge(alike, runs(LOW), runs([1.1 * e for e in LOW])).verdict == claims.HOLDS
    assert judge(alike, runs(LOW), runs(HIGH)).verdict == claims.FAILS
    assert judge(alike, runs(LOW), runs(MIXED)).verdict == claims.UNDECIDED


def test_faster():
    faster = claim("faster", ["A"])
    assert judge(faster, runs(LOW), runs(LOW), a2=runs(HIGH)).verdict == claims.HOLDS
    assert judge(faster, runs(HIGH), runs(LOW), a2=runs(LOW)).verdict == claims.FAILS


def test_below():
    below = claim("below", ["A", "B"])
    assert judge(below, runs(LOW), runs(HIGH)).verdict == claims.HOLDS
    assert judge(below, runs(HIGH), runs(LOW)).verdict == claims.FAILS


@pytest.mark.parametrize(
    ("near", "verdict"),
    [
        ([[0.2], [0.3], [0.4]], claims.HOLDS),
        ([[0.2, 0.3], [0.3], [0.3, 0.4]], claims.UNDECIDED),
        ([[0.2, 0.3], [0.2], [0.2]], claims.FAILS),
        ([[], [0.2], [0.2]], claims.UNDECIDED),
    ],
)
def test_steps(near, verdict):
    rows = [
        TunedCurve(
            panel="10 clients",
            label=str(i),
            K=1,
            eta_g=v[0] if v else 0.1,
            rho=None,
            rounds_on_held_out_seeds=[],
            within_tenth=v,
        )
        for i, v in enumerate(near)
    ]
    steps = claim(
        "steps", ["0", "1", "2"], figures=("local-steps/a9a",), printed=((0.2, 0.3, 0.4),)
    )
    figures = {"local-steps/a9a": FigureRuns("local-steps/a9a", "", "", 1, ())}
    found = claims.judge(steps, figures, {"local-steps/a9a": rows})
    assert found.verdict == verdict
    if verdict == claims.HOLDS:
        assert found.note.startswith("1 of the paper's three")
    assert claims.judge(steps, figures).verdict == claims.UNDECIDED


def test_counts():
    clients = claim("count", ["A", "B"], column="clients")
    assert judge(clients, runs(LOW), runs(LOW)).verdict == claims.HOLDS
    assert judge(clients, runs(LOW, clients=12.0), runs(LOW)).verdict == claims.FAILS
    work = claim("count", ["A", "B"], column="gradients")
    assert judge(work, runs(LOW), runs(LOW, gradients=40.0)).verdict == claims.HOLDS
    assert judge(work, runs(LOW), runs(LOW, gradients=80.0)).verdict == claims.FAILS
    both = claim("count", ["A", "B"], column="gradients", choices={"local rounds": "all calls"})
    refreshed = runs(LOW)
    for history in refreshed:  # four full rounds of 50 clients with 10 rows, beside 38 gradients
        for row in history.rows:
            row["clients"] += 4 * 50
            row["gradients"] += 4 * 500
            row["full_rounds"] = 4
    assert judge(both, refreshed, runs(LOW, gradients=56.0)).verdict == claims.CHOICES
    assert judge(both, refreshed, runs(LOW, gradients=30.0)).verdict == claims.HOLDS


def test_panels_of_other_clients_are_not_compared_for_a_larger_step():
    panels = tuple(
        claims.Panel("", {"A": runs(ends)}, {"clients": clients, "step": step})
        for clients, step, ends in ((50, 0.1, LOW), (50, 0.03, HIGH), (5, 0.1, HIGH))
    )
    found = claims.judge(claim("faster", ["A"]), {"f": FigureRuns("f", "F", "", 3, panels)})
    assert [finding.comparison for finding in found.findings] == ["A: step 0.1 > 0.03"]
    assert found.verdict == claims.HOLDS


def test_a_claim_without_figures_is_about_all():
    found = judge(claim("below", ["A", "B"], figures=()), runs(LOW), runs(HIGH))
    assert (found.verdict, len(found.findings)) == (claims.HOLDS, 2)


def test_every_claim_names_figures_and_curves_that_exist():
    found = book.claims()
    assert len(found) == 10
    for one in found:
        for name in one.figures:
            (study,) = book.load([name], store="runs")
            labels = {curve.label for curve in study.curves}
            assert {c for c in one.curves if c not in (">", ">=")} <= labels
            if one.kind != "count":  # there a choice names what is counted
                assert set(one.choices.values()) <= labels


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"txt": "x"}, "unknown key 'txt'"),
        ({"text": "x", "kind": "magic", "curves": []}, "kind must be"),
        ({"text": "x"}, "is missing"),
    ],
)
def test_mistakes_in_a_claim_are_errors(table, fault):
    with pytest.raises(InputError, match=fault):
        structure(claims.Claim, table, "study.toml, [claims] 1")
