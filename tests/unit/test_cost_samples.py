"""Samples of costs: intervals and rank tests against exact enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import fedpage.studies.statistics as statistics
from fedpage.core.errors import InputError
from fedpage.studies.statistics import CostSample, holm, rank_test, ranking

INF = math.inf


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interval_has_the_level_that_it_states(n: int) -> None:
    """Each value is below the true median with probability 1/2: enumerate all 2^n cases."""
    held = 0
    for below in itertools.product((True, False), repeat=n):
        # Values -i are below the median 0 and values i above it; all that matters is their order.
        costs = sorted(100 - i if is_below else 100 + i for i, is_below in enumerate(below, 1))
        found = CostSample(tuple(costs))
        held += found.low < 100 < found.high
    assert found.level == pytest.approx(held / 2**n, abs=1e-12)
    assert (found.level >= 0.95) == (n >= 6)


@pytest.mark.parametrize(("n", "places"), [(5, (1, 5)), (6, (1, 6)), (10, (2, 9)), (20, (6, 15))])
def test_the_interval_is_the_textbooks(n: int, places: tuple[int, int]) -> None:
    """Order statistics of the 95 % interval of a median, as tables print them."""
    found = CostSample(tuple(float(i) for i in range(n, 0, -1)))
    assert (found.low, found.high) == places


def test_seeds_that_did_not_reach_count_as_the_largest() -> None:
    """A minority of them leaves the median finite; a majority does not."""
    few = CostSample((INF, 3.0, 1.0, 2.0, INF))
    assert (few.median, few.low, few.high, few.reached, few.worst) == (3.0, 1.0, INF, 3, INF)
    assert few.text("B") == "3 B [1, not reached], 3 of 5 seeds"
    most = CostSample((INF, 3.0, INF))
    assert most.median == INF
    assert most.text("B") == "not reached in the median, 1 of 3 seeds"
    assert CostSample((INF, INF)).median == INF
    assert CostSample((1.0, INF)).median == INF


@pytest.mark.parametrize("costs", [(), (1.0, math.nan), (-1.0,)])
def test_what_is_no_cost_is_refused(costs: tuple[float, ...]) -> None:
    """An empty sample, NaN and negative costs are errors."""
    with pytest.raises(InputError, match="at least one seed"):
        CostSample(costs)


@pytest.mark.parametrize(
    ("costs", "unit", "text"),
    [
        ((1.2e6,) * 5 + (1.0e6,) * 3 + (1.5e6,) * 2, "B", "1.2 MB [1, 1.5], 10 of 10 seeds"),
        ((999_600.0,), "B", "1 MB [1, 1], 1 of 1 seeds"),
        ((1e6,), "bit", "1 Mbit [1, 1], 1 of 1 seeds"),
        ((1000.0,), "B", "1 kB [1, 1], 1 of 1 seeds"),
        ((0.5,), "s", "0.5 s [0.5, 0.5], 1 of 1 seeds"),
        ((32_504.0, 30_000.0, 41_234.0), "", "32500 [30000, 41230], 3 of 3 seeds"),
        ((0.0,), "B", "0 B [0, 0], 1 of 1 seeds"),
    ],
)
def test_a_sample_is_one_line(costs: tuple[float, ...], unit: str, text: str) -> None:
    """The median has the unit, and the interval is in the same unit."""
    assert CostSample(costs).text(unit) == text


def _enumerate(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Compute the p-value from all divisions, with U = wins + ties/2."""
    both = a + b

    def u(chosen: tuple[int, ...]) -> float:
        rest = [both[i] for i in range(len(both)) if i not in chosen]
        pairs = itertools.product([both[i] for i in chosen], rest)
        return sum(1.0 if x < y else 0.5 if x == y else 0.0 for x, y in pairs)

    middle = len(a) * len(b) / 2
    seen = abs(u(tuple(range(len(a)))) - middle)
    divisions = list(itertools.combinations(range(len(both)), len(a)))
    return sum(abs(u(division) - middle) >= seen for division in divisions) / len(divisions)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)),
        ((1.0, 2.0, 2.0, 5.0), (2.0, 3.0, INF)),
        ((INF, INF, 1.0), (INF, 2.0, 2.0, 2.0)),
        ((1.0,), (1.0,)),
        ((INF, INF), (INF, INF, INF)),
        ((3.0, 1.0, 4.0, 1.0, 5.0), (9.0, 2.0, 6.0, 5.0)),
    ],
)
def test_the_rank_test_is_exact(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    """Also with ties and with seeds that did not reach."""
    expected = _enumerate(a, b)
    assert rank_test(a, b) == pytest.approx(expected, abs=1e-12)
    assert rank_test(b, a) == pytest.approx(expected, abs=1e-12)


def test_without_ties_it_is_scipys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seeds each, exactly; many seeds by the normal approximation, which is close."""
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(0)
    a, b = rng.exponential(1.0, 10), rng.exponential(2.0, 10)
    exact = rank_test(a, b)
    assert exact == pytest.approx(mannwhitneyu(a, b, method="exact").pvalue, rel=1e-12)
    monkeypatch.setattr(statistics, "_MOST_EXACT", 5)
    assert rank_test(a, b) == pytest.approx(exact, abs=0.02)
    assert rank_test((INF,) * 6, (INF,) * 6) == 1.0


def test_ten_seeds_tell_apart_what_does_not_overlap() -> None:
    """Five seeds do too; two cannot."""
    low, high = tuple(range(1, 11)), tuple(range(11, 21))
    assert rank_test(low, high) < 0.05
    assert rank_test(low[:5], high[:5]) < 0.05
    assert rank_test(low[:2], high[:2]) >= 0.05


def test_holm_steps_down() -> None:
    """An adjusted p-value is at least those before it, and at most 1."""
    assert holm([0.5, 0.001, 0.02]) == pytest.approx([0.5, 0.003, 0.04])
    assert holm([0.02, 0.019]) == pytest.approx([0.038, 0.038])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_ranking_says_who_is_tied_with_the_first() -> None:
    """Medians decide the order; seeds that failed decide where medians are equal."""
    costs = {
        "far": tuple(float(i) for i in range(101, 111)),
        "near": tuple(i + 0.5 for i in range(1, 11)),
        "first": tuple(float(i) for i in range(1, 11)),
        "never": (INF,) * 10,
        "rarely": (INF,) * 9 + (1.0,),
    }
    places = ranking({name: CostSample(values) for name, values in costs.items()})
    assert [place.name for place in places] == ["first", "near", "far", "rarely", "never"]
    assert [place.is_tied for place in places] == [True, True, False, False, False]
    assert places[0].p_value == 1.0


def test_equal_methods_are_rarely_called_different() -> None:
    """The first is chosen by the same costs; the adjustment for all pairs covers the choice."""
    rng = np.random.default_rng(1)
    wrong, trials = 0, 200
    for _ in range(trials):
        costs = rng.exponential(size=(6, 8))
        places = ranking({str(i): CostSample(tuple(row)) for i, row in enumerate(costs)})
        wrong += not all(place.is_tied for place in places)
    assert wrong <= 0.05 * trials
