"""Compare fedpage with a C loop, a numpy loop, scipy and an older fedpage: `make bench`.

    python benchmarks/speed.py --before DIR       # also time rounds of the fedpage in DIR/src

Every number is the smallest of several repetitions. Both sides of a ratio are measured in turns, so
that a busy machine hurts both alike. The data set is a9a (in FEDPAGE_DATA, ../shared/data or the
cache), or the embedded census data where a9a is missing; the first line names it.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
if "FEDPAGE_DATA" not in os.environ and SHARED.is_dir():
    os.environ["FEDPAGE_DATA"] = str(SHARED)

import c_loop
import numpy as np
import reference
import rounds as all_rounds

import fedpage as fp


def data_set() -> fp.Dataset:
    """Load a9a, or census where a9a is not here."""
    try:
        return fp.load("a9a")
    except fp.InputError:
        return fp.load("census")


def in_turns(tasks: dict[str, Callable[[], float]], repetitions: int) -> dict[str, float]:
    """Return the smallest result of each task; a task returns its own seconds."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repetitions):
        for name, task in tasks.items():
            best[name] = min(best[name], task())
    return best


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_timed(work: Callable[[], object]) -> float:
    """Time the processor, which leaves out when other processes run."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def line(what: str, ours: str, theirs: str, ratio: float, wanted: str) -> None:
    print(f"{what:44s} {ours:>12s} {theirs:>12s} {ratio:9.2f}x  {wanted}", flush=True)


def against_c(data: fp.Dataset) -> None:
    """Compare FedPAGE's sampled round with a C loop, and with the bare kernels."""
    problem = fp.RobustRegression(data, clients=3250)
    method = fp.FedPAGE(S=10, K=10, eta_g=0.1, p=1e-12)  # sampled rounds only
    library = c_loop.compile_loop()
    c_loop.check(library, problem, method)
    run, bare = fp.Simulation(problem, method, seed=0), c_loop.BareLoop(problem, method)
    run.step()
    tasks = {
        "ours": lambda: cpu_timed(lambda: [run.step() for _ in range(100)]) / 100,
        "bare": lambda: cpu_timed(lambda: bare.rounds(100, seed=0)) / 100,
    }
    if library is None:
        print("FedPAGE against C: skipped, because there is no C compiler (cc) here")
    else:
        loop = c_loop.CLoop(library, problem, method)
        tasks["C"] = lambda: cpu_timed(lambda: loop.rounds(300, seed=0)) / 300
    best = in_turns(tasks, 75)  # short windows: other processes interrupt few of them
    ours = f"{best['ours'] * 1e6:.1f} us"
    for name, what, wanted in (
        ("C", "FedPAGE's sampled round / C loop", "wanted: at most 3.5"),
        ("bare", "  / bare Python loop over the kernels", ""),
    ):
        if name in best:
            line(what, ours, f"{best[name] * 1e6:.1f} us", best["ours"] / best[name], wanted)
    if library is not None:
        with_records(problem, method, c_loop.CLoop(library, problem, method))


def with_records(problem: fp.RobustRegression, method: fp.FedPAGE, loop: c_loop.CLoop) -> None:
    """Compare runs of sampled rounds and records of every tenth round with a C program."""
    x, size = np.linspace(-0.1, 0.1, problem.d), int(problem.sizes[0])
    record = problem.evaluate(x)
    for share in (1, size):
        assert np.allclose(loop.record(x, share), [record["loss"], record["grad_norm"]], rtol=1e-12)
    count, every = 1000, 10
    tasks = {
        "ours": lambda: fp.simulate(problem, method, rounds=count, seed=0, record_every=every),
        "C": lambda: loop.run(count, 0, every, 1),
        "shared": lambda: loop.run(count, 0, every, size),
    }
    best = in_turns({name: lambda w=work: cpu_timed(w) / count for name, work in tasks.items()}, 20)
    ours = f"{best['ours'] * 1e6:.1f} us"
    for name, what in (("C", "C, a log for each row"), ("shared", "C, a log for each client")):
        ratio, theirs = best["ours"] / best[name], f"{best[name] * 1e6:.1f} us"
        line(f"record_every={every} / {what}", ours, theirs, ratio, "wanted: at most 1.5")


