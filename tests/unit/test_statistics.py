"""Samples of costs, paired comparisons and ranks over problems, against truths that are known."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report.numbers import format_beside, format_p
from fedpage.studies import statistics
from fedpage.studies.statistics import (
    CostSample,
    Pair,
    compare_pairs,
    holm,
    rank_test,
    ranking,
    t_interval,
)

INF, NAN = math.inf, math.nan


# --- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interval_of_a_median_has_the_level_that_it_states(n):
    """Each value is below the true median with probability 1/2: enumerate all 2^n cases."""
    held = 0
    for below in itertools.product((True, False), repeat=n):
        # Values -i are below the median 0 and values i above it; all that matters is their order.
        costs = sorted(100 - i if is_below else 100 + i for i, is_below in enumerate(below, 1))
        found = CostSample(tuple(costs))
        held += found.low < 100 < found.high
    assert found.level == pytest.approx(held / 2**n, abs=1e-12)
    assert (found.level >= 0.95) == (n >= 6)


@pytest.mark.parametrize(
    ("costs", "unit", "text"),
    [
        ((1.2e6,) * 5 + (1.0e6,) * 3 + (1.5e6,) * 2, "B", "1.2 MB [1, 1.5], 10 of 10 seeds"),
        ((999_600.0,), "B", "1 MB [1, 1], 1 of 1 seeds"),
        ((1000.0,), "bit", "1 kbit [1, 1], 1 of 1 seeds"),
        ((0.5,), "s", "0.5 s [0.5, 0.5], 1 of 1 seeds"),
        ((32_504.0, 30_000.0, 41_234.0), "", "32500 [30000, 41230], 3 of 3 seeds"),
        ((0.0,), "B", "0 B [0, 0], 1 of 1 seeds"),
        ((INF, 3.0, 1.0, 2.0, INF), "B", "3 B [1, not reached], 3 of 5 seeds"),
        ((INF, 3.0, INF), "B", "not reached in the median, 1 of 3 seeds"),
        ((1.0, INF), "B", "not reached in the median, 1 of 2 seeds"),
    ],
)
def test_a_sample_is_one_line(costs, unit, text):
    """Seeds that did not reach the target count as the largest; the units agree."""
    assert CostSample(costs).text(unit) == text


# --- tests of separate seeds ----------------------------------------------------------------------


def enumerate_divisions(a, b):
    """Compute the p-value from all divisions, with U = wins + ties/2."""
    both = a + b

    def u(chosen):
        rest = [both[i] for i in range(len(both)) if i not in chosen]
        pairs = itertools.product([both[i] for i in chosen], rest)
        return sum(1.0 if x < y else 0.5 if x == y else 0.0 for x, y in pairs)

    middle = len(a) * len(b) / 2
    seen = abs(u(range(len(a))) - middle)
    divisions = list(itertools.combinations(range(len(both)), len(a)))
    return sum(abs(u(division) - middle) >= seen for division in divisions) / len(divisions)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), ((1.0, 2.0, 2.0, 5.0), (2.0, 3.0, INF)),
        ((INF, INF, 1.0), (INF, 2.0, 2.0, 2.0)), ((1.0,), (1.0,)), ((INF, INF), (INF, INF, INF)),
        ((3.0, 1.0, 4.0, 1.0, 5.0), (9.0, 2.0, 6.0, 5.0)),
    ],
)  # fmt: skip
def test_the_rank_test_is_exact_with_ties_and_infinities(a, b):
    expected = enumerate_divisions(a, b)
    assert rank_test(a, b) == pytest.approx(expected, abs=1e-12)
    assert rank_test(b, a) == pytest.approx(expected, abs=1e-12)


def test_the_rank_test_without_ties_is_scipys(monkeypatch):
    """Ten seeds each, exactly; many seeds by the normal approximation, which is close."""
    rng = np.random.default_rng(0)
    a, b = rng.exponential(1.0, 10), rng.exponential(2.0, 10)
    exact = rank_test(a, b)
    assert exact == pytest.approx(stats.mannwhitneyu(a, b, method="exact").pvalue, rel=1e-12)
    monkeypatch.setattr(statistics, "_MOST_EXACT", 5)
    assert rank_test(a, b) == pytest.approx(exact, abs=0.02)
    assert rank_test((INF,) * 6, (INF,) * 6) == 1.0


def test_holm_steps_down():
    """An adjusted p-value is at least those before it, and at most 1."""
    assert holm([0.5, 0.001, 0.02, 0.019]) == pytest.approx([0.5, 0.004, 0.057, 0.057])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_ranking_says_who_is_tied_with_the_first():
    """Medians decide the order; seeds that failed decide where medians are equal."""
    costs = {
        "far": tuple(float(i) for i in range(101, 111)),
        "near": tuple(i + 0.5 for i in range(1, 11)),
        "first": tuple(float(i) for i in range(1, 11)),
        "never": (INF,) * 10,
        "rarely": (INF,) * 9 + (1.0,),
    }
    places = ranking({name: CostSample(values) for name, values in costs.items()})
    assert list(places) == ["first", "near", "far", "rarely", "never"]
    assert [is_tied for _, is_tied in places.values()] == [True, True, False, False, False]
    assert places["first"] == (1.0, True)


def test_equal_methods_are_rarely_called_different():
    """In at most 5 % of the studies: the adjustment for all pairs covers the choice of the best."""
    rng = np.random.default_rng(2)
    wrong, trials = np.zeros(2), 300
    for _ in range(trials):
        costs = dict(enumerate(rng.lognormal(size=(4, 6))))
        places = ranking({str(i): CostSample(tuple(row)) for i, row in costs.items()})
        pairs = compare_pairs({str(i): dict(enumerate(row)) for i, row in costs.items()})
        wrong += [
            not all(is_tied for _, is_tied in places.values()),
            any(pair.is_different for pair in pairs),
        ]
    assert (wrong <= 0.05 * trials).all()


# --- pairs of seeds -------------------------------------------------------------------------------


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
    assert t_interval([3.0]) == (3.0, -INF, INF)
    assert t_interval([0.1] * 7) == (0.1, 0.1, 0.1)


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


def test_pairs_are_adjusted_together_on_the_seeds_that_they_share():
    rng = np.random.default_rng(3)
    shifts = {"a": 0.0, "b": 0.1, "c": 0.6}
    costs = {name: dict(enumerate(rng.lognormal(s, 0.2, 8))) for name, s in shifts.items()}
    pairs = compare_pairs(costs | {"alone": {99: 1.0}})
    assert [(pair.first, pair.second) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [pair.adjusted for pair in pairs] == holm([pair.p_value for pair in pairs])
    (pair,) = compare_pairs({"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {1: 20.0, 2: 30.0, 3: 40.0}})
    assert (pair.a, pair.b) == ((2.0, 3.0), (20.0, 30.0))
    for wrong in (NAN, -1.0):
        with pytest.raises(InputError, match="b: values must be"):
            compare_pairs({"a": {0: 1.0}, "b": {0: wrong}})


def test_a_seed_that_does_not_reach_makes_no_ratio():
    """Nothing is averaged with an infinity, or the log of zero: the rank-sum test decides."""
    a, b = (1.0, 2.0, 3.0, 4.0, 5.0), (6.0, 7.0, 8.0, INF, INF)
    pair = Pair("A", "B", a, b)
    assert all(math.isnan(value) for value in (*pair.interval, pair.effect_size))
    assert pair.p_value == rank_test(a, b) == pytest.approx(2 / 252)
    assert (pair.better, pair.wins, pair.superiority) == ("A", (5, 0), 1.0)
    assert pair.sentence("bytes") == (
        "A reaches the target on 5 of 5 seeds and B on 3; A is ahead on 5 and B on 0 "
        "(p = 0.0079, rank-sum test)"
    )
    assert pair.swap().better == "A"
    mixed = Pair("A", "B", (1.0, INF, 3.0, 4.0, 5.0), (2.0, 2.0, INF, INF, INF))
    assert mixed.better is None
    assert mixed.sentence().endswith("they cannot be told apart")
    at_once = Pair("A", "B", (0.0,) * 5, a)
    assert (at_once.differences, at_once.better) == (None, "A")


def test_methods_that_never_reach_are_not_compared():
    never = dict.fromkeys(range(6), INF)
    (pair,) = compare_pairs({"A": never, "B": never})
    assert (pair.has_verdict, pair.better, pair.p_value, pair.adjusted) == (False, None, 1.0, None)
    assert "cannot be compared: neither reaches the target on any of 6 seeds" in pair.sentence()


def test_seeds_that_agree_exactly():
    same = Pair("A", "B", (2.0,) * 5, (2.0,) * 5)
    assert (same.interval, same.p_value, same.effect_size) == ((1.0, 1.0, 1.0), 1.0, 0.0)
    assert same.superiority == 0.5
    half = Pair("A", "B", (2.0,) * 5, (4.0,) * 5)
    assert half.interval == pytest.approx((0.5, 0.5, 0.5))
    assert (half.p_value, half.better, half.effect_size) == (0.0, "A", -INF)


@pytest.mark.parametrize(("seeds", "number"), [(1, "1 seed"), (4, "4 seeds")])
def test_no_verdict_from_few_seeds(seeds, number):
    """Not even where every seed agrees; the sentence says how many are needed."""
    costs = {"A": dict.fromkeys(range(seeds), 1.0), "B": dict.fromkeys(range(seeds), 9.0)}
    (pair,) = compare_pairs(costs)
    assert (pair.has_verdict, pair.better) == (False, None)
    text = f"A and B: no verdict from {number}: at least 5 are needed; add --seeds 5"
    assert pair.sentence() == text


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
    assert (diverged.better, diverged.swap().better, pair.swap().better) == ("A", "A", "A")


def test_sentences_of_pairs():
    a, b = (4.0, 5.0, 3.0, 4.0, 4.0), (10.0, 11.0, 9.0, 9.0, 11.0)
    costs = {"FedPAGE": a, "SCAFFOLD": b, "FedAvg": (10.5, 10.0, 9.5, 9.5, 10.0)}
    pairs = compare_pairs({name: dict(enumerate(values)) for name, values in costs.items()})
    assert pairs[0].sentence("bytes") == (
        "FedPAGE needs 0.40 times the bytes of SCAFFOLD [0.34, 0.47] on 5 paired seeds "
        "(p < 0.001 after Holm)"
    )
    assert pairs[2].sentence("bytes").endswith("after Holm): they cannot be told apart")
    # The interval, of this pair alone, leaves out 1; without the reason it would contradict.
    c, d = (1.0, 1.1, 1.2, 1.1, 1.3), (1.4, 1.2, 1.5, 1.6, 1.4)
    pair = Pair("A", "B", c, d, adjusted=0.06, pairs=3)
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
PAIRED = [(1, 2, 3, 4)] * 12 + [(2, 1, 4, 3)] * 8


def by_problem(rows, names="abcd"):
    return {str(i): dict(zip(names, row, strict=True)) for i, row in enumerate(rows)}


def test_the_published_example():
    """Demšar's mean ranks, chi-square 9.28 (without correction for ties), q 2.569 and CD 1.25."""
    found = fp.rank_over_problems(by_problem(DEMSAR))
    rounded = {name: round(rank, 3) for name, rank in found.mean_ranks.items()}
    assert rounded == {"d": 1.964, "b": 2.0, "c": 2.893, "a": 3.143}
    ties = sum(n**3 - n for row in DEMSAR for n in np.unique(row, return_counts=True)[1])
    assert found.chi_square * (1 - ties / (14 * 4 * 15)) == pytest.approx(9.28, abs=0.01)
    assert found.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    assert found.groups == (("d", "b", "c", "a"),)  # Nemenyi finds no difference at 5 %, he says
    at_ten = fp.rank_over_problems(by_problem(DEMSAR), alpha=0.1)
    assert at_ten.critical_difference == pytest.approx(1.12, abs=0.005)
    assert at_ten.groups == (("d", "b", "c"), ("c", "a"))


