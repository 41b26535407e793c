"""The mean in fixed point: its scale, its rounding error, its bits, and methods with it."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_method, quadratic

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.engine.fixed_point import BeyondBound, FixedPointMean, decode, encode, scale_exponent

PROBLEM = fp.LogisticRegression(fp.load("census", rows=300), clients=12)
bounds = st.floats(1e-200, 1e200)


def run(method, aggregation, rounds=20, problem=PROBLEM, **options):
    return fp.simulate(
        problem, method, rounds=rounds, seed=3,
        options=fp.RunOptions(aggregation=aggregation, **options),
    )  # fmt: skip


@given(bounds, st.integers(1, 10**6))
@settings(max_examples=200, deadline=None)
def test_the_scale_is_the_largest_whose_sums_fit(bound, N):
    exponent = scale_exponent(bound, N)

    def largest_sum(e):
        return N * round(Fraction(bound) * Fraction(2) ** e)

    assert largest_sum(exponent) < 2**63 <= largest_sum(exponent + 1)


@given(bounds, st.integers(1, 50), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_the_error_of_the_mean_is_at_most_half_a_step(bound, N, seed):
    """Checked with exact fractions; the largest numbers are among the values."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.uniform(-bound, bound, size=(N, 3)), np.full((N, 1), bound)], 1)
    exponent = scale_exponent(bound, N)
    whole = encode(values, bound, exponent)
    means = decode(whole.sum(axis=0), N, exponent, np.dtype(np.float64))
    for column, found in zip(values.T, means, strict=True):
        exact = sum(map(Fraction, column)) / N
        half_a_step = Fraction(2) ** -exponent / 2
        rounding = abs(exact) * Fraction(2) ** -51  # of the mean itself to a float
        assert abs(Fraction(float(found)) - exact) <= half_a_step + rounding
        assert half_a_step <= N * Fraction(bound) * Fraction(2) ** -63 * Fraction(1001, 1000)


def test_order_and_chunks_change_no_bit():
    values = np.random.default_rng(0).normal(size=(6, 4))
    aggregation = FixedPointMean(bound=100.0)
    found = set()
    for order in itertools.permutations(range(6)):
        accumulator = aggregation.begin(0, b"", 6)
        accumulator.add([values[list(order[:2])]])
        accumulator.add([values[list(order[2:])]])
        found.add(accumulator.finish(6)[0].tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0000001, -2.0])
def test_numbers_beyond_the_bound_are_refused(value):
    with pytest.raises(BeyondBound, match="beyond the bound 1"):
        encode(np.array([0.5, value]), 1.0, 10)


def test_a_run_beyond_the_bound_fails_with_a_sentence():
    history = run(fp.FedAvg(S=6, K=3, eta_l=0.1), FixedPointMean(bound=1e-3))
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert "beyond the bound 0.001; raise bound in aggregation" in history.stop_detail


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (fp.FedAvg(S=1), "FedAvg adds up 1 replies"),
        (fp.FedAvg(S=2), "at least 3 are required"),
        (fp.FedPAGE(S=4, up="float32"), "use up=none"),
    ],
)
def test_small_cohorts_and_codecs_are_refused(method, words):
    with pytest.raises(fp.InputError, match=words):
        run(method, FixedPointMean(bound=10.0))


def test_eight_bytes_are_counted_for_every_number():
    method = fp.FedAvg(S=6, K=3)
    history = run(method, FixedPointMean(bound=10.0), rounds=5)
    assert run(fp.FedAvg(S=2), FixedPointMean(bound=10.0, least=2), rounds=3).last("round") == 3
    assert history.last("bytes_up") == 5 * 6 * 8 * PROBLEM.d
    assert history.last("bits_up") == 8 * history.last("bytes_up")


SOME = ("FedPAGE", "SCAFFOLD-II", "FedDyn", "SAGA", "SecantPAGE", "Scaffnew", "SVRP", "DANE")
"""A method of each kind that reaches x*."""


@pytest.mark.parametrize("name", SOME)
def test_methods_reach_the_optimum_as_with_the_mean(name):
    """A tenth of the rounds of the law suffices to compare with the mean."""
    problem, method, rounds = quadratic(), make_method(name, 4, 2, 0.1, full=True), 150
    plain = run(method, None, rounds, problem)
    fixed = run(method, FixedPointMean(bound=1000.0), rounds, problem)
    assert fixed.stop_reason is StopReason.FINISHED
    np.testing.assert_allclose(fixed.x, plain.x, rtol=0, atol=1e-9)
    assert not fixed.same(plain)


def test_a_round_of_a_single_client_fails_with_a_sentence():
    method = make_method("I-CGM-RG-SAGA", 4, 2, 0.1, full=True)
    history = run(method, FixedPointMean(bound=1000.0), 20, quadratic())
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert "1 clients answered, but secure aggregation" in history.stop_detail
