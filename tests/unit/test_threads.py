"""Check the threads that share evaluations."""

from __future__ import annotations

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


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_a_second_function_is_called_once_after_the_first_of_the_same_number(threads):
    calls = []

    def work(i: int) -> int:
        calls.append(("work", i))
        return -1

    def then(i: int) -> int:
        assert ("work", i) in calls
        calls.append(("then", i))
        return i * i

    assert map_threads(work, 5, threads, then) == [0, 1, 4, 9, 16]
    assert sorted(calls) == sorted((name, i) for name in ("work", "then") for i in range(5))


def test_a_thread_that_has_nothing_else_to_do_takes_over_the_second_function_of_another():
    taken = threading.Event()

    def work(i: int) -> int:
        if i == 1:
            assert taken.wait(60)  # ends after the other thread has taken the second function
        return i

    def then(i: int) -> int:
        if i == 0:
            taken.set()
        return i

    assert map_threads(work, 2, 2, then) == [0, 1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_error_of_the_second_function_reaches_the_caller(threads):
    def fail(i: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        map_threads(abs, 3, threads, fail)
    assert map_threads(abs, 3, threads) == [0, 1, 2]


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
            weight = 1.0 / (start[client + 1] - start[client])
            for r in range(start[client], start[client + 1]):
                one = slice(r, r + 1)
                value = kernels.mean_loss(problem._loss_code, margins[one], target[one])
                block_total += weight * value
                block_gradient += (weight * slopes[r]) * ordered[r]
        total += block_total
        gradient += block_gradient
    for threads in (1, 2, 3, 5):
        loss_found, gradient_found = problem._evaluate(x, True, threads)
        assert loss_found == problem.evaluate(x, threads)["loss"] == total / N
        np.testing.assert_array_equal(gradient_found, gradient / N)
        np.testing.assert_array_equal(problem.grad(x, threads), gradient / N)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_losses_have_the_same_bits_with_the_gradient_and_in_their_own_loop(loss):
    rng = np.random.default_rng(0)
    data = fp.Dataset.from_arrays(rng.normal(size=(300, 8)), rng.integers(0, 2, 300))
    problem = fp.LinearModel(data, 30, loss=loss)
    x = rng.normal(size=problem.d)
    margins = problem._margins(x, 0, 300)
    sums = np.zeros(problem.d)
    together = problem._objective(3, 17, x, True, sums, problem._scale)
    *_, target, start, scale = problem._rows_and_targets
    assert kernels.losses(target, start, scale, problem._loss_code, 3, 17, margins) == together
    assert together > 0.0
