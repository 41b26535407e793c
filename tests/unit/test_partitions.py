"""Partitions: definitions, fewest rows, ids, texts and shifts; training and test rows."""

import inspect

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.data.partition import PARTITIONS, Partition, own_parameter, partition_from_text

Y = np.where(np.arange(1000) % 10 == 0, 1.0, -1.0)
DIRICHLET = (fp.dirichlet, fp.dirichlet_yurochkin, fp.dirichlet_hsu)
IDS = ["a"] * 10 + ["b"] * 2 + ["c"] * 5 + ["d"]


def table(split, y):
    """Count the rows of each label at each client, (labels, N)."""
    labels = np.unique(y)
    return np.array(
        [[(y[split.rows(i)] == label).sum() for i in range(split.N)] for label in labels]
    )


MAKERS = [
    (lambda seed: fp.iid(1000, 7, seed), "d561c3655315da15"),
    (lambda seed: fp.label_shards(Y, 7, seed=seed), "487038e621d65ba8"),
    (lambda seed: fp.dirichlet(Y, 7, 0.3, seed), "7a04e04578095b6d"),
    (lambda seed: fp.power_law(1000, 7, 1.5, seed), "0b2b5aa86c7b1d5e"),
    (lambda seed: fp.dirichlet_yurochkin(Y, 7, 0.3, seed), "435c6e39a2d016ce"),
    (lambda seed: fp.dirichlet_hsu(Y, 7, 0.3, seed), "b69d89016e285959"),
    (lambda seed: fp.quantity_dirichlet(1000, 7, 0.3, seed), "34674262da460a1b"),
    (lambda seed: fp.blocks(1000, 7), None),
    (lambda seed: fp.by_id(np.arange(1000) % 7), None),
]


@pytest.mark.parametrize(("make", "digest"), MAKERS)
def test_partitions_are_disjoint_leave_no_client_empty_and_stay_the_same(make, digest):
    """The digests are those of earlier versions."""
    split = make(0)
    assert (split.N, split.sizes.min() >= 1) == (7, True)
    assert len(set(split.order.tolist())) == len(split.order) == split.sizes.sum()
    assert {int(r) for i in range(7) for r in split.rows(i)} == set(split.order.tolist())
    assert digest is None or split.digest[:16] == digest
    assert (make(1).digest == split.digest) == (digest is None)


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
    y, N = np.arange(40_000) % 50, 10
    expected = (alpha + 1) / (N * alpha + 1)  # E sum_j p_j^2 of a symmetric Dirichlet of N parts
    shares = table(fp.dirichlet(y, N, alpha), y) / 800
    assert (shares**2).sum(axis=1).mean() == pytest.approx(expected, rel=0.15)
    firsts = [table(fp.dirichlet_yurochkin(y, N, alpha, seed=s), y)[0] / 800 for s in range(30)]
    assert np.mean([(share**2).sum() for share in firsts]) == pytest.approx(expected, rel=0.2)
    sizes = [fp.quantity_dirichlet(2000, N, alpha, s, min_rows=0).sizes for s in range(60)]
    moment = np.mean([((size / 2000) ** 2).sum() for size in sizes])
    assert moment == pytest.approx(expected, rel=0.2)


def test_yurochkin_gives_no_further_label_to_a_client_that_has_its_share():
    y = np.arange(5000) % 10
    split = fp.dirichlet_yurochkin(y, 8, 0.3, seed=1)
    assert "moved" not in split.name
    counts = table(split, y)
    is_full = np.cumsum(counts, axis=0)[:-1] >= 5000 / 8
    assert is_full.any()
    assert (counts[1:][is_full] == 0).all()
    spread = [
        np.mean([make(y, 8, 0.3, seed=seed).sizes.std() for seed in range(10)])
        for make in (fp.dirichlet_yurochkin, fp.dirichlet)
    ]
    assert spread[0] < 0.85 * spread[1]


