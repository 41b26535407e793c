"""The local steps of methods, each written once, as the papers write them.

Arrays have a row for each of the n called clients; a shared point may be (d,). Each
function returns the mean of its K directions, which is (x - y_K)/(K eta) without the
cancellation of forming x - y_K.

An oracle may have a method of the same name, such as a fused kernel, which then takes
the steps. A law holds the kernel and the steps below to 1e-12 of each other.
`local_training` is for methods with a client optimiser, and returns y_K - x.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias

import numpy as np

from fedpage.core.capabilities import EpochOracle
from fedpage.core.errors import InputError
from fedpage.core.optimizers import SGD, Moments, Optimizer
from fedpage.core.types import Batch, Ints, Oracle, Vector

P = ParamSpec("P")
StepFunction: TypeAlias = Callable[Concatenate[Oracle, P], Vector]


def _fused(steps: StepFunction[P]) -> StepFunction[P]:
    """Let an oracle that has a kernel of the same name take the steps."""

    @wraps(steps)
    def take(oracle: Oracle, /, *args: P.args, **options: P.kwargs) -> Vector:
        kernel: Callable[P, Vector] | None = getattr(oracle, steps.__name__, None)
        if kernel is None:
            return steps(oracle, *args, **options)
        return kernel(*args, **options)

    return take


@_fused
def local_sgd(
    oracle: Oracle,
    x: Vector,
    *,
    K: int,
    eta: float,
    b: int | None,
    shift: Vector | None = None,
    mu: float = 0.0,
) -> Vector:
    """Take K SGD steps from x: y <- y - eta (grad_I(y) + shift + mu (y - x)), |I| = b.

    Args:
        oracle: The called clients' oracle.
        x: The start, (d,).
        K: The number of steps.
        eta: The step size.
        b: Rows in a minibatch. If None, use all rows.
        shift: A constant to add, (n, d): c - c_i (SCAFFOLD), -Delta_i (VRL-SGD).
        mu: The proximal weight (FedProx).

    Returns:
        The mean direction, (n, d).
    """
    y = x
    total: Any = 0.0
    for _ in range(K):
        direction = oracle.grad(y, oracle.batch(b))
        if shift is not None:
            direction = direction + shift
        if mu != 0.0:
            direction = direction + mu * (y - x)
        y, total = y - eta * direction, total + direction
    mean: Vector = total / K
    return mean


@_fused
def local_page(
    oracle: Oracle,
    x: Vector,
    x_prev: Vector,
    g: Vector,
    *,
    K: int,
    eta: float,
    first: int | None,
    rest: int | None,
) -> Vector:
    """Take K steps of the PAGE recursion from x (FedPAGE, Alg. 1, lines 13-21).

    g_k = grad_I(y_k) - grad_I(y_{k-1}) + g_{k-1} and y_{k+1} = y_k - eta g_k, with
    y_0 = x, y_{-1} = x_prev and g_{-1} = g.

    Args:
        oracle: The called clients' oracle.
        x: The start, (d,).
        x_prev: The point before it, (d,).
        g: The estimator there, (d,).
        K: The number of steps.
        eta: The step size.
        first: Rows in the minibatch of step 0. If None, use all rows.
        rest: Rows in the minibatches of the other steps. If None, use all rows.

    Returns:
        The mean of g_0..g_{K-1}, (n, d).
    """
    y, y_prev = x, x_prev
    total: Any = 0.0
    for k in range(K):
        batch = oracle.batch(first if k == 0 else rest)  # lines 14, 18
        g = g + oracle.grad(y, batch) - oracle.grad(y_prev, batch)  # lines 15, 19
        y, y_prev, total = y - eta * g, y, total + g  # lines 16, 20
    mean: Vector = total / K
    return mean


@_fused
def local_svrg(
    oracle: Oracle,
    x: Vector,
    w: Vector,
    h: Vector,
    *,
    K: int,
    eta: float,
    b: int | None,
) -> Vector:
    """Take K SVRG steps from x: y <- y - eta (grad_I(y) - grad_I(w) + h), |I| = b.

    Args:
        oracle: The called clients' oracle.
        x: The start, (d,).
        w: The reference point, (d,) or (n, d).
        h: The full gradient at w, (d,) or (n, d).
        K: The number of steps.
        eta: The step size.
        b: Rows in a minibatch. If None, use all rows.

    Returns:
        The mean direction, (n, d).
    """
    y = x
    total: Any = 0.0
    for _ in range(K):
        batch = oracle.batch(b)
        direction = oracle.grad(y, batch) - oracle.grad(w, batch) + h
        y, total = y - eta * direction, total + direction
    mean: Vector = total / K
    return mean


@_fused
def local_training(
    oracle: Oracle,
    x: Vector,
    *,
    K: int | None,
    epochs: int | None = None,
    eta: float,
    b: int | None,
    mu: float = 0.0,
    optimizer: Optimizer | None = None,
) -> Vector:
    """Take local steps y <- y - eta u, where an optimiser makes u of the gradient.

    The gradient is grad_I(y) + mu (y - x), |I| = b.

    Args:
        oracle: The called clients' oracle.
        x: The start, (d,).
        K: The number of steps. If None, `epochs` decides.
        epochs: Passes over a client's rows in minibatches, the last of which may be
            smaller; clients of unequal sizes then take unequal numbers of steps.
        eta: The step size.
        b: Rows in a minibatch. If None, use all rows.
        mu: The proximal weight (FedProx).
        optimizer: The client optimiser, whose moments begin at zero. If None, u is the
            gradient.

    Returns:
        The move y_K - x, (n, d).

    Raises:
        InputError: The oracle cannot pass over rows.
    """
    optimizer = SGD() if optimizer is None else optimizer
    next_batch, counts = _batches(oracle, K, epochs, b)
    y = x
    total: Any = 0.0
    moments: Moments = ()
    for k in range(int(counts.max())):
        step, gradient = k + 1, oracle.grad(y, next_batch(k))
        if mu != 0.0:
            gradient = gradient + mu * (y - x)
        if k < counts.min():
            u, moments = optimizer.direction(gradient, y, moments, step)
            y, total = y - eta * u, total + u
            continue
        on = np.flatnonzero(k < counts)  # clients that have rows left
        part = tuple(m[on] for m in moments)
        u, part = optimizer.direction(gradient[on], y[on], part, step)
        y[on], total[on] = y[on] - eta * u, total[on] + u
        for m, new in zip(moments, part, strict=True):
            m[on] = new
    move: Vector = -eta * total
    return move


def _batches(
    oracle: Oracle, K: int | None, epochs: int | None, b: int | None
) -> tuple[Callable[[int], Batch], Ints]:
    """Return the minibatch of each step, and the steps of each client, (n,) or (1,)."""
    if epochs is None:
        return lambda k: oracle.batch(b), np.array([K])
    if not isinstance(oracle, EpochOracle):
        raise InputError(
            f"epochs: {type(oracle).__name__} cannot pass over its clients' rows; give "
            "K, or add epoch_steps and epoch_batch to it"
        )
    return partial(oracle.epoch_batch, b, epochs), oracle.epoch_steps(b, epochs)
