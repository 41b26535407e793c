"""Match the communication and the local work of methods, as the paper does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from statistics import median
from typing import Any

from fedpage.core.capabilities import measures_step
from fedpage.core.types import AnyMethod, HyperParameter, Problem
from fedpage.methods.base import BaseMethod
from fedpage.methods.registry import MethodEntry
from fedpage.methods.schedules import effective_step, with_step


def fair_batch(M: int, K: int, b3: int = 1) -> int:
    """Return the minibatch at which K SGD steps cost as much as FedPAGE's.

    FedPAGE's K steps evaluate all M rows at two points, then b3 rows at two points K-1
    times; so the minibatch is (2 M + 2 (K-1) b3)/K, rounded.

    Args:
        M: Rows of a client.
        K: Local steps.
        b3: FedPAGE's minibatch after the first step.

    >>> [fair_batch(M, 10) for M in (10, 100, 3250)]  # the paper's 4, 22 and 652
    [4, 22, 652]
    """
    return max(1, min(M, round((2 * M + 2 * (K - 1) * b3) / K)))


def match_terms(
    entry: MethodEntry, *, N: int, M: int, S: int, K: int, step: float
) -> AnyMethod:
    """Return a method on the paper's equal terms, at an effective step.

    FedPAGE samples S clients, and calls all clients with probability S/N: fewer than 2S
    clients a round on average. So do PP-MARINA, SVRP and SABER. Methods without full
    rounds sample 2S. SecantPAGE samples S, and keeps the step size that it measures.

    With codecs these terms are not equal: a called client no longer sends a vector, and
    PP-MARINA calls S (1 + 1/(1+omega)) clients on average. Compare compressed methods
    by the bytes to a target, each with tuned steps (`tune(cost="bytes")`), and not by
    rounds.

    Args:
        entry: The method.
        N: Clients.
        M: Rows of a client.
        S: FedPAGE's sampled clients.
        K: Local steps.
        step: The effective step.
    """
    defaults, options = entry.hyper_parameters, dict[str, float]()

    def attribute(name: str) -> Any:  # a method of a user may not be a BaseMethod
        return getattr(entry.cls, name, getattr(BaseMethod, name))

    if "K" in defaults:
        options["K"] = K
    if attribute("is_geometric"):  # K steps on average
        options["p"] = 1 / K
    if defaults.get("S") is not None:  # None: all clients take part
        options["S"] = min(S if attribute("full_rounds") else 2 * S, N)
    if "K" in defaults and defaults.get("b") is not None:
        options["b"] = fair_batch(M, attribute("gradients_per_row") * K)
    return at_step(entry(**options), step)


def at_step(method: AnyMethod, step: float) -> AnyMethod:
    """Return a method at an effective step, unless it measures its step itself."""
    return method if measures_step(method) else with_step(method, step)


def default_method(
    entry: MethodEntry, given: Mapping[str, HyperParameter], problem: Problem
) -> AnyMethod:
    """Return a method with given values, and the paper's terms for the others.

    Args:
        entry: The method.
        given: Hyper-parameters that the user has chosen.
        problem: The problem, whose clients determine S and the minibatches.
    """
    K = int(given.get("K") or (1 if entry.hyper_parameters.get("K") == 1 else 10))
    N, M = problem.N, int(median(problem.sizes))
    method = match_terms(entry, N=N, M=M, S=min(10, N), K=K, step=0.1)
    return replace_given(entry, method, given)


def replace_given(
    entry: MethodEntry, method: AnyMethod, given: Mapping[str, HyperParameter]
) -> AnyMethod:
    """Replace hyper-parameters of a method, unless the name's preset fixes them.

    Raises:
        InputError: The preset fixes one of them, or a value is impossible.
    """
    entry(**given)  # raises the errors
    if given.get("epochs") is not None:
        given = {**given, "K": None}
    changed: AnyMethod = replace(method, **given)
    return changed


def step_sizes(method: AnyMethod) -> set[str]:
    """Return the hyper-parameters that set the effective step, such as eta_l or lam."""
    other = with_step(method, 2 * effective_step(method))
    names = [field.name for field in fields(method) if field.init]
    changed = {n for n in names if getattr(other, n) != getattr(method, n)}
    return changed | {"eta", "eta_g", "eta_l"}
