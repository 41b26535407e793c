"""Partitions: their definitions, the fewest rows of a client, and their texts."""

from __future__ import annotations

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.data import partition
from fedpage.data.partition import PARTITIONS, Partition, partition_from_text
from fedpage.data.skew import _move_rows

Y = np.where(np.arange(1000) % 10 == 0, 1.0, -1.0)
DIRICHLET = (fp.dirichlet, fp.dirichlet_yurochkin, fp.dirichlet_hsu)


def table(split, y):
    """Count the rows of each label at each client, (labels, N)."""
    labels = np.unique(y)
    return np.array(
        [[(y[split.rows(i)] == label).sum() for i in range(split.N)] for label in labels]
    )


@pytest.mark.parametrize(
    "split",
    [
        fp.blocks(1000, 7),
        fp.iid(1000, 7),
        fp.label_shards(Y, 7),
        fp.dirichlet(Y, 7, 0.3),
        fp.dirichlet_yurochkin(Y, 7, 0.3),
        fp.dirichlet_hsu(Y, 7, 0.3),
        fp.power_law(1000, 7, 1.5),
        fp.quantity_dirichlet(1000, 7, 0.3),
        fp.by_id(np.arange(1000) % 7),
    ],
    ids=lambda p: p.name,
)
def test_partitions_are_disjoint_and_leave_no_client_empty(split):
    assert split.N == 7
    assert len(set(split.order.tolist())) == len(split.order)
    assert split.sizes.min() >= 1
    assert split.sizes.sum() == len(split.order)
    assert {int(r) for i in range(7) for r in split.rows(i)} == set(split.order.tolist())


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        (fp.iid(1000, 7), "d561c3655315da15"),
        (fp.label_shards(Y, 7), "487038e621d65ba8"),
        (fp.dirichlet(Y, 7, 0.3), "7a04e04578095b6d"),
        (fp.power_law(1000, 7, 1.5), "0b2b5aa86c7b1d5e"),
        (fp.dirichlet_yurochkin(Y, 7, 0.3), "435c6e39a2d016ce"),
        (fp.dirichlet_hsu(Y, 7, 0.3), "b69d89016e285959"),
        (fp.quantity_dirichlet(1000, 7, 0.3), "34674262da460a1b"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_rows_of_clients_stay_the_same_from_version_to_version(split, digest):
    assert split.digest[:16] == digest


def test_digests_depend_on_the_seed_and_not_on_ids():
    for make in (
        lambda seed: fp.iid(1000, 5, seed=seed),
        lambda seed: fp.dirichlet(Y, 5, 0.5, seed=seed),
        lambda seed: fp.dirichlet_yurochkin(Y, 5, 0.5, seed=seed),
        lambda seed: fp.dirichlet_hsu(Y, 5, 0.5, seed=seed),
        lambda seed: fp.quantity_dirichlet(1000, 5, 0.5, seed=seed),
    ):
        assert make(1).digest == make(1).digest
        assert make(1).digest != make(2).digest
    ids = np.repeat(["a", "b"], 5)
    assert fp.by_id(ids).digest == fp.blocks(10, 2).digest


def test_representations_have_no_arrays():
    ragged = Partition("mine", np.arange(9), np.array([0, 1, 4, 9]))
    assert repr(ragged) == "Partition(mine, 3 clients, rows 1..5, median 3)"
    assert repr(fp.blocks(7, 3)) == "Partition(blocks(3), 3 clients of 2 rows)"
    assert repr(fp.blocks(1, 1)) == "Partition(blocks(1), 1 client of 1 row)"


# Definitions


def test_blocks_are_consecutive_as_in_the_paper():
    split = fp.blocks(32_561, 3250)
    assert (split.sizes == 10).all()
    assert split.order.tolist() == list(range(32_500))


def test_shards_are_pieces_of_the_rows_sorted_by_label():
    y = np.arange(1000) % 10
    for shards in (1, 2, 3):
        counts = table(fp.label_shards(y, 20, shards=shards), y)
        each = 1000 // (20 * shards)
        assert (counts.sum(axis=0) == each * shards).all()
        assert (counts > 0).sum(axis=0).max() <= 2 * shards
        if 100 % each == 0:  # no piece has rows of two labels
            assert (counts % each == 0).all()


def test_power_law_sizes_fall_and_use_every_row():
    sizes = np.sort(fp.power_law(1000, 10, 1.0).sizes)[::-1]
    assert sizes.sum() == 1000
    assert sizes[0] / sizes[1] == pytest.approx(2, rel=0.1)
    assert (fp.power_law(1000, 10, 0.0).sizes == 100).all()
    sizes = fp.power_law(1000, 10, 9.0, min_rows=20).sizes
    assert (np.sort(sizes)[:8] == 20).all()
    assert sizes.sum() == 1000


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_shares_of_dirichlet_have_the_second_moment_of_the_distribution(alpha):
    y = np.arange(40_000) % 50
    N = 10
    expected = (alpha + 1) / (N * alpha + 1)  # E sum_j p_j^2 of a symmetric Dirichlet of N parts
    shares = table(fp.dirichlet(y, N, alpha), y) / 800
    assert (shares**2).sum(axis=1).mean() == pytest.approx(expected, rel=0.15)
    firsts = [table(fp.dirichlet_yurochkin(y, N, alpha, seed=s), y)[0] / 800 for s in range(30)]
    assert np.mean([(share**2).sum() for share in firsts]) == pytest.approx(expected, rel=0.2)
    sizes = [fp.quantity_dirichlet(2000, N, alpha, s, min_rows=0).sizes for s in range(60)]
    moment = np.mean([((size / 2000) ** 2).sum() for size in sizes])
    assert moment == pytest.approx(expected, rel=0.2)


def test_dirichlet_and_yurochkin_use_every_row():
    for make in (fp.dirichlet, fp.dirichlet_yurochkin):
        for alpha in (0.01, 0.1, 1.0):
            assert sorted(make(Y, 20, alpha).order.tolist()) == list(range(1000))


def test_yurochkin_gives_no_further_label_to_a_client_that_has_its_share():
    y = np.arange(5000) % 10
    split = fp.dirichlet_yurochkin(y, 8, 0.3, seed=1)
    assert "moved" not in split.name
    counts = table(split, y)
    held = np.cumsum(counts, axis=0)
    is_full = held[:-1] >= 5000 / 8
    assert is_full.any()
    assert (counts[1:][is_full] == 0).all()
    spread = [
        np.mean([make(y, 8, 0.3, seed=seed).sizes.std() for seed in range(10)])
        for make in (fp.dirichlet_yurochkin, fp.dirichlet)
    ]
    assert spread[0] < 0.85 * spread[1]


def test_hsu_gives_equal_sizes_and_the_prior_on_average():
    y = np.repeat([0, 1, 2], [12_000, 6_000, 2_001])
    split = fp.dirichlet_hsu(y, 200, 2.0)
    assert (split.sizes == 100).all()
    shares = table(split, y) / 100
    assert shares.mean(axis=1) == pytest.approx([0.6, 0.3, 0.1], abs=0.001)
    assert shares[:, :100].mean(axis=1) == pytest.approx([0.6, 0.3, 0.1], abs=0.06)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 10.0])
