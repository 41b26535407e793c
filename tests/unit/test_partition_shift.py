"""Features that differ from client to client."""

from __future__ import annotations

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.data import skew

X = np.random.default_rng(0).normal(size=(2100, 7))
DATA = fp.Dataset.from_arrays(X, np.arange(2100) % 2, clients=np.arange(2100) % 3)
SPLIT = fp.iid(2000, 4)  # the last hundred rows belong to nobody


def test_noise_has_a_variance_that_grows_with_the_client():
    moved = fp.shift_features(DATA, SPLIT, noise=2.0)
    for client in range(4):
        change = (moved.X - X)[SPLIT.rows(client)]
        assert change.var() == pytest.approx(2.0 * (client + 1) / 4, rel=0.1)
        assert change.mean() == pytest.approx(0, abs=0.1)


def test_rotations_keep_lengths_and_turn_each_client_in_planes_of_its_own():
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


def test_the_rest_of_the_data_is_left_as_it_is():
    moved = fp.shift_features(DATA, SPLIT, noise=1.0, rotate=10.0, seed=4)
    assert (moved.X[2000:] == X[2000:]).all()
    assert (DATA.X == X).all()
    assert (moved.y == DATA.y).all()
    assert (moved.clients == DATA.clients).all()
    assert "shift_features(iid(4, seed=0), noise=1, rotate=10, seed=4)" in moved.note
    assert moved.digest == fp.shift_features(DATA, SPLIT, noise=1.0, rotate=10.0, seed=4).digest
    assert moved.digest != fp.shift_features(DATA, SPLIT, noise=1.0, rotate=10.0, seed=5).digest
    assert (fp.shift_features(DATA, SPLIT).X == X).all()


def test_sparse_data_becomes_dense_unless_it_is_too_large(monkeypatch):
    data = fp.load("census", rows=100)
    moved = fp.shift_features(data, fp.blocks(100, 5), rotate=30.0)
    assert moved.is_dense
    assert not data.is_dense
    monkeypatch.setattr(skew, "_LARGEST", 100)
    with pytest.raises(InputError, match="shift fewer rows, as in data") as error:
        fp.shift_features(data, fp.blocks(100, 5), rotate=30.0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("split", "options"),
    [(SPLIT, {"noise": -1}), (SPLIT, {"rotate": "x"}), (fp.blocks(3000, 3), {"noise": 1})],
)
def test_what_cannot_be_used_is_refused_in_one_line(split, options):
    with pytest.raises(InputError, match="shift_features") as error:
        fp.shift_features(DATA, split, **options)
    assert "\n" not in str(error.value)
