"""What comes back from clients, and what of it counts: letters, their validation, and who has gone silent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Batch, Ints, Method


@dataclass(frozen=True)
class Policy:
    """What a round does about clients that do not answer, or answer nonsense. The default is the one to use.

    Replies that are late, not finite, or not of the expected shape and type are rejected. Missing clients are asked
    again, `retries` times; in a full round `full_retries` times, because one missing client in a thousand spoils it.
    If some of a full round's clients are still missing, the method's sampled round takes its place, so that no
    gradient is ever the mean over a part of the clients. Where there is no such round (FedPAGE's
    first, all of VRL-SGD's) or nobody at all has answered, the missing are asked again `patience` times, and then the
    run gives up. Means are over the clients that answered. What a client remembers changes only if its reply counted.
    A client that was missing in `lost_after` rounds of its own in a row counts as lost, which is told once; while one
    is lost, full rounds are not even tried.
    """

    retries: int = 2
    full_retries: int = 6
    patience: int = 10
    lost_after: int = 3
    validate: bool = True
    """False: whatever arrives is added, late replies of an earlier round too."""
    fall_back: bool = True
    """False: a full round takes the mean over whoever answered."""
    remember: str = "counted"
    """When a client's new client_state holds: once its reply "counted", or "at once"."""

    def __post_init__(self) -> None:
        for name, least in (
            ("retries", 0),
            ("full_retries", 0),
            ("patience", 1),
            ("lost_after", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"policy: {name} must be a whole number of at least {least}, not {value!r}"
                )
        for name in ("validate", "fall_back"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(
                    f"policy: {name} must be true or false, not {getattr(self, name)!r}"
                )
        if self.remember not in ("counted", "at once"):
            raise InputError(
                f"policy: remember must be 'counted' or 'at once', not {self.remember!r}"
            )

    @classmethod
    def naive(cls) -> Policy:
        """None at all: what a loop that nobody has thought about does. For comparison."""
        return cls(retries=0, full_retries=0, validate=False, fall_back=False, remember="at once")


class Letter(NamedTuple):
    """What came back from one client, not to be trusted: a reply, or why there is none."""

    client: int
    round: int
    """The round whose call it answers."""
    reply: Any
    """A NamedTuple of (d,) arrays, or None."""
    error: str = ""
    client_state: Any = None
    """What the client remembers if this counts, a NamedTuple of (d,) arrays; None where it keeps that to itself."""


class Answer(NamedTuple):
    """What asking some clients brought."""

    clients: Ints
    """(n,) who was asked, ascending."""
    replies: Any = None
    """A NamedTuple of (n, d): a reply of every one of them, made in this process ..."""
    client_state: Any = None
    """... and what they remember now, (n, d); None if nothing."""
    letters: Sequence[Letter] | None = None
    """Instead of both: whatever has arrived."""
    gradients: int = 0
    evaluations: int = 0


class Post(Protocol):
    """How an engine reaches clients."""

    def ask(self, clients: Ints, message: Any, wave: int) -> Iterable[Answer]:
        """Send a message to clients; parts of them, in client order, with what came back. wave: the how-manyth time.

        Every part lists those of `clients` it stands for; together they are all of them. Letters that nobody asked
        for may come with any part, or in one of their own.
        """
        ...

    def accept(self, clients: Ints, client_state: Any) -> None:
        """The replies of these clients count: they now remember `client_state`, a NamedTuple of (n, d), or None."""
        ...


class RoundFailed(Exception):
    """A round that cannot be done: too many clients have stayed silent too long."""


class ClientHealth:
    """Who has been missing, how many of its own rounds in a row; nothing is kept of clients that answer."""

    def __init__(self, lost_after: int) -> None:
        self.lost_after = lost_after
        self.misses: dict[int, int] = {}

    @property
    def lost(self) -> list[int]:
        """Clients that count as lost."""
        return sorted(client for client, times in self.misses.items() if times >= self.lost_after)

    def missed(self, clients: Iterable[int]) -> list[int]:
        """Note that clients were missing in a round; returns those that count as lost from now on."""
        gone = []
        for client in clients:
            self.misses[client] = self.misses.get(client, 0) + 1
            if self.misses[client] == self.lost_after:
                gone.append(client)
        return gone

    def heard(self, clients: Iterable[int]) -> list[int]:
        """Note that clients answered; returns those that had counted as lost."""
        return [client for client in clients if self.misses.pop(client, 0) >= self.lost_after]


class Form(NamedTuple):
    """What a sound reply looks like."""

    kind: type[Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @property
    def floats(self) -> int:
        """Numbers in a reply."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def bytes(self) -> int:
        """Bytes of a reply."""
        return sum(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    def fault(self, reply: Any) -> str:
        """What is wrong with a reply, in words; "" if nothing is, or only that it is not finite."""
        if type(reply) is not self.kind:
            return f"a {type(reply).__name__} instead of a {self.kind.__name__}"
        for name, part, shape, dtype in zip(
            self.kind._fields, reply, self.shapes, self.dtypes, strict=True
        ):
            if tuple(getattr(part, "shape", ("none",))) != shape:
                return f"{name} of shape {getattr(part, 'shape', None)} instead of {shape}"
            if part.dtype != dtype:
                return f"{name} of type {part.dtype} instead of {dtype}"
        return ""


def finite(reply: Any) -> bool:
    """Whether every number of a reply is finite."""
    return all(bool(np.isfinite(np.asarray(part)).all()) for part in reply)


class _Blank:
    """An oracle of one client whose gradients are all zero: what a method makes of it has a reply's form."""

    gradients = 0
    evaluations = 0

    def batch(self, size: int | None) -> Batch:
        return Batch(None, np.ones(1, dtype=np.int64))

    def grad(self, y: Any, batch: Batch) -> Any:
        return 0.0 * (y if y.ndim == 2 else y[None, :])


def form_of(method: Method, message: Any) -> Form:
    """The form of a sound reply to a message: what the method itself answers where all gradients are zero."""
    blank = type(message)(*[0.0 * part for part in message])
    row = 0.0 * message[0][None, :]
    client_state = (
        None
        if method.client_state is None
        else method.client_state(*[row for _ in method.client_state._fields])
    )
    with np.errstate(all="ignore"):
        reply, _ = method.client(blank, _Blank(), client_state)
    return Form(
        type(reply),
        tuple(tuple(part.shape[1:]) for part in reply),
        tuple(part.dtype for part in reply),
    )