def test_hsu_has_the_variance_of_the_dirichlet_distribution_of_alpha_times_prior(alpha):
    y = np.repeat([0, 1], [30_000, 10_000])
    shares = (table(fp.dirichlet_hsu(y, 400, alpha), y) / 100)[1, :150]  # before labels run out
    spread = 0.25 * 0.75 / (alpha + 1)
    counting = (0.25 * 0.75 - spread) / 100
    assert shares.var() == pytest.approx(spread + counting, rel=0.25)


def test_hsu_with_tiny_alpha_gives_one_label_each_until_labels_run_out():
    y = np.arange(1000) % 5
    counts = table(fp.dirichlet_hsu(y, 50, 1e-8), y)
    assert counts.sum() == 1000
    assert ((counts > 0).sum(axis=0) > 1).sum() <= 5
    even = table(fp.dirichlet_hsu(y, 10, 1e12), y) / 100
    assert even == pytest.approx(0.2, abs=0.15)


def test_targets_of_a_regression_are_no_labels():
    targets = np.random.default_rng(0).normal(size=500)
    for make in (fp.dirichlet_hsu, fp.dirichlet_yurochkin):
        with pytest.raises(InputError, match="targets of a regression"):
            make(targets, 5, 0.5)


# The fewest rows of a client


@pytest.mark.parametrize("name", ["mushrooms", "a9a", "census"])
@pytest.mark.parametrize("clients", [50, 200, 1000])
def test_partitions_by_label_succeed_where_labels_are_few(name, clients, real):
    y = fp.load("census").y if name == "census" else real(name).y
    each = len(y) // clients
    for alpha in (0.01, 0.1, 1.0):
        for seed in range(2):
            for make in DIRICHLET:
                split = make(y, clients, alpha, seed)
                assert (split.N, split.sizes.min() >= 1) == (clients, True)
            split = fp.quantity_dirichlet(len(y), clients, alpha, seed, min_rows=each // 2)
            assert (split.N, split.sizes.min() >= each // 2) == (clients, True)
    shards = fp.label_shards(y, clients)
    assert (shards.sizes == len(y) // (2 * clients) * 2).all()


def test_the_name_says_what_was_moved_or_dropped():
    y = np.arange(300) % 2
    moved = fp.dirichlet(y, 50, 0.1)
    lacking = fp.dirichlet(y, 50, 0.1, min_rows=0)
    empty = 50 - lacking.N
    assert moved.name == f"dirichlet(50, alpha=0.1, seed=0, min_rows=1: {empty} rows moved)"
    assert lacking.name == (
        f"dirichlet(50, alpha=0.1, seed=0, min_rows=0: {empty} empty clients dropped)"
    )
    assert sorted(lacking.order.tolist()) == list(range(300))
    assert fp.dirichlet(y, 5, 10.0).name == "dirichlet(5, alpha=10, seed=0)"
    assert fp.dirichlet(y, 5, 10.0, min_rows=9).name == "dirichlet(5, alpha=10, seed=0, min_rows=9)"


@pytest.mark.parametrize("make", [fp.dirichlet, fp.dirichlet_yurochkin])
def test_every_client_has_the_fewest_rows(make):
    for min_rows in (1, 5, 10):
        split = make(Y, 100, 0.1, min_rows=min_rows)
        assert split.sizes.min() >= min_rows
        assert sorted(split.order.tolist()) == list(range(1000))
    assert (split.sizes == 10).all()  # 100 clients of 10 rows are all there are


def test_rows_are_moved_from_the_largest_clients_one_after_another():
    owner = np.repeat([0, 2, 3, 4, 6], [9, 3, 8, 1, 2])
    sizes = np.bincount(owner, minlength=7)
    result, moved = _move_rows(owner, sizes, 2, seed=0)
    assert moved == 5 == int((result != owner).sum())
    assert np.bincount(result).tolist() == [6, 2, 3, 6, 2, 2, 2]
    left, gifts = sizes.copy(), 0
    while (missing := np.flatnonzero(left < 2)).size:
        left[np.argmax(left)] -= 1
        left[missing[0]] += 1
        gifts += 1
    assert (left.tolist(), gifts) == ([6, 2, 3, 6, 2, 2, 2], 5)
    for client in (2, 6):  # neither too small nor one of the largest
        assert (result == client).tolist() == (owner == client).tolist()
    assert (result != _move_rows(owner, sizes, 2, seed=1)[0]).any()


def test_moved_rows_are_a_random_choice_of_the_giver():
    owner = np.zeros(1000, dtype=np.int64)
    result, _ = _move_rows(owner, np.array([1000, 0]), 300, seed=3)
    given = np.flatnonzero(result == 1)
    assert len(given) == 300
    assert given.mean() == pytest.approx(500, abs=60)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fp.dirichlet(Y, 100, 0.1, min_rows=11), "at most 90 clients, or min_rows of at "),
        (lambda: fp.power_law(100, 10, min_rows=11), "at most 9 clients, or min_rows of at most 1"),
        (lambda: partition_from_text("iid", Y, 100, min_rows=11), "at most 90 clients"),
        (lambda: fp.dirichlet(Y, 5, 0.1, min_rows=2.5), "whole number of at least 0, not 2.5"),
        (lambda: fp.dirichlet(Y, 5, 0.1, min_rows=-1), "whole number of at least 0, not -1"),
        (lambda: fp.label_shards(Y, 600), "at most 1 shards, or fewer clients"),
    ],
)
def test_errors_say_what_to_change(make, text):
    with pytest.raises(InputError, match=text) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fp.blocks(5, 6),
        lambda: fp.blocks(5, 0),
        lambda: fp.blocks(5, 2.5),
        lambda: fp.dirichlet(Y, 5, 0.0),
        lambda: fp.dirichlet(Y, 5, float("nan")),
        lambda: fp.dirichlet_hsu(Y, 5, -1.0),
        lambda: fp.dirichlet_hsu(Y, 5000, 1.0),
        lambda: fp.dirichlet_yurochkin(Y, 5, float("inf")),
        lambda: fp.quantity_dirichlet(5, 6, 1.0),
        lambda: fp.power_law(5, 6),
        lambda: fp.power_law(50, 6, -1.0),
        lambda: partition_from_text("blocs", Y, 5),
        lambda: partition_from_text("dirichlet:x", Y, 5),
        lambda: partition_from_text("dirichlet", Y, 5),
        lambda: partition_from_text("by-id", Y, 5),
        lambda: partition_from_text("by-id:x", Y, 5, ids=Y),
        lambda: fp.blocks("60", 6),
        lambda: fp.label_shards(Y, 5, shards=2.5),
        lambda: fp.dirichlet(Y, 5, None),
        lambda: fp.power_law(50, 6, "x"),
        lambda: Partition("mine", np.arange(3), np.array([0, 3, 3])),
        lambda: Partition("mine", np.arange(3), np.array([0, 2, 3]), ("a", "a")),
        lambda: Partition("mine", np.array([0, 1, 0]), np.array([0, 2, 3])),
        lambda: Partition("mine", np.array([0, -1, 1]), np.array([0, 2, 3])),
    ],
)
def test_impossible_partitions_are_refused_in_one_line(make):
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)


