"""The threads that share evaluations, and compiled kernels, which follow the files they use."""

import os
import sys
import threading
from importlib import import_module, invalidate_caches

import numpy as np
import pytest
from scipy.sparse import csr_array

import fedpage as fp
from fedpage.core.jit import map_threads
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


@pytest.mark.parametrize("loss", ["robust", "squares", "logistic", "softmax"])
@pytest.mark.parametrize("storage", [np.asarray, csr_array])
def test_records_have_the_same_bits_for_any_threads(loss, storage):
    """There are three blocks of clients; metrics and losses are those of the rows."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3000, 150)), rng.integers(0, 2, 3000)
    data = fp.Dataset.from_arrays(storage(X), y)
    metrics = ["accuracy", sum_margins] if loss in ("logistic", "softmax") else [sum_margins]
    problem = fp.LinearModel(data, 71, loss=loss, metrics=metrics)
    x = rng.normal(size=problem.d)
    records = [problem.evaluate(x, threads) for threads in (1, 2, 3, 5)]
    gradients = [problem.grad(x, threads) for threads in (1, 2, 3, 5)]
    for record, gradient in zip(records, gradients, strict=True):
        assert record == records[0]
        assert gradient.tobytes() == gradients[0].tobytes()
    rows = problem.partition.order[: 71 * 42]  # equal blocks: the remainder is dropped
    margins = problem.margins(x, X[rows])
    np.testing.assert_allclose(records[0]["sum_margins"], margins.sum())
    each = problem.evaluate_clients(np.arange(71), x)
    np.testing.assert_allclose(each.losses.mean(), records[0]["loss"], rtol=1e-13)
    np.testing.assert_allclose(each.gradients.mean(axis=0), gradients[0], rtol=0, atol=1e-13)
    if "accuracy" in metrics:
        assert records[0]["accuracy"] == np.mean(problem.predict(x, X[rows]) == y[rows])


@pytest.mark.parametrize("loss", [*LOSSES, "softmax"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e3, 1e120])
def test_rows_that_share_a_logarithm_have_the_sum_of_their_losses(loss, size):
    """With a client for each row, no two rows share one."""
    rng = np.random.default_rng(0)
    data = fp.Dataset.from_arrays(rng.normal(size=(300, 8)), rng.integers(0, 2, 300))
    problem, alone = (fp.LinearModel(data, clients, loss=loss) for clients in (30, 300))
    x = (min(size, 1.0) if loss == "poisson" else size) * rng.normal(size=problem.d)
    each = alone.evaluate_clients(np.arange(300), x).losses
    assert problem.loss(x) == pytest.approx(each.mean(), rel=1e-14)
    assert problem.loss(x) > 0.0


def test_tiny_losses_keep_their_digits():
    data = fp.Dataset.from_arrays(np.ones((10, 1)), np.zeros(10))
    x = np.array([1e-30])
    assert fp.RobustRegression(data, 2).loss(x) == pytest.approx(5e-61, rel=1e-14)


@pytest.mark.parametrize("uses", ["helper.__file__,", ""])
def test_a_kernel_is_compiled_again_where_a_file_that_it_uses_has_changed(
    tmp_path, monkeypatch, uses
):
    """Numba looks at the kernel's own file only: without `uses` it loads the old code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "kernel.py").write_text(
        "from functools import partial\n"
        "import helper\n"
        "from fedpage.core.jit import compile_kernel\n"
        "add = helper.add\n"
        f"@partial(compile_kernel, uses=({uses}))\n"
        "def kernel(x):\n"
        "    return add(x)\n"
    )
    found = []
    for number in ("1.0", "20.0"):
        (tmp_path / "helper.py").write_text(
            "from fedpage.core.jit import compile_kernel\n"
            "@compile_kernel\n"
            f"def add(x):\n    return x + {number}\n"
        )
        invalidate_caches()
        found.append(import_module("kernel").kernel(1.0))
        del sys.modules["kernel"], sys.modules["helper"]
    assert found == ([2.0, 21.0] if uses else [2.0, 2.0])
