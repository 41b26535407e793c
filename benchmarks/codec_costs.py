"""Compare the cost of codecs with that of the local steps they follow: `make bench-codecs`.

The local steps are FedPAGE's with K = 10 on 10 and 20 clients: on a9a (d = 123; census where a9a is
missing), and on generated rows with as many entries as a9a's but d = 100,000. Codecs compress the
clients' replies. Times are of the processor, in microseconds, each the smallest of many repetitions
in turns. `encode` and `decode` are what a federation does instead of `apply`, in a simulation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from scipy import sparse

import fedpage as fp
from fedpage.codecs import CODECS, Keys, as_codec
from fedpage.core.random import RoundDraws

TEXTS = (
    "none", "float32", "float16", "bfloat16", "randk:0.1", "permk", "topk:0.1", "natural",
    "dither:4", "sign", "bernoulli:0.5", "scaled(randk:0.1)", "randk:0.1+natural",
    "topk:0.1+natural",
)  # fmt: skip
WANTED = 1.0
"""A codec should cost at most as much as the local steps."""


def narrow_data() -> fp.Dataset:
    """Load a9a, or census where a9a is not here."""
    try:
        return fp.load("a9a")
    except fp.InputError:
        return fp.load("census")


def wide_data(d: int) -> fp.Dataset:
    """Generate 2,000 rows with 14 entries each, as many as a9a's rows have."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, d, size=(2_000, 14))
    rows = np.repeat(np.arange(2_000), 14)
    X = sparse.csr_matrix((np.ones(rows.size), (rows, columns.ravel())), shape=(2_000, d))
    X.data[:] = 1.0
    return fp.Dataset.from_arrays(X, rng.choice([-1.0, 1.0], 2_000))


def replies_of(problem: fp.RowProblem, n: int) -> tuple[Callable[[], object], np.ndarray]:
    """Return FedPAGE's local steps on n clients, and what these send: changes to g."""
    method = fp.FedPAGE(S=n, K=10, eta_g=0.1, p=1e-12)
    run = fp.Simulation(problem, method, seed=0)
    run.step()
    draws = RoundDraws(0, 1)
    call = method.call(run.state, draws)

    def work() -> tuple[np.ndarray, ...]:
        replies, _ = method.client(call.message, problem.oracle(call.clients, draws), None)
        return replies

    return work, work()[0] - run.state.g


def measure(problem: fp.RowProblem, n: int, repetitions: int, window: int) -> dict[str, float]:
    """Print a line for each codec; return the ratios of `apply` to the local steps."""
    work, v = replies_of(problem, n)
    keys = Keys.draw(0, 1, np.arange(n))

    def repeat(task: Callable[[], object]) -> Callable[[], float]:
        def timed() -> float:
            began = time.thread_time()
            for _ in range(window):
                task()
            return (time.thread_time() - began) / window * 1e6

        return timed

    tasks = {"local steps": repeat(work)}
    for text in TEXTS:
        codec = as_codec(text)
        payload = codec.encode(v, keys)
        tasks[text] = repeat(lambda c=codec: c.apply(v, keys))
        tasks[f"{text} encode"] = repeat(lambda c=codec: c.encode(v, keys))
        tasks[f"{text} decode"] = repeat(
            lambda c=codec, p=payload: c.decode(p, v.shape[1], v.dtype, keys)
        )
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repetitions):
        for name, task in tasks.items():
            best[name] = min(best[name], task())
    steps = best["local steps"]
    print(f"n = {n}, d = {v.shape[1]:,}: local steps {steps:,.1f} us")
    print(f"  {'':20s} {'apply':>10s} {'/ steps':>8s} {'encode':>10s} {'decode':>10s} us")
    for text in TEXTS:
        encode, decode = best[f"{text} encode"], best[f"{text} decode"]
        ratio = best[text] / steps
        print(
            f"  {text:20s} {best[text]:10,.1f} {ratio:8.2f} {encode:10,.1f} {decode:10,.1f}"
            f"{'' if ratio <= WANTED else f'  wanted: at most {WANTED:g}'}",
            flush=True,
        )
    return {text: best[text] / steps for text in TEXTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=30)
    repetitions = parser.parse_args().repetitions
    assert {str(as_codec(text)).partition(":")[0] for text in TEXTS} >= set(CODECS) - {
        "chain",
        "scaled",
    }
    data = narrow_data()
    print(f"data: {data}, float64")
    narrow = fp.RobustRegression(data, clients=3250)
    wide = fp.RobustRegression(wide_data(100_000), clients=200)
    for n in (10, 20):
        measure(narrow, n, repetitions, window=20)
    for n in (10, 20):
        measure(wide, n, max(2, repetitions // 6), window=1)


if __name__ == "__main__":
    main()