@pytest.mark.parametrize("alpha", [0.2, 1.0, 10.0])
def test_hsu_has_the_variance_of_the_dirichlet_distribution_of_alpha_times_prior(alpha):
    y = np.repeat([0, 1], [30_000, 10_000])
    split = fp.dirichlet_hsu(y, 400, alpha)
    assert (split.sizes == 100).all()
    shares = (table(split, y) / 100)[1, :150]  # before labels run out
    assert shares.mean() == pytest.approx(0.25, abs=0.1)
    spread = 0.25 * 0.75 / (alpha + 1)
    counting = (0.25 * 0.75 - spread) / 100
    assert shares.var() == pytest.approx(spread + counting, rel=0.25)


# The fewest rows of a client


@pytest.mark.parametrize("make", [fp.dirichlet, fp.dirichlet_yurochkin])
def test_every_row_is_used_and_every_client_has_the_fewest_rows(make):
    for alpha, min_rows in ((0.01, 1), (1.0, 1), (0.1, 1), (0.1, 5), (0.1, 10)):
        split = make(Y, 100, alpha, min_rows=min_rows)
        assert split.sizes.min() >= min_rows
        assert sorted(split.order.tolist()) == list(range(1000))
    assert (split.sizes == 10).all()  # 100 clients of 10 rows are all there are


def test_the_name_says_what_was_moved_or_dropped():
    y = np.arange(300) % 2
    lacking = fp.dirichlet(y, 50, 0.1, min_rows=0)
    empty, start = 50 - lacking.N, "dirichlet(50, alpha=0.1, seed=0, "
    moved = fp.dirichlet(y, 50, 0.1)
    assert moved.name == f"{start}min_rows=1: {empty} rows moved)"
    assert moved.digest[:16] == "9a3c9ccd0b3a6432"  # random rows of the largest clients
    assert lacking.name == f"{start}min_rows=0: {empty} empty clients dropped)"
    assert sorted(lacking.order.tolist()) == list(range(300))
    assert fp.dirichlet(y, 5, 10.0).name == "dirichlet(5, alpha=10, seed=0)"
    assert fp.dirichlet(y, 5, 10.0, min_rows=9).name == "dirichlet(5, alpha=10, seed=0, min_rows=9)"


# Refusals


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: fp.blocks(5, 6), "at most 5 clients"),
        (lambda: fp.blocks(0, 1), "number of rows"),
        (lambda: fp.iid(5, 6), "at most 5 clients"),
        (lambda: fp.dirichlet(np.ones(3), 4, 0.5), "at most 3 clients"),
        (lambda: fp.blocks(5, 0), "number of clients"),
        (lambda: fp.blocks(5, 2.5), "whole number"),
        (lambda: fp.blocks("60", 6), "number of rows"),
        (lambda: fp.dirichlet(Y, 100, 0.1, min_rows=11), "min_rows of at most 10"),
        (lambda: fp.dirichlet(Y, 5, 0.1, min_rows=2.5), "not 2.5"),
        (lambda: fp.dirichlet(Y, 5, 0.1, min_rows=-1), "not -1"),
        (lambda: fp.dirichlet(Y, 5, 0.0), "alpha"),
        (lambda: fp.dirichlet(Y, 5, float("nan")), "alpha"),
        (lambda: fp.dirichlet(Y, 5, None), "alpha"),
        (lambda: fp.dirichlet_hsu(Y, 5, -1.0), "alpha"),
        (lambda: fp.dirichlet_hsu(Y, 5000, 1.0), "at most 1000 clients"),
        (lambda: fp.dirichlet_yurochkin(Y, 5, float("inf")), "alpha"),
        (lambda: fp.quantity_dirichlet(5, 6, 1.0), "at most 5 clients"),
        (lambda: fp.power_law(100, 10, min_rows=11), "min_rows of at most 10"),
        (lambda: fp.power_law(50, 6, -1.0), "exponent"),
        (lambda: fp.power_law(50, 6, "x"), "exponent"),
        (lambda: fp.label_shards(Y, 600), "at most 1 shards"),
        (lambda: fp.label_shards(Y, 5, shards=2.5), "shards"),
        (lambda: fp.dirichlet_hsu(np.arange(500) / 7, 5, 0.5), "targets of a regression"),
        (lambda: fp.dirichlet_yurochkin(np.arange(500) / 7, 5, 0.5), "targets of a regression"),
        (lambda: partition_from_text("iid", Y, 100, min_rows=11), "at most 90 clients"),
        (lambda: partition_from_text("by-id:x", Y, 5, ids=Y), "error, drop, merge"),
        (lambda: Partition("mine", np.arange(3), np.array([0, 3, 3])), "no row"),
        (lambda: Partition("mine", np.arange(3), np.array([0, 2, 50_000])), "ptr"),
        (lambda: Partition("mine", np.arange(3), np.array([1, 2, 3])), "ptr"),
        (lambda: Partition("mine", np.arange(3), np.array([0, 2, 3]), ("a", "a")), "different ids"),
        (lambda: Partition("mine", np.array([0, 1, 0]), np.array([0, 2, 3])), "occurs twice"),
        (lambda: Partition("mine", np.array([0, -1, 1]), np.array([0, 2, 3])), "negative"),
    ],
)
def test_impossible_partitions_are_refused_in_one_line(make, word):
    assert word in refusal(make)


