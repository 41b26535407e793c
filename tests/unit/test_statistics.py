"""Paired comparisons and ranks over problems, against truths that are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedpage.core.errors import InputError
from fedpage.studies.ranks import rank_over_problems
from fedpage.studies.statistics import (
    Pair,
    compare_pairs,
    format_beside,
    format_p,
    rank_test,
    t_interval,
    tied_with_best,
)

INF, NAN = math.inf, math.nan


def test_interval_and_p_value_are_scipys():
    rng = np.random.default_rng(0)
    for n in (2, 5, 10):
        a, b = rng.lognormal(0, 1, n), rng.lognormal(0.5, 1, n)
        pair = Pair("a", "b", tuple(a), tuple(b))
        expected = stats.ttest_rel(np.log(a), np.log(b))
        limits = expected.confidence_interval(0.95)
        assert pair.p_value == pytest.approx(expected.pvalue, rel=1e-9)
        wanted = np.exp([np.log(a / b).mean(), limits.low, limits.high])
        assert pair.interval == pytest.approx(tuple(wanted), rel=1e-9)
        assert pair.effect_size == pytest.approx(expected.statistic / math.sqrt(n), rel=1e-9)


def test_the_interval_of_two_values_by_hand():
    """One degree of freedom has the quantile tan(0.475 pi); the standard error of 0, 2 is 1."""
    half = math.tan(0.475 * math.pi)
    assert t_interval([0.0, 2.0]) == pytest.approx((1.0, 1 - half, 1 + half), rel=1e-9)
    assert t_interval([3.0]) == (3.0, -INF, INF)
    assert t_interval([0.1] * 7) == (0.1, 0.1, 0.1)


def test_the_interval_holds_a_planted_ratio_as_often_as_it_says():
    """Five seeds, 2000 studies: the true ratio 0.5 is held in 95 %, and BCa holds it less often."""
    rng = np.random.default_rng(0)
    logs = math.log(0.5) + 0.3 * rng.standard_normal((2000, 5))
    held = 0
    for row in logs:
        _, low, high = Pair("a", "b", tuple(np.exp(row)), (1.0,) * 5).interval
        held += low <= 0.5 <= high
    assert 0.94 <= held / len(logs) <= 0.96
    boot = stats.bootstrap(
        (logs[:400],), np.mean, axis=1, n_resamples=999, method="BCa", rng=rng
    ).confidence_interval
    assert ((boot.low <= math.log(0.5)) & (math.log(0.5) <= boot.high)).mean() < 0.9


def test_interval_and_verdict_agree():
    """One pair is told apart exactly where its interval leaves out 1."""
    rng = np.random.default_rng(1)
    seen = set()
    for shift in np.linspace(0, 1, 60):
        a, b = rng.lognormal(shift, 0.3, 6), rng.lognormal(0, 0.3, 6)
        pair = Pair("a", "b", tuple(a), tuple(b))
        _, low, high = pair.interval
        assert pair.is_different == (low > 1 or high < 1)
        assert (pair.better is None) != pair.is_different
        seen.add(pair.better)
    assert seen >= {"b", None}


def test_equal_methods_are_rarely_called_different():
    """All pairs of four equal methods: at least one false verdict in at most 5 % of the studies."""
    rng = np.random.default_rng(2)
    wrong, trials = 0, 300
    for _ in range(trials):
        costs = {str(i): dict(enumerate(row)) for i, row in enumerate(rng.lognormal(size=(4, 6)))}
        wrong += any(pair.is_different for pair in compare_pairs(costs))
    assert wrong <= 0.05 * trials


def test_pairs_are_adjusted_by_hand():
    """Holm: three p-values p1 <= p2 <= p3 become 3 p1, 2 p2, p3, each at least the one before."""
    rng = np.random.default_rng(3)
    costs = {
        name: dict(enumerate(rng.lognormal(shift, 0.2, 8)))
        for name, shift in (("a", 0.0), ("b", 0.1), ("c", 0.6))
    }
    pairs = compare_pairs(costs)
    assert [(pair.first, pair.second) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    p = sorted(pair.p_value for pair in pairs)
    wanted = [3 * p[0], max(3 * p[0], 2 * p[1]), max(3 * p[0], 2 * p[1], p[2])]
    assert sorted(pair.adjusted for pair in pairs) == pytest.approx(wanted, rel=1e-12)


def test_only_shared_seeds_are_compared():
    costs = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {1: 20.0, 2: 30.0, 3: 40.0}, "c": {9: 1.0}}
    (pair,) = compare_pairs(costs)
    assert (pair.a, pair.b) == ((2.0, 3.0), (20.0, 30.0))


def test_a_seed_that_does_not_reach_makes_no_ratio():
    """Nothing is averaged with an infinity: the exact rank-sum test decides."""
    a, b = (1.0, 2.0, 3.0, 4.0, 5.0), (6.0, 7.0, 8.0, INF, INF)
    pair = Pair("A", "B", a, b)
    assert all(math.isnan(value) for value in (*pair.interval, pair.effect_size))
    assert pair.p_value == rank_test(a, b) == pytest.approx(2 / 252)
    assert (pair.better, pair.wins, pair.superiority) == ("A", (5, 0), 1.0)
    assert pair.sentence("bytes") == (
        "A reaches the target on 5 of 5 seeds and B on 3; A is ahead on 5 and B on 0 "
        "(p = 0.0079, rank-sum test)"
    )
    assert Pair("B", "A", b, a).better == "A"
    mixed = Pair("A", "B", (1.0, INF, 3.0, 4.0, 5.0), (2.0, 2.0, INF, INF, INF))
    assert mixed.better is None
    assert mixed.sentence().endswith("they cannot be told apart")


def test_nobody_who_reaches_is_not_compared():
    pair = Pair("A", "B", (INF,) * 6, (INF,) * 6)
    assert (pair.has_verdict, pair.is_different, pair.p_value) == (False, False, 1.0)
    assert "cannot be compared: neither reaches the target on any of 6 seeds" in pair.sentence()
    (only,) = compare_pairs({"A": dict.fromkeys(range(6), INF), "B": dict.fromkeys(range(6), INF)})
    assert only.adjusted is None


def test_a_cost_of_nothing_has_no_ratio():
    """A run that starts at the target costs 0, whose logarithm is not finite."""
    pair = Pair("A", "B", (0.0,) * 5, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert pair.differences is None
    assert pair.better == "A"


def test_seeds_that_agree_exactly():
    same = Pair("A", "B", (2.0,) * 5, (2.0,) * 5)
    assert (same.interval, same.p_value, same.effect_size) == ((1.0, 1.0, 1.0), 1.0, 0.0)
    assert same.superiority == 0.5
    half = Pair("A", "B", (2.0,) * 5, (4.0,) * 5)
    assert half.interval == pytest.approx((0.5, 0.5, 0.5))
    assert (half.p_value, half.better, half.effect_size) == (0.0, "A", -INF)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_no_verdict_from_few_seeds(seeds):
    """Not even where every seed agrees; the sentence says how many are needed."""
    costs = {"A": dict.fromkeys(range(seeds), 1.0), "B": dict.fromkeys(range(seeds), 9.0)}
    pairs = compare_pairs(costs)
    assert (pairs[0].has_verdict, pairs[0].better) == (False, None)
    number = "1 seed" if seeds == 1 else f"{seeds} seeds"
    assert pairs[0].sentence() == (
        f"A and B: no verdict from {number}: at least 5 are needed; add --seeds 5"
    )
    assert tied_with_best("A", pairs) == frozenset()


def test_values_where_higher_is_better():
    a, b = (0.90, 0.91, 0.92, 0.90, 0.91), (0.80, 0.82, 0.81, 0.80, 0.80)
    pair = Pair("A", "B", a, b, "difference", True)
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert pair.interval[1:] == pytest.approx((expected.low, expected.high))
    assert (pair.better, pair.wins) == ("A", (5, 0))
    assert pair.sentence("accuracy") == (
        "A has 0.102 more accuracy than B [+0.0916, +0.112] on 5 paired seeds (p < 0.001)"
    )
    diverged = Pair("A", "B", a, (-INF, -INF, 0.81, 0.80, -INF), "difference", True)
    assert diverged.better == "A"
    assert Pair("A", "B", b, a, "difference", True).better == "B"


@pytest.mark.parametrize(
    ("a", "b"), [((), ()), ((1.0,), (1.0, 2.0)), ((NAN,), (1.0,)), ((1.0,), (-1.0,))]
)
def test_what_is_no_pair_is_refused(a, b):
    with pytest.raises(InputError, match="A and B: "):
        Pair("A", "B", a, b)
    with pytest.raises(InputError, match="finite values"):
        t_interval([1.0, INF])


def test_the_sentence():
    a, b = (4.0, 5.0, 3.0, 4.0, 4.0), (10.0, 11.0, 9.0, 9.0, 11.0)
    costs = {"FedPAGE": a, "SCAFFOLD": b, "FedAvg": (10.5, 10.0, 9.5, 9.5, 10.0)}
    pairs = compare_pairs({name: dict(enumerate(values)) for name, values in costs.items()})
    assert pairs[0].sentence("bytes") == (
        "FedPAGE needs 0.40 times the bytes of SCAFFOLD [0.34, 0.47] on 5 paired seeds "
        "(p < 0.001 after Holm)"
    )
    assert pairs[2].sentence("bytes").endswith("after Holm): they cannot be told apart")
    assert tied_with_best("FedPAGE", pairs) == {"FedPAGE"}
    assert tied_with_best("SCAFFOLD", pairs) >= {"SCAFFOLD", "FedAvg"}


def test_a_sentence_says_when_only_the_number_of_pairs_prevents_a_verdict():
    """Its interval, of this pair alone, leaves out 1; without the reason it would contradict."""
    pair = Pair(
        "A", "B", (1.0, 1.1, 1.2, 1.1, 1.3), (1.4, 1.2, 1.5, 1.6, 1.4), adjusted=0.06, pairs=3
    )
    assert pair.interval[2] < 1
    assert pair.p_value < 0.05
    end = "(p = 0.06 after Holm): not told apart, because 3 pairs were compared"
    assert pair.sentence().endswith(end)


@pytest.mark.parametrize("value", [0.9949, 0.9951, 0.99996, 1.0, 1.0001, 1.4, 0.04, 250.4])
def test_a_printed_number_stays_on_its_side(value):
    text = format_beside(value, 1.0)
    assert np.sign(float(text) - 1.0) == np.sign(value - 1.0)
    assert float(text) == pytest.approx(value, rel=0.02)
    for p in (0.0499, 0.05, 0.0501, 0.049999):
        assert (float(format_p(p).split()[-1]) < 0.05) == (p < 0.05)


# --- ranks over problems --------------------------------------------------------------------------

DEMSAR = [
    (4, 3, 2, 1), (1, 2, 3, 4), (4, 1, 2, 3), (4, 1, 3, 2), (4, 2, 3, 1), (1, 2.5, 4, 2.5),
    (3, 2, 4, 1), (2.5, 2.5, 4, 1), (4, 3, 2, 1), (2.5, 2.5, 2.5, 2.5), (4, 2.5, 1, 2.5),
    (3, 2, 4, 1), (4, 1, 2, 3), (3, 1, 4, 2),
]  # fmt: skip
"""The ranks in Table 6 of Demšar (2006): C4.5 in four variants on 14 data sets."""


def by_problem(rows, names="abcd"):
    return {str(i): dict(zip(names, row, strict=True)) for i, row in enumerate(rows)}


def test_the_published_example():
    """Demšar's mean ranks, chi-square 9.28 (without correction for ties), q 2.569 and CD 1.25."""
    found = rank_over_problems(by_problem(DEMSAR))
    rounded = {name: round(rank, 3) for name, rank in found.mean_ranks.items()}
    assert rounded == {"d": 1.964, "b": 2.0, "c": 2.893, "a": 3.143}
    ties = sum(n**3 - n for row in DEMSAR for n in np.unique(row, return_counts=True)[1])
    assert found.chi_square * (1 - ties / (14 * 4 * 15)) == pytest.approx(9.28, abs=0.01)
    assert found.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    assert found.groups == (("d", "b", "c", "a"),)  # Nemenyi finds no difference at 5 %, he says
    at_ten = rank_over_problems(by_problem(DEMSAR), alpha=0.1)
    assert at_ten.critical_difference == pytest.approx(1.12, abs=0.005)
    assert at_ten.groups == (("d", "b", "c"), ("c", "a"))