def test_friedman_is_scipys_with_ties_and_infinities():
    rng = np.random.default_rng(4)
    rows = rng.integers(1, 6, (9, 4)).astype(float)
    rows[rows == 5] = INF
    found = fp.rank_over_problems(by_problem(rows))
    ranks = np.array([stats.rankdata(row) for row in rows])
    expected = stats.friedmanchisquare(*ranks.T).statistic
    assert found.chi_square == pytest.approx(expected, rel=1e-9)
    F = 8 * expected / (9 * 3 - expected)
    assert found.p_value == pytest.approx(stats.f.sf(F, 3, 24), rel=1e-9)


def test_groups_overlap_and_sentences_say_who_is_tied():
    found = fp.rank_over_problems(by_problem(PAIRED))
    assert found.groups == (("a", "b"), ("c", "d"))
    assert found.sentence() == (
        "a has the best mean rank, 1.40 over 20 problems (Friedman's test: p < 0.001; "
        "critical difference 1.05); not told from it: b"
    )
    alike = fp.rank_over_problems(by_problem(itertools.permutations((1, 2, 3, 4))))
    assert alike.p_value == 1.0
    assert "do not tell the methods apart" in alike.sentence()
    assert fp.rank_over_problems(by_problem([(1, 1)] * 3, "ab")).p_value == 1.0
    assert fp.rank_over_problems(by_problem([(1, 2)] * 3, "ab")).p_value == 0.0