@pytest.mark.parametrize("make", [*DIRICHLET, fp.label_shards])
def test_something_else_than_a_vector_of_labels_is_refused(make):
    for y in (fp.load("census", rows=20), np.ones((20, 2)), 20):
        assert "y must be a vector of labels" in refusal(make, y, 2, 1)


# Texts


def test_partition_texts_are_understood():
    for text in ("label-shards:1", "dirichlet_yurochkin:0.5", "power-law:0.7", "blocks:500"):
        assert partition_from_text(text, Y, 5).N == 5
    split = partition_from_text("dirichlet:0.1", Y, 50, 3, min_rows=7)
    assert split.digest == fp.dirichlet(Y, 50, 0.1, seed=3, min_rows=7).digest
    ids = np.repeat(["a", "b", "c"], [600, 395, 5])
    assert partition_from_text("by-id", Y, 5, ids=ids).ids == ("a", "b", "c")
    assert partition_from_text("by-id:drop", Y, 5, min_rows=6, ids=ids).ids == ("a", "b")


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_registered_partition_makes_one(name):
    own = own_parameter(PARTITIONS[name])
    text = f"{name}:0.5" if own is not None and own.default is inspect.Parameter.empty else name
    assert partition_from_text(text, Y, 5, ids=np.arange(1000) % 5).N == 5


# Ids


def test_clients_are_in_the_order_of_sorted_ids():
    split = fp.by_id(["Rome", "Bern", "Rome", "Oslo"])
    assert (split.name, split.ids) == ("by_id(3)", ("Bern", "Oslo", "Rome"))
    assert [split.rows(i).tolist() for i in range(3)] == [[1], [3], [0, 2]]
    numbers = fp.by_id(np.array([10, 9, 10, 2]))
    assert numbers.ids == (2, 9, 10)
    assert all(type(i) is int for i in numbers.ids)
    assert fp.by_id(np.repeat(["a", "b"], 5)).digest == fp.blocks(10, 2).digest


def test_ids_come_as_lists_arrays_and_series():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    words, numbers, missing = ["x", "y", "x"], [7, 3, 7], ["x", None, "y", None]
    for ids in (
        words, tuple(words), np.array(words), np.array(words, dtype=object), pd.Series(words),
        pd.Series(words, dtype="category"), pd.Series(words, dtype="string"),
    ):  # fmt: skip
        assert fp.by_id(ids).ids == ("x", "y")
    for ids in (numbers, [7.0, 3.0, 7.0], pd.Series(numbers, dtype="Int64")):
        assert fp.by_id(ids).ids == (3, 7)
    for ids in (
        ["x", None, "y", ""],
        [float("nan"), "x", "y", None],
        np.array(["", "x", "", "y"]),
        np.array([1.0, np.nan, 2.0, np.nan]),
        pd.Series([1, None, 2, None], dtype="Int64"),
        pd.Series(missing),
        pd.Series(pd.to_datetime(["2026-01-01", None, "2026-01-02", None])),
    ):
        assert "2 of 4 rows have no id (the first is row" in refusal(fp.by_id, ids)


