"""Claims on made-up runs whose truth is known."""

import re
from functools import partial

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.report.plots import FigureRuns, PanelRuns
from fedpage.runs.config import structure
from fedpage.studies.claims import (
    CHOICES,
    FAILS,
    HOLDS,
    UNDECIDED,
    WITHIN,
    CheckedClaim,
    Claim,
    Finding,
    combine,
    evaluate,
)
from fedpage.studies.paper import book

LOW, HIGH = [0.010, 0.011, 0.009, 0.012, 0.010], [0.05, 0.06, 0.04, 0.05, 0.055]
MIXED = [0.005, 0.02, 0.007, 0.03, 0.01]


def runs(ends, diverged=False, clients=9.5, gradients=38.0):
    """Histories that fall to the given ends."""
    made = []
    for seed, end in enumerate(ends):
        history = fp.History({"seed": seed, "problem": {"rows": 500, "N": 50}, "method": {"S": 5}})
        for r in range(101):
            norm = end + (1.0 - end) * max(0.0, 1 - r / 50)
            costs = {"clients": clients * r, "gradients": gradients * clients * r, "full_rounds": 0}
            history.append({"round": r, "loss": 0.4 * norm, "grad_norm": norm} | costs)
        history.stop_reason = StopReason.DIVERGED if diverged else StopReason.FINISHED
        made.append(history)
    return made


def scaled(factor):
    return [factor * end for end in LOW]


def order(*curves, **more):
    return Claim("t", "order", curves, **more)


STRICT, WEAK, ALIKE = order("A", ">", "B"), order("A", ">=", "B"), order("A", "=", "B")
CLIENTS = Claim("t", "count", ("A",), column="clients")
WORK = Claim("t", "count", ("A", "B"), column="gradients")
FASTER = Claim("t", "faster", ("A",))


def check(claim, a, b, a2=None, b2=None, **more):
    """Check a claim on the curves A and B of two panels."""
    first, second = {"A": a, "B": b} | more, {"A": a2 or a, "B": b2 or b} | more
    panels = tuple(
        PanelRuns(f"50 clients, step {step:g}", curves, {"clients": 50, "step": step})
        for step, curves in ((0.1, first), (0.03, second))
    )
    return evaluate(claim, {"f": FigureRuns("f", "F", "", 2, panels)})


@pytest.mark.parametrize(
    ("claim", "a", "b", "verdict"),
    [
        (STRICT, LOW, HIGH, HOLDS), (STRICT, HIGH, LOW, FAILS), (STRICT, LOW, LOW, UNDECIDED),
        (STRICT, LOW, MIXED, UNDECIDED), (order("A", "<", "B"), HIGH, LOW, HOLDS),
        (WEAK, LOW, LOW, HOLDS), (WEAK, HIGH, LOW, FAILS), (WEAK, scaled(1.2), LOW, WITHIN),
        (ALIKE, LOW, scaled(1.1), HOLDS), (ALIKE, LOW, HIGH, FAILS), (ALIKE, HIGH, LOW, FAILS),
        (ALIKE, LOW, MIXED, UNDECIDED),
    ],
)  # fmt: skip
def test_orders(claim, a, b, verdict):
    found = check(claim, runs(a), runs(b))
    assert (found.verdict, len(found.findings)) == (verdict, 2)


def test_neighbours_in_an_order_are_compared():
    found = check(order("A", ">", "B", "<", "C"), runs(LOW), runs(HIGH), C=runs(LOW))
    assert [f.comparison for f in found.findings] == ["A > B", "C > B"] * 2
    assert found.verdict == HOLDS


def test_one_contradiction_decides():
    found = check(STRICT, runs(LOW), runs(HIGH), runs(HIGH), runs(LOW))
    assert (found.verdict, found.counts) == (FAILS, "1 of 2 hold, 1 do not, 0 undecided")
    verdicts = [HOLDS, WITHIN, UNDECIDED, FAILS]
    findings = tuple(Finding("p", "c", verdict, "") for verdict in verdicts)
    assert [combine(findings[:i]) for i in (0, 1, 2, 3, 4)] == [UNDECIDED, *verdicts]
    counts = CheckedClaim(ALIKE, FAILS, findings).counts
    assert counts == "1 of 4 hold, 1 within tolerance, 1 do not, 1 undecided"


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.3])
def test_no_row_contradicts_itself(spread):
    """The printed numbers give the verdict, for every rule, however close they are to a limit."""
    rng = np.random.default_rng(0)
    seen = set()
    for factor in (0.5, 0.65, 0.667, 0.97, 0.9995, 1.0, 1.002, 1.03, 1.3, 1.5, 1.6, 2.5):
        noise = np.exp(spread * rng.standard_normal(5))
        b = runs([factor * end * e for end, e in zip(LOW, noise, strict=True)])
        for claim in (STRICT, WEAK, ALIKE):
            found = check(claim, runs(LOW), b).findings[0]
            numbers = re.match(r"B ends (\S+)x as high \[(\S+), (\S+)\]", found.measured).groups()
            mean, low, high = map(float, numbers)
            if claim is STRICT:
                wanted = HOLDS if low > 1 else FAILS if high < 1 else UNDECIDED
                needed = "more than 1x, with its interval"
            elif claim is WEAK:
                wanted = HOLDS if mean >= 1 else WITHIN
                wanted = wanted if low > 1 / 1.5 else UNDECIDED
                wanted = FAILS if high < 1 / 1.5 else wanted
                needed = "at least 1x; interval above 0.667x (tolerance 1.5x)"
            else:
                wanted = HOLDS if low > 1 / 1.5 and high < 1.5 else UNDECIDED
                wanted = FAILS if low > 1.5 or high < 1 / 1.5 else wanted
                needed = "interval within 0.667x to 1.50x (tolerance 1.5x)"
            assert (found.verdict, found.needed) == (wanted, needed)
            seen.add((claim.curves, found.verdict))
    assert len(seen) >= 5


