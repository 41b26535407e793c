"""The averaging start: one pass over the clients without replacement.

A method with an estimator g of the gradient of f begins with a full round, or with this
pass: each round calls the next S clients of a random order. g follows the point, and
the new clients' gradients join the mean over those seen before. It moves from the
first round on. A client that does not answer is asked again later in the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedpage.core import first_pass
from fedpage.core.types import Call, Draws, Flags, Oracle, Replies, Vector


class PassGradients(NamedTuple):
    """To the next S clients of the pass: send your gradient at x and its change."""

    x: Vector
    x_prev: Vector


class PassReply(NamedTuple):
    """The client's gradient at x, and its change from x_prev to x."""

    g: Vector
    y: Vector


class Differences(NamedTuple):
    """To S clients: send the change of your gradient from x_prev to x."""

    x: Vector
    x_prev: Vector


class Difference(NamedTuple):
    """The change of the client's gradient from x_prev to x."""

    y: Vector


def start_pass(start: str, N: int) -> Flags:
    """Return which clients have been seen before round 0; "full": all, for no pass."""
    return first_pass.flags(N, start == "full")


def is_complete(seen: Flags) -> bool:
    """Return whether the pass has had every client."""
    return first_pass.count(seen) == len(seen)


def call_next(
    seen: Flags,
    draws: Draws,
    S: int,
    messages: tuple[Any, PassGradients],
    fallback: Callable[[], Call[Any]],
) -> Call[Any]:
    """Call the next S clients of the pass.

    With no failure the rounds cut the order of the clients into blocks. The place in
    the order moves on by S a round, so a client that is missing is asked again when
    the others have been.

    Args:
        seen: Which clients the pass has had.
        draws: The round's random numbers.
        S: The number of clients.
        messages: The message to the first clients, and that to all others.
        fallback: Makes the call to use if none of them answers; the first g has none.
    """
    N = len(seen)
    clients = first_pass.next_clients(draws.order(N), seen, draws.round * S, S)
    if first_pass.count(seen) == 0:
        return Call(clients, messages[0])
    return Call(clients, messages[1], fallback=fallback)


def next_seen(seen: Flags, replies: Replies[Any]) -> Flags:
    """Return which clients the pass has had after a round."""
    if isinstance(replies.mean, PassReply) or first_pass.count(seen) == 0:
        return first_pass.add_clients(seen, replies.clients)
    return seen


def join(g: Vector, mean: PassReply, share: float) -> Vector:
    """Return the estimator at x, with the new clients' gradients in it.

    Args:
        g: The estimator at x_prev, a mean over the clients seen before.
        mean: The mean reply of the new clients.
        share: The new clients among all that have been seen.
    """
    return (1 - share) * (g + mean.y) + share * mean.g


def share_of(replies: Replies[Any], seen: Flags) -> float:
    """Return the share of a round's clients among all that have been seen."""
    return replies.count / first_pass.count(seen)


def difference(
    oracle: Oracle, message: PassGradients | Differences, b: int | None
) -> Vector:
    """Return the change of the clients' gradients over the same b rows."""
    batch = oracle.batch(b)
    return oracle.grad(message.x, batch) - oracle.grad(message.x_prev, batch)


def reply_in_pass(
    oracle: Oracle, message: PassGradients, b1: int | None, b2: int | None
) -> PassReply:
    """Return the clients' gradients over b1 rows, and their changes over b2 rows."""
    g = oracle.grad(message.x, oracle.batch(b1))
    if b1 is None and b2 is None:
        return PassReply(g, g - oracle.grad(message.x_prev, oracle.batch(None)))
    return PassReply(g, difference(oracle, message, b2))
