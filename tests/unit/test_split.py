"""Division of a data set into training and test rows."""

import numpy as np
import pytest
from support import refusal

import fedpage as fp

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
