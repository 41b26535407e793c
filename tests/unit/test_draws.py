"""Check draws: uniform, without replacement, and a function of their keys alone."""

import numpy as np
import pytest

from fedpage.core.errors import InputError
from fedpage.core.random import RoundDraws, permutation, uniforms


def test_known_values_do_not_change():
    """A seed gives the same run in every version, so these values must never change."""
    draws = RoundDraws(seed=42, round=3)
    assert draws.clients(1000, 5).tolist() == [22, 385, 455, 607, 774]
    assert draws.coin(0.3) is False
    rows = draws.rows(np.array([7]), np.array([10]), 4, 0, 2)
    assert rows[0].tolist() == [[0, 4, 8, 3], [0, 7, 8, 3]]
    assert uniforms(1, 2, size=2).tolist() == [0.9930356850293385, 0.5537025951273253]


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("S", [1, 3, 30])
def test_every_client_is_drawn_equally_often(S):
    N, rounds = 50, 4000
    counts = np.zeros(N)
    for r in range(rounds):
        chosen = RoundDraws(0, r).clients(N, S)
        assert len(set(chosen.tolist())) == S
        assert (np.diff(chosen) > 0).all()
        counts[chosen] += 1
    # with 49 degrees of freedom, 0.0003 of uniform draws are above 90
    assert chi_square(counts, rounds * S / N) < 90


def test_every_subset_of_rows_is_equally_likely():
    counts: dict[tuple[int, ...], int] = {}
    clients, sizes = np.arange(400), np.full(400, 5)
    for r in range(25):
        for row in RoundDraws(1, r).rows(clients, sizes, 2, 0, 1)[:, 0]:
            key = tuple(sorted(row.tolist()))
            counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 10
    assert chi_square(np.array(list(counts.values())), 1000.0) < 30  # 9 degrees of freedom


def test_large_minibatches_are_uniform_and_without_replacement():
    counts = np.zeros(100)
    for r in range(300):
        rows = RoundDraws(2, r).rows(np.array([3]), np.array([100]), 60, 0, 1)[0, 0]
        assert len(set(rows.tolist())) == 60
        counts[rows] += 1
    # each count has variance 300*0.6*0.4 = 72, so about 40 is expected
    assert chi_square(counts, 180.0) < 80


def test_a_minibatch_depends_on_seed_round_client_and_number_only():
    rows = RoundDraws(5, 9).rows(np.array([2, 8, 30]), np.array([40, 50, 3]), 4, 0, 6)
    assert (RoundDraws(5, 9).rows(np.array([8]), np.array([50]), 4, 2, 3)[0] == rows[1, 2:5]).all()
    assert rows[2, 0].tolist() == [0, 1, 2, 0]  # all three rows, then padding
    assert not (RoundDraws(5, 10).rows(np.array([8]), np.array([50]), 4, 0, 6)[0] == rows[1]).all()
    assert not (RoundDraws(6, 9).rows(np.array([8]), np.array([50]), 4, 0, 6)[0] == rows[1]).all()


def test_coins_come_up_with_probability_p_and_are_paired_across_p():
    small = [RoundDraws(3, r).coin(0.1) for r in range(5000)]
    large = [RoundDraws(3, r).coin(0.4) for r in range(5000)]
    assert abs(sum(small) - 500) < 100
    assert all(b for a, b in zip(small, large, strict=True) if a)
    assert RoundDraws(3, 0).coin(1.0)


def test_geometric_numbers_have_their_probabilities_and_are_independent_of_coins():
    """A seed gives the same run in every version, so the known values must never change."""
    assert [RoundDraws(42, r).geometric(0.2) for r in range(6)] == [9, 5, 2, 5, 3, 7]
    assert all(RoundDraws(1, r).geometric(1.0) == 1 for r in range(50))
    n, p = 20_000, 0.3
    drawn = np.array([RoundDraws(7, r).geometric(p) for r in range(n)])
    expected = n * p * (1 - p) ** np.arange(8)
    counts = np.array([(drawn == k).sum() for k in range(1, 9)])
    assert chi_square(counts, expected) < 26  # 8 cells of about 9; 0.001 are above
    assert drawn.mean() == pytest.approx(1 / p, rel=0.02)
    coins = np.array([RoundDraws(7, r).coin(p) for r in range(n)])
    assert abs(coins[drawn == 1].mean() - p) < 0.025
    longest = [RoundDraws(7, r).geometric(1e-6) for r in range(200)]
    assert np.mean(longest) == pytest.approx(1e6, rel=0.25)


def test_keys_of_codecs_are_functions_of_seed_round_client_and_field():
    clients = np.array([3, 9, 4])
    keys = RoundDraws(1, 2).client_keys(clients, 0)
    assert keys[1] == RoundDraws(1, 2).client_keys(np.array([9]), 0)[0]
    others = [(2, 2, 0), (1, 3, 0), (1, 2, 1)]
    found = [RoundDraws(seed, r).client_keys(clients, field) for seed, r, field in others]
    assert len({*keys.tolist(), *np.concatenate(found).tolist()}) == 12
    shared = {int(RoundDraws(1, r).shared_key(field)) for r in range(3) for field in range(3)}
    assert len(shared) == 9


def test_permutations_contain_every_index_once():
    assert sorted(permutation(3, 1, size=1000).tolist()) == list(range(1000))
    assert permutation(3, 1, size=1000).tolist() != permutation(4, 1, size=1000).tolist()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "0", True])
def test_invalid_seeds_are_refused(seed):
    with pytest.raises(InputError, match="seed"):
        uniforms(seed, size=1)