@pytest.mark.parametrize("seeds", [1, 4])
def test_no_verdict_from_fewer_than_five_seeds(seeds):
    """However clear the numbers are; the row and the note say how many seeds there are."""
    low, high = runs(LOW[:seeds]), runs(HIGH[:seeds])
    for claim in (STRICT, WEAK, ALIKE, FASTER, CLIENTS, WORK):
        found = check(claim, low, high, a2=high)
        assert {finding.verdict for finding in found.findings} == {UNDECIDED}
        assert {finding.needed for finding in found.findings} == {f"5 seeds, not {seeds}"}
        assert found.verdict == UNDECIDED
        assert found.note == f"Undecided: {seeds} of 5 seeds; add --seeds 5."


def test_a_run_that_diverged_or_went_far_away_is_worse_than_any_number():
    """Both curves diverging supports nothing, not even that they are equally good."""
    gone, far = runs([1e-9] * 5, diverged=True), runs([1e-9] * 5)
    for row in (row for history in far for row in history.rows[1:]):
        row["loss"] = 30.0
    for claim in (WEAK, ALIKE):
        found = check(claim, gone, gone)
        assert (found.verdict, found.findings[0].measured) == (
            UNDECIDED,
            "B diverged on 5 of 5 seeds, A on 5; B ends higher on 0, lower on 0 (p = 1)",
        )
    assert check(STRICT, far, far).verdict == UNDECIDED
    for lost in (gone, far):
        assert check(WEAK, runs(HIGH), lost).verdict == HOLDS
        assert check(WEAK, lost, runs(HIGH)).verdict == FAILS
        assert check(ALIKE, lost, runs(HIGH)).verdict == FAILS
    once = runs(LOW[:4]) + runs(LOW[:1], diverged=True)
    assert check(WEAK, runs(LOW), once).verdict == UNDECIDED


def test_choices_that_decide_are_named():
    claim = order("A", ">", "B", choices={"A": "A2"})
    found = check(claim, runs(LOW), runs(HIGH), A2=runs(HIGH))
    assert found.verdict == CHOICES
    assert "With A2 instead: undecided (0 of 2 hold" in found.note
    assert check(claim, runs(LOW), runs(HIGH), A2=runs(LOW)).verdict == HOLDS
    assert check(claim, runs(HIGH), runs(LOW), A2=runs(HIGH)).verdict == FAILS


def test_a_claim_may_be_about_the_beginning():
    late = runs(LOW)
    for row in (row for history in late for row in history.rows[:61]):
        row["grad_norm"] = 1.0
    assert check(order("A", ">", "B", at=60), late, runs(HIGH)).verdict == FAILS
    assert check(STRICT, late, runs(HIGH)).verdict == HOLDS


def test_a_larger_step_is_compared_with_the_next_at_equal_clients():
    assert check(FASTER, runs(LOW), runs(LOW), a2=runs(HIGH)).verdict == HOLDS
    assert check(FASTER, runs(HIGH), runs(LOW), a2=runs(LOW)).verdict == FAILS
    panels = tuple(
        PanelRuns("", {"A": runs(ends)}, {"clients": clients, "step": step})
        for clients, step, ends in ((50, 0.1, LOW), (50, 0.03, HIGH), (5, 0.1, HIGH))
    )
    found = evaluate(FASTER, {"f": FigureRuns("f", "F", "", 3, panels)})
    assert [finding.comparison for finding in found.findings] == ["A: step 0.1 > 0.03"]
    assert found.verdict == HOLDS


