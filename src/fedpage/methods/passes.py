"""Passes over the clients without replacement, in place of full rounds.

Each round of a pass calls the next S clients of a random order. They send their
gradients at x, and how these change from x_prev to x. The gradients join a mean over
the clients that the pass has had so far, which the changes carry along to x. At the end
of the pass it is an estimate of the gradient of f from all clients, though no round has
called all of them. A client that does not answer is asked again later in the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedpage.codecs import Compressible
from fedpage.core.random import next_clients
from fedpage.core.secant import dot
from fedpage.core.types import (
    Call,
    Draws,
    Flags,
    MessageTypes,
    Oracle,
    Replies,
    Vector,
)  # fmt: skip
from fedpage.methods.messages import TwoPoints


class PassUnmoved(NamedTuple):
    """To the next S clients of a pass, where x is x_prev: send your gradient at x."""

    x: Vector


class UnmovedReply(NamedTuple):
    """The client's gradient at x."""

    g: Vector


class PassGradients(NamedTuple):
    """To the next S clients of a pass: send your gradient at x and its change."""

    x: Vector
    x_prev: Vector


class PassReply(NamedTuple):
    """The client's gradient at x, and its change from x_prev to x."""

    g: Vector
    y: Vector


class Difference(NamedTuple):
    """The change of the client's gradient from x_prev to x, outside a pass."""

    y: Vector


Message = PassUnmoved | PassGradients | TwoPoints
InPass = UnmovedReply | PassReply
MESSAGES: MessageTypes = {
    PassUnmoved: UnmovedReply, PassGradients: PassReply, TwoPoints: Difference
}  # fmt: skip
CHANGES: Compressible = {PassGradients: {"y": None}, TwoPoints: {"y": None}}
GRADIENTS: Compressible = {PassUnmoved: {"g": None}, PassGradients: {"g": None}}


def call_next(
    x: Vector,
    x_prev: Vector,
    seen: Flags,
    number: int,
    draws: Draws,
    S: int,
    fallback: Callable[[], Call[Any]],
) -> Call[Any]:
    """Call the next S clients of a pass.

    With no failure the rounds cut the order of the clients into blocks. The place in
    the order moves on by S a round, so a client that is missing is asked again when
    the others have been.

    Args:
        x: The model.
        x_prev: The one before it.
        seen: Which clients the pass has had.
        number: The number of the pass.
        draws: The round's random numbers.
        S: The number of clients.
        fallback: Makes the call to use if none of them answers; the first g has none.
    """
    order = draws.order(len(seen), number)
    clients = next_clients(order, seen, draws.round * S, S)
    s = x - x_prev
    message = PassGradients(x, x_prev) if dot(s, s) > 0 else PassUnmoved(x)
    if number == 0 and not seen.any():
        return Call(clients, message)
    return Call(clients, message, fallback=fallback)


def next_seen(seen: Flags, replies: Replies[Any]) -> Flags:
    """Return which clients the pass has had after a round."""
    if isinstance(replies.mean, InPass):
        seen = seen.copy()
        seen[replies.clients] = True
    return seen


def join(g: Vector, replies: Replies[InPass], seen: Flags) -> Vector:
    """Return the pass's mean gradient at x, with the new clients in it.

    Args:
        g: The mean over the clients that the pass had before, at x_prev.
        replies: The replies of the new clients.
        seen: All clients that the pass has had, the new ones included.
    """
    mean, share = replies.mean, replies.count / int(seen.sum())
    moved = g + mean.y if isinstance(mean, PassReply) else g
    return (1 - share) * moved + share * mean.g


def reply(
    oracle: Oracle, message: Message, b1: int | None, b2: int | None
) -> InPass | Difference:
    """Return the clients' gradients over b1 rows, and their changes over b2 rows."""
    if isinstance(message, TwoPoints):
        return Difference(_difference(oracle, *message, b2))
    g = oracle.grad(message.x, oracle.batch(b1))
    if isinstance(message, PassUnmoved):
        return UnmovedReply(g)
    x, x_prev = message
    if b1 is None and b2 is None:
        return PassReply(g, g - oracle.grad(x_prev, oracle.batch(None)))
    return PassReply(g, _difference(oracle, x, x_prev, b2))


def _difference(oracle: Oracle, x: Vector, x_prev: Vector, b: int | None) -> Vector:
    """Return the change of the clients' gradients from x_prev to x, over b rows."""
    batch = oracle.batch(b)
    return oracle.grad(x, batch) - oracle.grad(x_prev, batch)
