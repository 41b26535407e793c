"""The ClientApp: a node that answers three questions, and no others."""

from __future__ import annotations

import sys
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.core.types import dtype_of
from fedpage.flower import messages
from fedpage.flower.node import (
    ClientStateStore,
    NodeData,
    NodeDraws,
    checked,
    method_of,
    problem_digest,
    site_of,
)
from fedpage.runs.fingerprint import code_digest

app = ClientApp()
_LARGEST = 1 << 28
"""Parameters that a server may ask for."""
WORK: dict[str, type] = {
    "client": int, "round": int, "seed": int, "kind": str, "d": int, "scale": float, "run": str, "dated": str,
}  # fmt: skip
MEASURE: dict[str, type] = {"client": int, "round": int, "d": int, "scale": float}


@app.query("describe")
def describe(message: Message, context: Context) -> Message:
    """Which client this is, how many rows it has, and that both sides run the same code."""
    _alone(sys._getframe(1))
    config = checked(context.run_config)
    site = site_of(context.node_config, config)
    about = {
        "client": site.client, "rows": int(site.problem.sizes[0]), "features": site.problem.d, "digest": site.digest,
        "labels": site.labels, "fedpage": __version__, "code": code_digest(type(method_of(config))),
        "problem": problem_digest(site.problem),
    }  # fmt: skip
    return Message(messages.words(about), reply_to=message)


@app.train("work")
def work(message: Message, context: Context) -> Message:
    """`Method.client` on this node's rows."""
    _alone(sys._getframe(1))
    say = messages.said(message.content, WORK)
    site = _asked(context, say)
    method = _method(tuple(sorted(checked(context.run_config).items())))
    kinds = messages.kinds(method)
    if say["kind"] not in kinds:
        raise messages.ProtocolError(f"{method.name} has no message {say['kind'][:40]!r}")
    parts = messages.unpacked(
        message.content, messages.vectors(kinds[say["kind"]], say["d"], dtype_of(site.problem))
    )
    recall, memory = None, None
    if method.client_state is not None:
        folder = str(context.node_config.get("memory", ""))
        recall = ClientStateStore(
            folder, say["run"], site.client, method.client_state, say["d"], dtype_of(site.problem)
        )
        memory = recall.get(say["dated"])
    problem = site.problem if say["scale"] == 1.0 else site.problem.scaled(say["scale"])
    oracle = problem.oracle(
        np.zeros(1, dtype=np.int64), NodeDraws(say["seed"], say["round"], site.client)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        reply, memory = method.client(parts, oracle, memory)
    if recall is not None:
        recall.keep(say["dated"], f"{say['round']} {say['kind']}", memory)
    answer = {
        "client": site.client, "round": say["round"], "kind": type(reply).__name__, "gradients": oracle.gradients,
        "evaluations": oracle.evaluations,
    }  # fmt: skip
    return Message(
        messages.packed(type(reply)(*(part[0] for part in reply)), answer), reply_to=message
    )


@app.evaluate("measure")
def evaluate(message: Message, context: Context) -> Message:
    """This client's own loss and gradient at a point."""
    _alone(sys._getframe(1))
    say = messages.said(message.content, MEASURE)
    site = _asked(context, say)
    (x,) = messages.unpacked(
        message.content, messages.vectors(messages.Point, say["d"], dtype_of(site.problem))
    )
    problem = site.problem if say["scale"] == 1.0 else site.problem.scaled(say["scale"])
    losses, gradients, _ = problem.evaluate_clients(np.zeros(1, dtype=np.int64), x)
    answer = {"client": site.client, "round": say["round"]}
    return Message(
        messages.packed(messages.Measures(losses, gradients[0]), answer), reply_to=message
    )


def _asked(context: Context, say: dict[str, Any]) -> NodeData:
    """This node's client, if it is the one that is meant."""
    if not 0 < say["d"] <= _LARGEST or not 0.0 < say["scale"] < 1e9:
        raise messages.ProtocolError(
            f"{say['d']} parameters at scale {say['scale']:g} are not to be had here"
        )
    site = site_of(context.node_config, checked(context.run_config), say["d"])
    if say["client"] != site.client:
        raise messages.ProtocolError(
            f"client {say['client']} is meant, and this is client {site.client}"
        )
    if site.problem.d != say["d"]:
        raise InputError(
            f"client {site.client} has {site.problem.d} features, and {say['d']} are agreed on"
        )
    return site


@lru_cache(maxsize=16)
def _method(config: tuple[tuple[str, Any], ...]) -> Any:
    return method_of(dict(config))


def _alone(caller: FrameType) -> None:
    """Refuse to be wrapped by mods.

    Flower's secure aggregation leaves messages of this kind in clear without a word, and its differential privacy
    clips round a model that FedPAGE's messages are not; either would promise what it does not give.
    """
    if caller.f_code is not ClientApp.__call__.__code__:
        raise RuntimeError(
            "fedpage's ClientApp takes no mods: secure aggregation would let its messages pass in clear, and clipping "
            "would be wrong for them"
        )
