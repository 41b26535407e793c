"""Messages, replies and states that several methods share.

A message or reply is a NamedTuple of vectors. A method maps each type of message to the
type of its reply, so two kinds of message of one method are two types.
"""

from __future__ import annotations

from typing import NamedTuple

from fedpage.core.types import Vector


class ModelState(NamedTuple):
    """The model and the number of clients."""

    x: Vector
    N: int


class MomentumState(NamedTuple):
    """The model, the momentum m, and the number of clients."""

    x: Vector
    m: Vector
    N: int


class Model(NamedTuple):
    """To the called clients: start from x."""

    x: Vector


class FullGradient(NamedTuple):
    """To the called clients: send your gradient at x."""

    x: Vector


class TwoPoints(NamedTuple):
    """To S clients: compare your gradients at x and x_prev."""

    x: Vector
    x_prev: Vector


class Gradient(NamedTuple):
    """The client's gradient, or its estimate of it."""

    g: Vector


class Move(NamedTuple):
    """dy = y_K - x, where y_K is the end of the local steps from x."""

    dy: Vector


class MoveAndGradient(NamedTuple):
    """dy = y_K - x, and a gradient."""

    dy: Vector
    g: Vector


class ChangeAndDrift(NamedTuple):
    """grad(x) - grad(x_prev), and grad(x_prev) minus what the client has stored."""

    change: Vector
    drift: Vector
