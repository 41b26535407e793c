"""Equal terms: how the paper makes methods comparable in communication and in local work."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.page import PAGE
from fedpage.methods.slocalsvrg import SLocalSVRG


def fair_batch(M: int, K: int, b3: int = 1) -> int:
    """The minibatch with which K SGD steps cost as many gradients as a FedPAGE walk: (2 M + 2 (K-1) b3)/K, rounded.

    A walk evaluates all M rows at two points, then b3 rows at two points K-1 times.

    >>> [fair_batch(M, 10) for M in (10, 100, 3250)]  # the paper's 4, 22 and 652
    [4, 22, 652]
    """
    return max(1, min(M, round((2 * M + 2 * (K - 1) * b3) / K)))


def matched(kind: type[Any], *, N: int, M: int, S: int, K: int, step: float) -> Any:
    """A method at an effective step, on the paper's terms: S clients for FedPAGE, 2S for methods without full rounds.

    FedPAGE calls everyone with probability S/N, so on average fewer than 2S clients a round.
    """
    options: dict[str, int] = {}
    known = {field.name: field for field in fields(kind)}
    if "K" in known and not issubclass(kind, PAGE):
        options["K"] = K
    if "S" in known and known["S"].default is not None:  # None: everyone takes part
        options["S"] = min(S if issubclass(kind, FedPAGE) else 2 * S, N)
    if "b" in known and known["b"].default is not None:
        twice = 2 if issubclass(kind, SLocalSVRG) else 1  # two gradients a row
        options["b"] = fair_batch(M, twice * K)
    return kind(**options).with_step(step)