@pytest.mark.parametrize(
    ("clients", "verdict"),
    [
        ([9.5] * 5, HOLDS), ([9.9] * 5, HOLDS), ([10.4] * 5, FAILS), ([12.0] * 5, FAILS),
        ([9.0, 9.6, 10.2, 10.6, 11.0], WITHIN),  # above 2S by chance
    ],
)  # fmt: skip
def test_clients_per_round(clients, verdict):
    """With S = 5 of N = 50 the expected number is 9.5, 2S is 10 and the tolerance ends at 9.975."""
    spread = [run for count in clients for run in runs(LOW[:1], clients=count)]
    found = check(CLIENTS, spread, runs(LOW)).findings[0]
    assert float(re.search(r"[\d.]+", found.measured).group()) == pytest.approx(np.mean(clients))
    assert found.verdict == verdict
    assert "less than 2S = 10" in found.needed
    assert "tolerance 1.05x" in found.needed


def test_gradients_per_call():
    assert check(WORK, runs(LOW), runs(LOW, gradients=40.0)).verdict == HOLDS
    assert check(WORK, runs(LOW), runs(LOW, gradients=80.0)).verdict == FAILS
    choices = {"local rounds": "all calls"}
    claim = Claim("t", "count", ("A", "B"), column="gradients", choices=choices)
    refreshed = runs(LOW)
    for row in (row for history in refreshed for row in history.rows):
        # four full rounds of 50 clients with 10 rows, beside 38 gradients a call
        row["clients"] += 4 * 50
        row["gradients"] += 4 * 500
        row["full_rounds"] = 4
    assert check(claim, refreshed, runs(LOW, gradients=56.0)).verdict == CHOICES
    assert check(claim, refreshed, runs(LOW, gradients=30.0)).verdict == HOLDS


@pytest.mark.parametrize(
    ("near", "verdict"),
    [
        ([[0.2], [0.3], [0.4]], HOLDS), ([[0.2, 0.3], [0.3], [0.3, 0.4]], UNDECIDED),
        ([[0.2, 0.3], [0.2], [0.2]], FAILS), ([[], [0.2], [0.2]], UNDECIDED),
    ],
)  # fmt: skip
def test_tuned_steps_to_targets_that_hold_and_to_their_first_touch(near, verdict):
    def tuned(hold, near):
        return [
            book.TunedCurve(
                panel="10 clients", label=str(i), hold=hold, K=1, eta_g=v[0] if v else 0.1,
                rho=None, rounds_on_held_out_seeds=[], within_tenth=v,
            )
            for i, v in enumerate(near)
        ]  # fmt: skip

    name = "local-steps/a9a"
    claim = Claim(
        "t", "steps", ("0", "1", "2"), figures=(name,), printed=((0.2, 0.3, 0.4),),
        choices={"held": "the first touch"},
    )  # fmt: skip
    figures = {name: FigureRuns(name, "", "", 1, ())}

    def check(held, touched):
        searched = {name: tuned(0.25, held) + tuned(0.0, touched)}
        return evaluate(claim, figures, partial(book.check_steps, searched))

    found = check(near, [[0.1], [0.1]])
    assert found.verdict == (CHOICES if verdict == HOLDS else verdict)
    assert "With the first touch instead: does not hold (0 of 1 hold" in found.note
    (finding,) = found.findings
    assert "the paper: 0.2/0.3/0.4" in finding.measured
    touched = check([[0.1], [0.1]], near)
    assert f"With the first touch instead: {verdict} (" in touched.note
    assert "--tune" in evaluate(claim, figures).note


def test_a_claim_is_about_the_figures_that_it_names_or_all():
    assert len(check(STRICT, runs(LOW), runs(HIGH)).findings) == 2
    both = check(order("A", ">", "B", figures=("f", "g")), runs(LOW), runs(HIGH))
    assert (both.verdict, both.note) == (HOLDS, "Not run: g.")
    assert check(order("A", ">", "B", figures=("g",)), runs(LOW), runs(HIGH)).findings == ()


def test_every_claim_of_the_paper_names_figures_and_curves_that_exist():
    found = book.claims()
    assert len(found) == 10
    for claim in found:
        for name in claim.figures:
            (study,) = book.load([name], store="runs")
            labels = {curve.label for curve in study.curves}
            assert {*claim.curves} - {">", ">=", "<", "="} <= labels
            if claim.kind == "order":  # elsewhere a choice names what is counted
                assert {*claim.choices.values()} <= labels


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"txt": "x"}, "unknown key 'txt'"),
        ({"text": "x", "kind": "magic", "curves": ["A"]}, "kind must be"),
        ({"text": "x"}, "is missing"),
        ({"text": "x", "kind": "order", "curves": ["A", "is", "B"]}, "between"),
        ({"text": "x", "kind": "faster", "curves": []}, "at least one curve"),
    ],
)
def test_mistakes_in_a_claim_are_errors(table, fault):
    with pytest.raises(InputError, match=fault):
        structure(Claim, table, "study.toml, [claims] 1")
