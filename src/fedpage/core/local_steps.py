"""The local loops that methods are made of, each written once, as the papers write them.

Arrays are batched: n called clients, a row each; a shared point may be (d,). Each walk returns the mean of its K
directions, which is (x - y_K)/(K eta) without the cancellation that forming x - y_K would cost.

An oracle may offer a fused kernel of the same name; the walk then calls that, and a law holds the two to 1e-12.
"""

from __future__ import annotations

from typing import Any

from fedpage.core.types import Oracle, Vector


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
    """K local SGD steps from x: y <- y - eta (grad_I(y) + shift + mu (y - x)), |I| = b.

    x (d,), shift (n, d) constant (SCAFFOLD: c - c_i; VRL-SGD: -Delta_i), mu the proximal weight (FedProx).
    Returns (n, d), the mean direction.
    """
    fused: Any = getattr(oracle, "local_sgd", None)
    if fused is not None:
        walked: Vector = fused(x, K=K, eta=eta, b=b, shift=shift, mu=mu)
        return walked
    y: Any = x
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
    """K steps of the PAGE recursion (FedPAGE, Alg. 1, lines 13-21) from x, with y_{-1} = x_prev and g_{-1} = g.

    g_k = grad_I(y_k) - grad_I(y_{k-1}) + g_{k-1}, y_{k+1} = y_k - eta g_k; |I| = first at k = 0, rest afterwards.
    x, x_prev, g (d,). Returns (n, d), the mean of g_0..g_{K-1}.
    """
    fused: Any = getattr(oracle, "local_page", None)
    if fused is not None:
        walked: Vector = fused(x, x_prev, g, K=K, eta=eta, first=first, rest=rest)
        return walked
    y: Any = x
    y_prev: Any = x_prev
    total: Any = 0.0
    for k in range(K):
        batch = oracle.batch(first if k == 0 else rest)  # lines 14, 18
        g = g + oracle.grad(y, batch) - oracle.grad(y_prev, batch)  # lines 15, 19
        y, y_prev, total = y - eta * g, y, total + g  # lines 16, 20
    mean: Vector = total / K
    return mean


def local_svrg(
    oracle: Oracle, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
) -> Vector:
    """K local SVRG steps from x round the reference point w: y <- y - eta (grad_I(y) - grad_I(w) + h), |I| = b.

    x (d,); w and h, the full gradient at w, (d,) or (n, d). Returns (n, d), the mean direction.
    """
    fused: Any = getattr(oracle, "local_svrg", None)
    if fused is not None:
        walked: Vector = fused(x, w, h, K=K, eta=eta, b=b)
        return walked
    y: Any = x
    total: Any = 0.0
    for _ in range(K):
        batch = oracle.batch(b)
        direction = oracle.grad(y, batch) - oracle.grad(w, batch) + h
        y, total = y - eta * direction, total + direction
    mean: Vector = total / K
    return mean