@pytest.mark.parametrize(
    "ids", [[1, "a"], [True, False], [1.5, 2.0], [["a"], ["b"]], [], 5, [b"a"], [(1, 2)]]
)
def test_other_ids_are_refused_in_one_line(ids):
    assert refusal(fp.by_id, ids).startswith("by_id: ")


def test_small_clients_are_refused_dropped_or_merged():
    dropped = fp.by_id(IDS, min_rows=3, small="drop")
    assert (dropped.ids, dropped.sizes.tolist()) == (("a", "c"), [10, 5])
    assert dropped.name == "by_id(2, min_rows=3: 2 ids with 3 rows dropped)"
    assert dropped.order.tolist() == [*range(10), *range(12, 17)]
    merged = fp.by_id(IDS, min_rows=3, small="merge")
    assert (merged.ids, merged.sizes.tolist()) == (("a", "c", "(other)"), [10, 5, 3])
    assert merged.rows(2).tolist() == [10, 11, 17]
    assert "2 ids with 3 rows merged" in merged.name
    for options, word in (
        ({"min_rows": 3}, "(such as 'b' with 2)"),
        ({"min_rows": 4, "small": "merge"}, "lower min_rows"),
        ({"min_rows": 11, "small": "drop"}, "lower min_rows"),
        ({"min_rows": 2.5}, "whole number"),
        ({"small": "keep"}, "error, drop, merge"),
    ):
        assert word in refusal(fp.by_id, IDS, **options)


# Features that differ from client to client

X = np.random.default_rng(0).normal(size=(2100, 7))
DATA = fp.Dataset.from_arrays(X, np.arange(2100) % 2, clients=np.arange(2100) % 3)
SPLIT = fp.iid(2000, 4)  # the last hundred rows have no client


def test_noise_has_a_variance_that_grows_with_the_client():
    moved = fp.shift_features(DATA, SPLIT, noise=2.0)
    for client in range(4):
        change = (moved.X - X)[SPLIT.rows(client)]
        assert change.var() == pytest.approx(2.0 * (client + 1) / 4, rel=0.1)
        assert change.mean() == pytest.approx(0, abs=0.1)


def test_rotations_keep_lengths_and_turn_each_client_in_its_planes():
    moved = fp.shift_features(DATA, SPLIT, rotate=90.0)
    assert (moved.X**2).sum(axis=1) == pytest.approx((X**2).sum(axis=1))
    maps = []
    for client in range(4):
        rows = SPLIT.rows(client)
        turn = np.linalg.lstsq(X[rows], moved.X[rows])[0].T
        angles = np.abs(np.rad2deg(np.angle(np.linalg.eigvals(turn))))
        assert np.sort(angles) == pytest.approx([0.0] + [90 * (client + 1) / 4] * 6, abs=1e-4)
        maps.append((abs(turn) > 1e-6).tolist())
    assert maps[0] != maps[1]


def test_the_rest_of_the_data_does_not_change():
    moved = fp.shift_features(DATA, SPLIT, noise=1.0, rotate=10.0, seed=4)
    assert (moved.X[2000:] == X[2000:]).all()
    assert (DATA.X == X).all()
    assert (moved.y == DATA.y).all()
    assert (moved.clients == DATA.clients).all()
    assert "shift_features(iid(4, seed=0), noise=1, rotate=10, seed=4)" in moved.note
    assert moved.digest == fp.shift_features(DATA, SPLIT, noise=1.0, rotate=10.0, seed=4).digest
    assert moved.digest != fp.shift_features(DATA, SPLIT, noise=1.0, rotate=10.0, seed=5).digest
    assert (fp.shift_features(DATA, SPLIT).X == X).all()
    sparse = fp.load("census", rows=100)
    assert fp.shift_features(sparse, fp.blocks(100, 5), rotate=30.0).is_dense
    assert not sparse.is_dense