def rounds(data: fp.Dataset) -> None:
    """Compare rounds with a numpy loop."""
    problem, dense = fp.RobustRegression(data, clients=3250), data.X.toarray()
    cases = {
        "FedPAGE  S=10 K=10 b3=1": (fp.FedPAGE(S=10, K=10, eta_g=0.1), reference.fedpage),
        "SCAFFOLD S=20 K=10 b=4": (fp.SCAFFOLD(S=20, K=10, b=4), reference.scaffold),
        "FedAvg   S=20 K=10 b=4": (fp.FedAvg(S=20, K=10, b=4), reference.fedavg),
    }
    agree(data)
    for name, (method, loop) in cases.items():
        theirs = reference.Loop(dense, data.y, 3250)
        quick = reference.Loop(dense, data.y, 3250, shuffle=True)
        best = in_turns(
            {
                "ours": lambda m=method: (
                    fp.simulate(problem, m, rounds=650, seed=0, record_every=0).last("seconds")
                    / 650
                ),
                "loop": lambda f=loop, t=theirs: timed(lambda: f(t, 65)) / 65,
                "quick": lambda f=loop, t=quick: timed(lambda: f(t, 65)) / 65,
            },
            15,
        )
        ours, slow, quick_one = best["ours"], best["loop"], best["quick"]
        line(
            f"a round of {name}",
            f"{ours * 1e6:.1f} us",
            f"{slow * 1e6:.0f} us",
            slow / ours,
            "wanted: 60 or more",
        )
        if slow > 1.1 * quick_one:
            line(
                "  against a loop that permutes instead",
                "",
                f"{quick_one * 1e6:.0f} us",
                quick_one / ours,
                "",
            )


def agree(data: fp.Dataset) -> None:
    """Check that the numpy loop computes fedpage's x with all clients and all rows."""
    dense, b = data.X.toarray()[:1000], data.y[:1000]
    problem = fp.RobustRegression(fp.Dataset.from_arrays(dense, b), clients=100)

    def close(x: np.ndarray, method) -> None:
        assert np.allclose(x, fp.simulate(problem, method, rounds=6, seed=0).x, atol=1e-9), (
            method.name
        )

    loop = reference.Loop(dense, b, 100)
    close(reference.fedavg(loop, 6, S=100, b=10), fp.FedAvg(S=100, b=None))
    close(reference.scaffold(loop, 6, S=100, b=10), fp.SCAFFOLD(S=100, b=None))
    close(reference.fedpage(loop, 6, S=100, b3=10), fp.FedPAGE(S=100, b3=None))
    never = 1e-12  # sampled rounds only, in which everyone is sampled
    close(reference.fedpage(loop, 6, S=100, b3=10, p=never), fp.FedPAGE(S=100, b3=None, p=never))


def gradient(data: fp.Dataset) -> None:
    """Compare the full gradient with scipy's sparse and numpy's dense products."""
    n = data.rows // 3250 * 3250
    problem, X, y = fp.RobustRegression(data, clients=3250), data.X[:n], data.y[:n]
    dense, x = X.toarray(), np.linspace(-0.1, 0.1, data.features)

    def products(A):
        t = A @ x - y
        return A.T @ (t / (1.0 + 0.5 * t * t)) / n

    assert np.allclose(products(X), problem.grad(x), atol=1e-13)
    best = in_turns(
        {
            "ours": lambda: timed(lambda: problem.grad(x)),
            "scipy": lambda: timed(lambda: products(X)),
            "dense": lambda: timed(lambda: products(dense)),
        },
        60,
    )
    ours = f"{best['ours'] * 1e6:.0f} us"
    for name, wanted in (("scipy", "1.2"), ("dense", "6")):
        ratio = best[name] / best["ours"]
        line(
            f"full gradient, against {name}",
            ours,
            f"{best[name] * 1e6:.0f} us",
            ratio,
            f"wanted: {wanted} or more",
        )


def generated(clients: int) -> fp.RobustRegression:
    """Generate 10 one-hot rows per client with census's fields."""
    fields = np.array(fp.data.builtin.FIELDS)
    rng = np.random.default_rng(0)
    rows = 10 * clients
    first = np.concatenate([[0], np.cumsum(fields)[:-1]]).astype(np.int32)
    indices = rng.integers(0, fields, size=(rows, len(fields)), dtype=np.int32)
    indices += first
    y = np.where(rng.random(rows) < 0.25, 1.0, -1.0)
    ptr = np.arange(rows + 1, dtype=np.int64) * len(fields)
    ones = np.broadcast_to(np.float64(1.0), (rows * len(fields),))
    return fp.RobustRegression(
        fp.Dataset("generated", fp.data.Sparse(ptr, indices.ravel(), ones, 123), y), clients=clients
    )