def test_friedman_is_scipys_with_ties_and_infinities():
    rng = np.random.default_rng(4)
    rows = rng.integers(1, 6, (9, 4)).astype(float)
    rows[rows == 5] = INF
    found = rank_over_problems(by_problem(rows))
    ranks = np.array([stats.rankdata(row) for row in rows])
    expected = stats.friedmanchisquare(*ranks.T).statistic
    assert found.chi_square == pytest.approx(expected, rel=1e-9)
    F = 8 * expected / (9 * 3 - expected)
    assert found.p_value == pytest.approx(stats.f.sf(F, 3, 24), rel=1e-9)


def test_groups_overlap_and_sentences_say_who_is_tied():
    rows = [(1, 2, 3, 4)] * 12 + [(2, 1, 4, 3)] * 8
    found = rank_over_problems(by_problem(rows))
    assert found.groups == (("a", "b"), ("c", "d"))
    assert found.sentence() == (
        "a has the best mean rank, 1.40 over 20 problems (Friedman's test: p < 0.001; "
        "critical difference 1.05); not told from it: b"
    )
    alike = rank_over_problems(by_problem(itertools.permutations((1, 2, 3, 4))))
    assert alike.p_value == 1.0
    assert "do not tell the methods apart" in alike.sentence()
    assert rank_over_problems(by_problem([(1, 1)] * 3, "ab")).p_value == 1.0
    assert rank_over_problems(by_problem([(1, 2)] * 3, "ab")).p_value == 0.0


def test_ranks_refuse_what_is_missing():
    with pytest.raises(InputError, match="at least 2 problems and 2 methods, not 1 and 4"):
        rank_over_problems(by_problem(DEMSAR[:1]))
    with pytest.raises(InputError, match="problem two: b has no cost"):
        rank_over_problems({"one": {"a": 1.0, "b": 2.0}, "two": {"a": 1.0}})
    with pytest.raises(InputError, match="problem two: b has no cost"):
        rank_over_problems({"one": {"a": 1.0, "b": 2.0}, "two": {"a": 1.0, "b": NAN}})
