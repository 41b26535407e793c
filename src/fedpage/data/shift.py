"""Change the features client by client, for studies of clients whose features differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.random import check_seed, permutation, uniforms
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, check_real

_LARGEST = 2**28
"""Entries of the largest sparse data set that is made dense: 2 GiB of numbers."""


def shift_features(
    data: Dataset, partition: Partition, *, noise: float = 0.0, rotate: float = 0.0, seed: int = 0
) -> Dataset:
    """Rotate the features of each client and add noise to them, the more the higher its number.

    Client i of N, counted from 1, gets rotate * i/N degrees and noise of variance noise * i/N. The
    noise is the feature skew of Li et al. (2022, NIID-Bench). The rotation is in planes of two
    features each; every client has its own random pairs of features. Lengths of rows stay as they
    are, and of an odd number of features one stays as it is.

    Args:
        data: the rows. Sparse data becomes dense.
        partition: which client holds which rows; rows that no client holds are left as they are.
        noise: variance of the Gaussian noise of the last client.
        rotate: degrees by which the last client's features are rotated.
        seed: of the noise and of the pairs of features.

    Returns:
        A dense data set with the same rows, labels and ids; its note says what was done.

    Raises:
        InputError: a number is out of range, the partition does not fit, or sparse data is too
            large to be made dense.
    """
    noise = check_real("shift_features", "noise", noise)
    check_seed(seed)
    rotate = check_real("shift_features", "rotate", rotate)
    if noise < 0:
        raise InputError(f"shift_features: noise must be 0 or more, not {noise:g}")
    if int(partition.order.max()) >= data.rows:
        raise InputError(
            f"shift_features: partition {partition.name} names rows that {data.name!r} does not "
            "have; make it for this data set"
        )
    if not data.is_dense and data.rows * data.features > _LARGEST:
        raise InputError(
            f"shift_features: {data.name!r} is sparse, and its {data.rows:,} x {data.features:,} "
            f"entries would take {data.rows * data.features / 2**27:.0f} GiB as a dense array; "
            "shift fewer rows, as in data[:10000], or fewer features"
        )
    X = data.to_dense().copy()
    pairs = data.features // 2
    for client in range(partition.N):
        rows, level = partition.rows(client), (client + 1) / partition.N
        own = X[rows]
        if rotate:
            pair = permutation(seed, 70, client, size=data.features)[: 2 * pairs].reshape(2, pairs)
            angle = np.deg2rad(rotate * level)
            first, second = own[:, pair[0]], own[:, pair[1]]
            own[:, pair[0]] = np.cos(angle) * first - np.sin(angle) * second
            own[:, pair[1]] = np.sin(angle) * first + np.cos(angle) * second
        if noise:
            own += np.sqrt(noise * level) * _normals(seed, client, own.shape)
        X[rows] = own
    done = f"features shifted by shift_features({partition.name}, noise={noise:g}, "
    done += f"rotate={rotate:g}, seed={seed})"
    return replace(data, matrix=X, note=f"{data.note}; {done}" if data.note else done)


def _normals(seed: int, client: int, shape: tuple[int, ...]) -> Vector:
    """Draw standard normal numbers by the inverse of their distribution function."""
    from scipy.special import ndtri

    u = uniforms(seed, 71, client, size=int(np.prod(shape)))
    return np.asarray(ndtri(np.maximum(u, 2.0**-54))).reshape(shape)