@pytest.mark.parametrize(
    ("costs", "fault"),
    [
        (by_problem(DEMSAR[:1]), "not 1 and 4"),
        ({"one": {"a": 1.0, "b": 2.0}, "two": {"a": 1.0}}, "two: b"),
        ({"one": {"a": 1.0, "b": 2.0}, "two": {"a": 1.0, "b": NAN}}, "two: b"),
    ],
)
def test_ranks_refuse_what_is_missing(costs, fault):
    with pytest.raises(InputError, match=fault):
        fp.rank_over_problems(costs)


def test_the_diagram_of_ranks_shows_every_method_and_group(tmp_path):
    names = ("FedPAGE", "SCAFFOLD", "FedAvg", "FedProx")
    ranks = fp.rank_over_problems(by_problem(PAIRED, names))
    figure = fp.plot_critical_difference(ranks, tmp_path / "cd.pdf")
    assert b"CreationDate" not in (tmp_path / "cd.pdf").read_bytes()
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert {"FedPAGE  1.40", "SCAFFOLD  1.60", "3.40  FedAvg", "3.60  FedProx"} <= set(texts)
    assert "critical difference 1.05" in texts
    bars = [line for line in axes.lines if line.get_linewidth() == 2.6]
    for bar, group in zip(bars, ranks.groups, strict=True):
        low, high = np.asarray(bar.get_xdata(), dtype=float)
        assert low <= ranks.mean_ranks[group[0]] < ranks.mean_ranks[group[-1]] <= high
    with pytest.raises(InputError, match=r"cd\.xyz"):
        fp.plot_critical_difference(ranks, tmp_path / "cd.xyz")
