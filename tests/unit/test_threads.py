"""Check the threads that share evaluations."""

from __future__ import annotations

import math
import os
import threading

import numpy as np
import pytest
from scipy.sparse import csr_array

import fedpage as fp
from fedpage.core.jit import map_threads
from fedpage.problems import kernels
from fedpage.problems.losses import LOSSES


def test_results_are_in_order_and_threads_are_kept():
    used, both = set(), threading.Barrier(2, timeout=60)

    def work(i: int) -> int:
        used.add(threading.get_ident())
        if i < 2:
            both.wait()  # passes only if two threads are at work
        return i

    for _ in range(3):
        assert map_threads(work, 20, 2) == list(range(20))
    assert len(used) == 2
    assert threading.get_ident() in used


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_error_reaches_the_caller_and_harms_no_later_call(threads):
    def work(i: int) -> int:
        if i == 4:
            raise ZeroDivisionError
        return i

    with pytest.raises(ZeroDivisionError):
        map_threads(work, 8, threads)
    assert map_threads(work, 4, threads) == [0, 1, 2, 3]
    assert map_threads(work, 0, threads) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own():
    def square(i: int) -> int:
        return i * i

    map_threads(square, 4, 2)
    child = os.fork()
    if child == 0:
        both = threading.Barrier(2, timeout=20)

        def work(i: int) -> int:
            both.wait()
            return i

        os._exit(0 if map_threads(work, 2, 2) == [0, 1] else 1)
    assert os.waitpid(child, 0)[1] == 0


def sum_margins(margins: np.ndarray, targets: np.ndarray) -> float:
    return float(margins.sum())


@pytest.mark.parametrize("model", [fp.LogisticRegression, fp.Softmax])
def test_metrics_are_those_of_the_margins_for_any_threads(model):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3000, 150)), rng.integers(0, 2, 3000)  # three blocks of clients
    metrics = ["accuracy", sum_margins]
    problem = model(fp.Dataset.from_arrays(X, y), 70, metrics=metrics)
    x = rng.normal(size=problem.d)
    rows = slice(0, 70 * 42)  # equal blocks: the remainder is dropped
    margins = problem.margins(x, X[rows])
    records = [problem.evaluate(x, threads) for threads in (1, 2, 3)]
    assert records[0] == records[1] == records[2]
    record = dict(records[0])
    assert record["accuracy"] == np.mean(problem.predict(x, X[rows]) == y[rows])
    np.testing.assert_allclose(record["sum_margins"], margins.sum())


@pytest.mark.parametrize("loss", ["robust", "squares"])
@pytest.mark.parametrize("storage", [np.asarray, csr_array])
def test_sums_have_one_order_for_any_threads(loss, storage):
    """Repeat the sums in their order: rows within a block of clients, then the three blocks."""
    rng = np.random.default_rng(0)
    rows, N = 3000, 71
    X, y = storage(rng.normal(size=(rows, 150))), rng.normal(size=rows)
    problem = fp.LinearModel(fp.Dataset.from_arrays(X, y), N, loss=loss)
    x = rng.normal(size=problem.d)
    start, rows = problem.partition.ptr, int(problem.partition.ptr[-1])
    ordered = np.asarray(X.toarray() if storage is csr_array else X)[problem.partition.order[:rows]]
    target = y[problem.partition.order[:rows]]
    margins = problem._margins(x, 0, rows)
    residuals = margins - target
    robust_slopes = residuals / (1.0 + 0.5 * residuals * residuals)
    slopes = residuals if loss == "squares" else robust_slopes
    total, gradient = 0.0, np.zeros(problem.d)
    for block in range(3):
        block_total, block_gradient = 0.0, np.zeros(problem.d)
        for client in range(N * block // 3, N * (block + 1) // 3):
            weight, product = 1.0 / (start[client + 1] - start[client]), 0.0
            for r in range(start[client], start[client + 1]):
                half = 0.5 * residuals[r] * residuals[r]
                block_total += weight * (half if loss == "squares" else 0.0)
                if loss == "robust" and product > 1e8:  # the rows so far share a logarithm
                    block_total, product = block_total + weight * math.log1p(product), half
                else:
                    product += half + product * half
                block_gradient += (weight * slopes[r]) * ordered[r]
            block_total += weight * (0.0 if loss == "squares" else math.log1p(product))
        total += block_total
        gradient += block_gradient
    for threads in (1, 2, 3, 5):
        loss_found, gradient_found = problem._evaluate(x, True, threads)
        assert loss_found == problem.evaluate(x, threads)["loss"] == total / N
        np.testing.assert_array_equal(gradient_found, gradient / N)
        np.testing.assert_array_equal(problem.grad(x, threads), gradient / N)


@pytest.mark.parametrize("loss", [*LOSSES, "softmax"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e120])
def test_rows_that_share_a_logarithm_have_the_sum_of_their_losses(loss, size):
    rng = np.random.default_rng(0)
    data = fp.Dataset.from_arrays(rng.normal(size=(300, 8)), rng.integers(0, 2, 300))
    problem = fp.LinearModel(data, 30, loss=loss)
    x = size * rng.normal(size=problem.d) if loss != "poisson" else rng.normal(size=problem.d)
    target = problem._rows_and_targets[3]
    expected = kernels.mean_loss(problem._loss_code, problem._margins(x, 0, 300), target)
    assert problem.loss(x) == pytest.approx(expected, rel=1e-14)
    assert problem.loss(1e-12 * x) > 0.0


def test_tiny_losses_keep_their_digits():
    data = fp.Dataset.from_arrays(np.ones((10, 1)), np.zeros(10))
    x = np.array([1e-30])
    assert fp.RobustRegression(data, 2).loss(x) == pytest.approx(5e-61, rel=1e-14)