def growth() -> None:
    """Compare sampled rounds of a million clients with those of 3,250, in time and memory."""
    small, large = generated(3_250), generated(1_000_000)
    never = 1e-12  # sampled rounds only: a full one costs N by definition
    for method in (fp.FedPAGE(S=10, K=10, p=never), fp.SCAFFOLD(S=20), fp.FedAvg(S=20)):
        runs = {
            "small": fp.Simulation(small, method, seed=0),
            "large": fp.Simulation(large, method, seed=0),
        }
        for run in runs.values():
            for _ in range(3):
                run.step()
        best = in_turns(
            {
                k: lambda r=r: timed(lambda: [r.step() for _ in range(200)]) / 200
                for k, r in runs.items()
            },
            15,
        )
        a, b = best["small"], best["large"]
        what = f"sampled round of {method.name}: N = 1,000,000 against 3,250"
        line(what[:44], f"{b * 1e6:.1f} us", f"{a * 1e6:.1f} us", b / a, "wanted: at most 1.5")
    for problem in (small, large):
        for method in (fp.FedPAGE(S=10, K=10, p=never), fp.FedAvg(S=20)):
            for what, first, count in (
                ("sampled rounds", 1, 20),
                ("a full round (8 N bytes name the called)", 0, 1),
            ):
                if first == 0 and method.name != "FedPAGE":
                    continue
                tracemalloc.start()
                run = fp.Simulation(problem, method, seed=0)
                run.costs.round = first
                for _ in range(count):
                    run.step()
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                print(
                    f"  memory beyond the data, {method.name}, N = {problem.N:,}, {what}: "
                    f"{peak:,} bytes"
                )


def faults(data: fp.Dataset) -> None:
    """Compare rounds under faults that never happen with plain rounds."""
    problem = fp.RobustRegression(data, clients=3250)
    for method in (fp.FedPAGE(S=10, K=10, p=1e-12), fp.SCAFFOLD(S=20), fp.FedAvg(S=20)):
        runs = {
            "faults": fp.Simulation(
                problem, method, seed=0, options=fp.RunOptions(faults=fp.Faults())
            ),
            "plain": fp.Simulation(problem, method, seed=0),
        }
        for run in runs.values():
            run.step()
        best = in_turns(
            {
                name: lambda r=run: cpu_timed(lambda: [r.step() for _ in range(50)]) / 50
                for name, run in runs.items()
            },
            75,
        )
        line(
            f"{method.name} with faults=Faults() / plain",
            f"{best['faults'] * 1e6:.1f} us",
            f"{best['plain'] * 1e6:.1f} us",
            best["faults"] / best["plain"],
            "wanted: at most 1.5",
        )


def starts() -> None:
    """Time the import, the command line and the first result."""
    code = (
        "import time; began = time.perf_counter(); import fedpage as fp; "
        "problem = fp.RobustRegression(fp.load('{data}'), clients=3250); "
        "fp.simulate(problem, fp.FedPAGE(), rounds=100, seed=0)"
    )

    def command(words: list[str], environment: dict[str, str] | None = None) -> float:
        return timed(
            lambda: subprocess.run(
                words,
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )
        )

    script = str(Path(sys.executable).with_name("fedpage"))
    data = data_set().name
    wanted = [
        ("import fedpage", [sys.executable, "-c", "import fedpage"], 0.5),
        ("fedpage --help", [script, "--help"], 0.5),
        ("first result on census, warm", [sys.executable, "-c", code.format(data="census")], 1.5),
        (f"first result on {data}, warm", [sys.executable, "-c", code.format(data=data)], 1.5),
    ]
    for what, words, limit in wanted:
        seconds = min(command(words) for _ in range(7))
        print(f"{what:44s} {seconds:9.2f} s   wanted: at most {limit} s")
    with tempfile.TemporaryDirectory() as empty:
        seconds = command(
            [sys.executable, "-c", code.format(data="census")], {"NUMBA_CACHE_DIR": empty}
        )
    print(
        f"{'first result on census, not compiled yet':44s} {seconds:9.2f} s   wanted: at most 20 s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of an older fedpage")
    before = parser.parse_args().before
    data = data_set()
    print(f"data: {data}, one thread, float64")
    print(f"{'':44s} {'ours':>12s} {'theirs':>12s} {'ratio':>10s}")
    against_c(data)
    rounds(data)
    gradient(data)
    growth()
    faults(data)
    starts()
    all_rounds.measure(before)


if __name__ == "__main__":
    main()
