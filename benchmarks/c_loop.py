"""FedPAGE's sampled round as a C loop, and as a bare Python loop over fedpage's own kernels.

Both are lower limits for a round of the engine: the C loop shows what the arithmetic costs, the
bare loop what the compiled kernels cost without the engine and the method around them.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedpage as fp
from fedpage.core.messages import mean_rows
from fedpage.core.random import RoundDraws
from fedpage.problems import kernels
from fedpage.problems.oracle import no_rows

SOURCE = Path(__file__).with_name("fedpage_round.c")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")


def compile_loop() -> ctypes.CDLL | None:
    """Compile the C file into a temporary directory and load it; None where there is no `cc`."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "fedpage_round.so"
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(target), "-lm"], check=True)
        return ctypes.CDLL(str(target))


class CLoop:
    """The server's state (x, x_prev, g) and the C functions that advance it."""

    def __init__(
        self, library: ctypes.CDLL, problem: fp.RobustRegression, method: fp.FedPAGE
    ) -> None:
        ptr, idx, values, target, start, scale = problem._kernel_data[:6]
        if values is not None or (scale != 1.0).any():
            raise ValueError("the C loop is written for rows of ones and for uniform weights")
        if method.b2 is not None or method.b3 != 1:
            raise ValueError("the C loop is written for b2 = all rows and b3 = 1")
        self.library, self.N, self.d = library, problem.N, problem.d
        self.S, self.K = method.S, method.K
        self.steps = (ctypes.c_double(method.local_step), ctypes.c_double(method.eta_g))
        self.data = [np.ascontiguousarray(part) for part in (ptr, idx, target, start)]
        self.x, self.x_prev, self.g = (np.zeros(self.d) for _ in range(3))
        self.scratch = np.empty(4 * self.d)
        self.clients = np.zeros(self.S, dtype=np.int64)
        self.rows = np.zeros((self.S, self.K - 1), dtype=np.uint32)

    def round(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Run a round with given clients (S,) and minibatches (S, K-1, 1) of one row."""
        self.clients[:], self.rows[:] = clients, rows[:, :, 0]
        self.library.fedpage_round(
            *map(_pointer, self.data), _whole(self.d), _pointer(self.clients), _whole(self.S),
            _pointer(self.rows), _whole(self.K), *self.steps, *self._state(),
        )  # fmt: skip

    def rounds(self, count: int, seed: int) -> None:
        """Run rounds with clients and minibatches that the C loop draws."""
        self.library.fedpage_rounds(
            *map(_pointer, self.data), _whole(self.d), _whole(self.N), _whole(self.S),
            _whole(self.K), *self.steps, *self._state(), _pointer(self.clients),
            _pointer(self.rows), _whole(count), ctypes.c_uint64(seed),
        )  # fmt: skip

    def record(self, x: np.ndarray, share: int) -> np.ndarray:
        """Compute f(x) and |grad f(x)|, (2,), with a logarithm for every `share` rows."""
        ptr, idx, target, start = self.data
        found = np.empty(2)
        self.library.fedpage_record(
            _pointer(ptr), _pointer(idx), _pointer(target), _whole(int(start[-1])), _whole(self.d),
            _whole(share), _pointer(x), _pointer(self.scratch), _pointer(found),
        )  # fmt: skip
        return found

    def run(self, count: int, seed: int, every: int, share: int) -> np.ndarray:
        """Run rounds as `rounds` does; return f and |grad f| before them and every few rounds."""
        records = np.empty((count // every + 1, 2))
        self.library.fedpage_run(
            *map(_pointer, self.data), _whole(self.d), _whole(self.N), _whole(self.S),
            _whole(self.K), *self.steps, *self._state(), _pointer(self.clients),
            _pointer(self.rows), _whole(count), ctypes.c_uint64(seed), _whole(every),
            _whole(share), _pointer(records),
        )  # fmt: skip
        return records

    def _state(self) -> list[ctypes.c_void_p]:
        return [_pointer(part) for part in (self.x, self.x_prev, self.g, self.scratch)]


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _whole(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)


class BareLoop:
    """Sampled rounds by fedpage's kernels alone, without its engine and methods."""

    def __init__(self, problem: fp.RobustRegression, method: fp.FedPAGE) -> None:
        self.problem, self.method = problem, method
        self.x, self.x_prev, self.g = (np.zeros(problem.d) for _ in range(3))

    def rounds(self, count: int, seed: int, first: int = 1) -> None:
        """Run rounds first..first+count-1 of a seed, with the same bits as the engine's."""
        problem, method = self.problem, self.method
        data: Any = problem._kernel_data
        N, S, K, M = problem.N, method.S, method.K, int(problem.sizes[0])
        every, eta_l, eta_g = no_rows(S, 1), method.local_step, method.eta_g
        x, x_prev, g = self.x, self.x_prev, self.g
        for r in range(first, first + count):
            draws = RoundDraws(seed, r)
            clients = draws.clients(N, S)
            rows = draws.rows(clients, problem.sizes[clients], 1, 1, K - 1)
            out = np.empty((S, problem.d))
            kernels.local_page(
                *data, clients, every, M, rows, 1, x[None], x_prev[None], g[None], K, eta_l, out
            )
            g = mean_rows(out)
            x, x_prev = x - eta_g * g, x
        self.x, self.x_prev, self.g = x, x_prev, g


def check(library: ctypes.CDLL | None, problem: fp.RobustRegression, method: fp.FedPAGE) -> None:
    """Check that both loops compute fedpage's iterates, for its clients and minibatches, to 1e-10.

    Args:
        library: The compiled C loop, or None to check the bare loop alone.
        problem: Robust regression over equal clients, with entries of 1.
        method: FedPAGE with a p so small that only round 0 is full.
    """
    seed, rounds = 3, 8
    run = fp.Simulation(problem, method, seed=seed)
    run.step()
    loops: list[Any] = [BareLoop(problem, method)]
    if library is not None:
        loops.append(CLoop(library, problem, method))
    for loop in loops:
        loop.x, loop.x_prev, loop.g = (
            np.array(part) for part in (run.state.x, run.state.x_prev, run.state.g)
        )
    for r in range(1, rounds + 1):
        run.step()
        draws = RoundDraws(seed, r)
        clients = draws.clients(problem.N, method.S)
        rows = draws.rows(clients, problem.sizes[clients], 1, 1, method.K - 1)
        loops[0].rounds(1, seed, first=r)
        for loop in loops[1:]:
            loop.round(clients, rows)
        for loop in loops:
            for name in ("x", "x_prev", "g"):
                wanted = getattr(run.state, name)
                if not np.allclose(getattr(loop, name), wanted, rtol=1e-10, atol=1e-10):
                    raise AssertionError(f"{type(loop).__name__}: {name} differs in round {r}")
    if not run.costs.full_rounds == 1:
        raise AssertionError("only round 0 should be full")
