"""Oracles without fused kernels, and small problems, shared by the tests."""

import errno
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from rows import ROWS, Setting

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.core.types import Smoothness
from fedpage.engine.simulate import Simulation
from fedpage.theory.planner import Planner


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the message of the InputError that a call raises, which must be one line."""
    with pytest.raises(fp.InputError) as error:
        call(*arguments, **options)
    text = str(error.value)
    del error  # its frames would keep what the call has opened
    assert "\n" not in text
    return text


def analyses(setting: Any, *, d: int = 1, convex: bool = False, **more: Any) -> list[Any]:
    """Return the rows of a plan from numbers alone; a convex one is about the gap by default."""
    more = {"measure": "gap" if convex else "grad_norm", "L": (setting.L,) * 4} | more
    more["L"] = Smoothness(*more["L"])
    return Planner(setting, d=d, convex=convex, **more).rows()


class PlainOracle:
    """An oracle without fused kernels, so that core/local_steps.py itself runs."""

    def __init__(self, oracle: Any) -> None:
        self._oracle = oracle
        for name in ("batch", "grad", "loss", "hessian", "hvp"):
            setattr(self, name, getattr(oracle, name, None))

    @property
    def gradients(self) -> int:
        return self._oracle.gradients

    @property
    def evaluations(self) -> int:
        return self._oracle.evaluations


class Unfused:
    """A problem whose oracles have no fused local steps."""

    def __init__(self, problem: Any) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def oracle(self, clients: Any, draws: Any) -> PlainOracle:
        return PlainOracle(self._problem.oracle(clients, draws))


class OwnSquares(fp.RowProblem):
    """Least squares in plain Python, as a user writes it, with all that a problem may offer."""

    name = "own squares"

    def __init__(self, A: Any, y: Any, clients: int, **options: Any) -> None:
        self.parts = list(zip(np.array_split(A, clients), np.array_split(y, clients), strict=True))
        super().__init__([len(b) for _, b in self.parts], A.shape[1], **options)

    def client_loss(self, client: int, x: Any) -> float:
        A, b = self.parts[client]
        return math.fsum(0.5 * r * r for r in (A @ x - b).tolist()) / len(b)

    def client_grad(self, client: int, rows: Any, x: Any) -> Any:
        A, b = self.parts[client]
        A, b = (A, b) if rows is None else (A[rows], b[rows])
        return A.T @ (A @ x - b) / len(b)

    def client_hessian(self, client: int, x: Any) -> Any:
        A, b = self.parts[client]
        return A.T @ A / len(b)

    def client_predictions(self, client: int, x: Any) -> Any:
        A, b = self.parts[client]
        return A @ x, b

    def smoothness(self) -> fp.Smoothness:
        A, b = (np.concatenate(parts) for parts in zip(*self.parts, strict=True))
        ids = np.repeat(np.arange(self.N), self.sizes)
        return fp.LeastSquares(fp.Dataset("own", A, b), fp.by_id(ids)).smoothness()


class Killed(BaseException):
    """The process is killed."""


class KillAtWrite:
    """Kill the process at one of the moments around syncs, renames and cuts of files.

    The moments are counted down from `left`; at zero or below, nobody is killed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for name in ("fsync", "replace", "truncate"):
            monkeypatch.setattr(os, name, self._around(getattr(os, name)))

    def may_kill(self) -> None:
        """Count a moment, at which the process may be killed."""
        self.left -= 1
        if self.left == 0:
            raise Killed

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.may_kill()
            result = function(*arguments, **options)
            self.may_kill()
            return result

        return call


class FullDisk:
    """A disk that is full after so many writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        for name in ("fsync", "replace"):
            monkeypatch.setattr(os, name, self._limit(getattr(os, name)))

    def _limit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*args)

        return call


def each_round(
    problem: Any, method: Any, rounds: int, seed: int = 1, **options: Any
) -> Iterator[Simulation]:
    """Run some rounds with options of a run, and yield the simulation after each."""
    run = Simulation(problem, method, seed=seed, options=fp.RunOptions(**options))
    for _ in range(rounds):
        run.step()
        yield run


def after(problem: Any, method: Any, rounds: int, seed: int = 1, **options: Any) -> Simulation:
    """Return a simulation after some rounds."""
    *_, run = each_round(problem, method, rounds, seed, **options)
    return run


def all_gradients(problem: Any, x: Any) -> Any:
    """Return all clients' gradients at x, (N, d); x is one point, or one for each client."""
    oracle = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
    return oracle.grad(x, oracle.batch(None))


def quadratic(noise: float = 0.0, **options: Any) -> fp.Quadratic:
    """Make 8 clients of 5 rows in 4 dimensions whose minima differ."""
    return fp.Quadratic.random(8, 5, 4, seed=3, spread=3.0, noise=noise, **options)


def uneven(kind: str = "robust", clients: int = 12, weights: str = "uniform") -> Any:
    """Make a linear model over clients of very different sizes, with values other than 1."""
    data = fp.load("census", rows=240, skew=1.0)
    values = 0.5 + fp.core.random.uniforms(5, size=data.nonzeros)
    data = fp.Dataset("scaled", cast(fp.data.Sparse, data.matrix)._replace(values=values), data.y)
    division = fp.power_law(240, clients, exponent=1.6, seed=1)
    if kind == "robust":
        return fp.RobustRegression(data, division, weights=weights)
    if kind == "squares":
        return fp.LeastSquares(data, division, alpha=0.01, weights=weights)
    reg = kind.partition("-")[2] or "none"
    return fp.LogisticRegression(data, division, reg=reg, weights=weights)


def softmax(kind: str = "softmax", clients: int = 12, weights: str = "uniform") -> Any:
    """Make a softmax regression of three classes on the sparse rows of `uneven`."""
    linear = uneven("logistic", clients)
    planted = fp.core.random.uniforms(7, size=3 * linear.data.features).reshape(-1, 3) - 0.5
    labels = (linear.data.X @ planted).argmax(axis=1)
    data = fp.Dataset.from_arrays(linear.data.X, labels, name="three classes")
    reg = kind.partition("-")[2] or "none"
    return fp.Softmax(data, linear.partition, reg=reg, weights=weights)


def make_method(name: str, S: int, K: int, step: float, full: bool = False) -> Any:
    """Make a method under the laws at an effective step, with full batches if `full`."""
    return ROWS[name].make(Setting(S, K, step, full))


def methods(S: int, K: int, step: float, full: bool = False) -> dict[str, Any]:
    """Make every method under the laws at an effective step, with full batches if `full`."""
    return {name: make_method(name, S, K, step, full) for name in ROWS}