# Texts


def test_partition_texts_are_understood():
    for text in (
        "blocks",
        "iid",
        "label-shards",
        "label-shards:1",
        "dirichlet:0.5",
        "dirichlet-hsu:0.5",
        "dirichlet_yurochkin:0.5",
        "quantity-dirichlet:0.5",
        "power-law",
        "power-law:0.7",
    ):
        assert partition_from_text(text, Y, 5).N == 5
    split = partition_from_text("dirichlet:0.1", Y, 50, 3, min_rows=7)
    assert split.digest == fp.dirichlet(Y, 50, 0.1, seed=3, min_rows=7).digest
    ids = np.repeat(["a", "b", "c"], [600, 395, 5])
    assert partition_from_text("by-id", Y, 5, ids=ids).ids == ("a", "b", "c")
    merged = partition_from_text("by-id:drop", Y, 5, min_rows=6, ids=ids)
    assert merged.ids == ("a", "b")
    with pytest.raises(InputError, match="--client-column"):
        partition_from_text("by-id", Y, 5)


def test_every_registered_partition_makes_one():
    for name, make in PARTITIONS.items():
        parameter = partition.own_parameter(make)
        needs = parameter is not None and parameter.default is parameter.empty
        text = f"{name}:0.5" if needs else name
        assert partition_from_text(text, Y, 5, ids=np.arange(1000) % 5).N == 5


@pytest.mark.parametrize("make", [*DIRICHLET, fp.label_shards])
def test_something_else_than_a_vector_of_labels_is_refused(make):
    for y in (fp.load("census", rows=20), np.ones((20, 2)), 20):
        with pytest.raises(InputError, match=r"y must be a vector of labels, such as data\.y") as e:
            make(y, 2, 1)
        assert "\n" not in str(e.value)