@pytest.mark.parametrize(
    ("split", "options", "word"),
    [
        (SPLIT, {"noise": -1}, "noise"),
        (SPLIT, {"rotate": "x"}, "rotate"),
        (fp.blocks(3000, 3), {"noise": 1}, "fewer rows"),
    ],
)
def test_shifts_that_cannot_be_made(split, options, word):
    assert word in refusal(fp.shift_features, DATA, split, **options)


# Training and test rows


rng = np.random.default_rng(0)


def make(clients, rows, classes, *, ids=True):
    """Make a data set whose rows are numbered by their only feature."""
    n = clients * rows
    labels = rng.integers(0, classes, n).astype(str)
    owners = np.repeat(np.arange(clients), rows) if ids else None
    return fp.Dataset.from_arrays(np.arange(1.0, n + 1)[:, None], labels, clients=owners)


def numbers(data):
    return data.to_dense()[:, 0].astype(int).tolist()


@pytest.mark.parametrize("by", ["rows", "clients"])
@pytest.mark.parametrize("stratify", [True, False])
def test_every_row_is_in_one_part_with_its_label_and_client(by, stratify):
    data = make(40, 5, 3)
    train, test = data.split(0.25, seed=3, stratify=stratify, by=by)
    assert sorted(numbers(train) + numbers(test)) == list(range(1, 201))
    assert numbers(train) == sorted(numbers(train))
    for part in (train, test):
        rows = np.array(numbers(part)) - 1
        assert part.y.tolist() == data.y[rows].tolist()
        assert part.clients.tolist() == data.clients[rows].tolist()
        assert part.classes == data.classes
    assert test.rows == 50
    again = data.split(0.25, seed=3, stratify=stratify, by=by)[1]
    assert numbers(again) == numbers(test)
    assert numbers(data.split(0.25, seed=4, stratify=stratify, by=by)[1]) != numbers(test)
    if by == "clients":
        assert not set(train.clients) & set(test.clients)


@pytest.mark.parametrize(
    ("clients", "rows", "classes"), [(500, 2, 2), (100, 18, 10), (300, 5, 3), (8, 200, 2)]
)
def test_clients_have_their_share_of_test_rows(clients, rows, classes):
    """Also where clients have few rows of a class, or one."""
    data = make(clients, rows, classes)
    train, test = data.split(0.2)
    assert test.rows == data.rows // 5
    each = np.bincount(test.clients, minlength=clients)
    assert abs(each - 0.2 * rows).max() < 1
    assert len(np.unique(train.clients)) == clients
    for label in np.unique(data.y):
        share = (test.y == label).sum() / (data.y == label).sum()
        assert share == pytest.approx(0.2, abs=0.07)


def test_classes_have_their_share_without_ids():
    data = make(1, 997, 3, ids=False)
    train, test = data.split(0.3)
    for label in np.unique(data.y):
        assert abs((test.y == label).sum() - 0.3 * (data.y == label).sum()) <= 1
    rare = fp.Dataset.from_arrays(np.ones((9, 1)), ["a"] * 8 + ["b"])
    for seed in range(5):
        train, test = rare.split(0.5, seed=seed)
        assert "b" in [rare.classes[int(y > 0)] for y in train.y]


def test_a_client_with_one_row_keeps_it_to_train_on():
    data = fp.Dataset.from_arrays(np.ones((9, 1)), np.arange(9) % 2, clients=[0] * 8 + [1])
    for seed in range(5):
        train, _ = data.split(0.6, seed=seed)
        assert set(train.clients) == {0, 1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test": 0.0}, "test must be between 0 and 1"),
        ({"by": "hospital"}, "by must be one of rows, clients"),
        ({"test": 1e-6}, "leaves a part of 'mine' without rows; choose another share"),
        ({"test": 0.2}, "or stratify=False if clients have too few rows"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(options, said):
    assert said in refusal(make(50, 1, 2).split, **options)
    assert "has no client ids" in refusal(make(50, 1, 2, ids=False).split, by="clients")
