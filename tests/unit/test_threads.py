"""Check the threads that share evaluations."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.threads import map_threads


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
