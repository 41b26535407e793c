"""Pass a method's messages and replies through its codecs, and measure them as they are sent.

A method declares three things. Its fields `up` and `down` are codecs for replies and messages.
`compressible` names the reply fields that pass through `up`. If its clients keep a state that
depends on what was sent, `update_client_state(message, sent, client_state)` computes it from the
reply as the server will see it.

The engine applies the codec between `Method.client` and the mean, so a method has no code for it,
and the simulator and a federation use the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias

import numpy as np

from fedpage.codecs.base import IDENTITY, NO_KEYS, Codec, Keys, as_codec
from fedpage.core.errors import InputError
from fedpage.core.messages import Layout, layout_of, reply_layouts, scalar_fields
from fedpage.core.types import (
    AnyArray,
    ClientDraws,
    ClientStateT,
    DType,
    Fields,
    Ints,
    MessageT,
    Method,
    ReplyT,
    StateT,
    Vector,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Compressible: TypeAlias = Mapping[type, Mapping[str, str | None]]
"""Message types, each with the reply fields that pass through `up`.

The value is the name of the message's field of which the reply's field is a change, or None where
the reply's field is itself a change: {LocalSteps: {"g": "g"}} sends C(reply.g - message.g).
"""
UpdateClientState: TypeAlias = Callable[[Any, Any, Any], Any]
"""`Method.update_client_state`: what clients keep once they know what was sent."""
Kind: TypeAlias = Literal["any", "unbiased", "contractive", "cast"]
"""Which codecs a method may use: all, unbiased ones, contractive ones, or those that only round."""

Shapes: TypeAlias = dict[str, tuple[int, np.dtype[Any]]]
"""The size and type of each array of a message or reply as it is sent, by field."""

_MANY = 1 << 40
"""A number of parameters for which every k of a codec is possible."""
_BYTE = np.dtype(np.uint8)


class MessageSize(NamedTuple):
    """The size of messages or replies as they are sent."""

    floats: int
    """Numbers."""
    bits: int
    """Exact bits."""
    bytes: int
    """Bytes: each field is padded to whole bytes."""


class Ranks(NamedTuple):
    """The places of clients among all that are called, which PermK needs."""

    ranks: Ints | None = None
    """(n,)"""
    called: int = 0
    """How many are called."""


NO_RANKS = Ranks()
"""The ranks for codecs that do not need them."""


class _Field(NamedTuple):
    """A reply field that passes through a codec."""

    place: int
    """Its index in the reply, which is also its number in the keys of random numbers."""
    reference: int | None
    """The index of the message's field of which it is a change."""


def check(method: DataclassInstance, up: Kind, *, down: Kind = "cast", hint: str = "") -> None:
    """Convert the codecs of a method from text, and refuse those it cannot use.

    Args:
        method: A frozen dataclass with `up` and perhaps `down`, in its `__post_init__`.
        up: Which codecs its replies may pass through.
        down: Which codecs its messages may pass through.
        hint: The advice at the end of an error message.

    Raises:
        InputError: A codec is unknown, or not one of these.
    """
    for field, kind in (("up", up), ("down", down)):
        if kind not in _RULES:
            raise InputError(f"codecs.check: {kind!r} is not one of {', '.join(_RULES)}")
        if not hasattr(method, field):
            continue
        codec = as_codec(getattr(method, field))
        object.__setattr__(method, field, codec)
        is_right, fault, advice = _RULES[kind]
        if not codec.is_cast and not is_right(codec):
            name = getattr(method, "name", type(method).__name__)
            advice = hint if hint and field == "up" else advice.format(codec=codec)
            raise InputError(f"{name}: {field}={codec} {fault}; {advice}")


_RULES: dict[Kind, tuple[Callable[[Codec], bool], str, str]] = {
    "any": (lambda codec: True, "", ""),
    "unbiased": (
        lambda codec: codec.omega(_MANY) is not None,
        "is biased, which this method does not correct",
        "use an unbiased codec such as randk:0.1 or natural, or the method EF21",
    ),
    "contractive": (
        lambda codec: codec.alpha(_MANY) is not None,
        "is not contractive",
        "use scaled({codec})",
    ),
    "cast": (
        lambda codec: False,
        "is not a cast, and this method does not correct the error of other codecs",
        "use float32, bfloat16 or none",
    ),
}
"""Whether a codec is of a kind, the fault if it is not, and advice. Casts are of every kind."""


def as_received(down: Codec, v: Vector) -> Vector:
    """Return a vector (d,) of a message as clients see it after a codec without randomness."""
    received: Vector = down.apply(v[None], NO_KEYS)[0]
    return received


class MessageCodec(Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Pass a method's messages and replies through its codecs, and measure them.

    Args:
        method: The method.
        d: The number of parameters.
        dtype: The type of the model's numbers.

    Raises:
        InputError: The method declares its messages or compressible fields wrongly, or a codec
            does not fit d parameters.
    """

    def __init__(
        self, method: Method[StateT, MessageT, ReplyT, ClientStateT], d: int, dtype: DType
    ) -> None:
        self.replies = reply_layouts(method, d, dtype)
        self.messages: dict[type, Layout[Fields]] = {
            message: layout_of(message, d, dtype) for message in self.replies
        }
        self.up: Codec = getattr(method, "up", IDENTITY)
        self.down: Codec = getattr(method, "down", IDENTITY)
        for name in ("up", "down"):
            if not isinstance(getattr(self, name), Codec):
                raise InputError(
                    f"{type(method).__name__}: {name}={getattr(self, name)!r} is not a codec; "
                    "call codecs.check(self, ...) in __post_init__, which converts text"
                )
        self._exact: Collection[type] = getattr(method, "exact_messages", ())
        self.d, self.dtype = d, dtype
        self._update: UpdateClientState | None = getattr(method, "update_client_state", None)
        self.updates_client_state = self._update is not None
        """Whether clients keep a state that depends on what was sent."""
        self._fields = {
            message: self._find_fields(method, message, layout)
            for message, layout in self.replies.items()
        }
        if self.up != IDENTITY and not any(self._fields.values()):
            raise InputError(
                f"{type(method).__name__}: up={self.up}, but no reply field is declared in "
                "`compressible`; declare one, or leave up at none"
            )
        self.is_active = self.up != IDENTITY
        """Whether any reply passes through a codec."""
        self.needs_ranks, self.has_fixed_size = self.up.needs_ranks, self.up.has_fixed_size
        if self.is_active:
            self.up.bits(d, dtype)  # raises an error if the codec does not fit d
        if self.down != IDENTITY:
            self.down.bits(d, dtype)
        self._coded = {m: {field.place for field in found} for m, found in self._fields.items()}
        self._rounded = {message: self._find_rounded(message) for message in self.messages}
        self.reply_size = {
            message: _measure(layout, self.up, self._coded[message])
            for message, layout in self.replies.items()
        }
        """The size of a reply to each message type; the largest, if it varies."""
        self.message_size = {
            message: _measure(layout, self.down, self._rounded[message])
            for message, layout in self.messages.items()
        }

    def _find_fields(
        self, method: object, message: type, layout: Layout[ReplyT]
    ) -> tuple[_Field, ...]:
        declared: Compressible = getattr(method, "compressible", {})
        if self.up == IDENTITY:
            return ()
        found = []
        for name, reference in declared.get(message, {}).items():
            sent = self.messages[message].fields
            if name not in layout.fields or (reference is not None and reference not in sent):
                raise InputError(
                    f"{type(method).__name__}: compressible names {name!r}: {reference!r} for "
                    f"{message.__name__}, which has no such field"
                )
            index = layout.fields.index(name)
            if name in scalar_fields(layout.type):
                raise InputError(f"{type(method).__name__}: {name!r} is a number, not a vector")
            found.append(_Field(index, None if reference is None else sent.index(reference)))
        return tuple(found)

    def needs_all(self, message: type) -> bool:
        """Return whether only the replies of all called clients have a usable mean."""
        return self.needs_ranks and bool(self._fields[message])

    def places_of_high_variance(self, message: type) -> set[int]:
        """Return the indices of reply fields whose norm the codec may change by any factor."""
        omega = self.up.omega(self.d)
        return self._coded[message] if omega is not None and omega >= 1.0 else set()

    def _find_rounded(self, message: type) -> set[int]:
        """Return the indices of the message's fields that pass through `down`: its vectors.

        A method may list message types that pass unchanged in `exact_messages`.
        """
        if self.down == IDENTITY or message in self._exact:
            return set()
        numbers = scalar_fields(message)
        names = self.messages[message].fields
        return {i for i, name in enumerate(names) if name not in numbers}

    def measure_replies(
        self, message: type, clients: Ints, draws: ClientDraws, ranks: Ranks = NO_RANKS
    ) -> MessageSize:
        """Return the size of the replies of all these clients together."""
        if self.has_fixed_size:
            return MessageSize(*(len(clients) * part for part in self.reply_size[message]))
        return MessageSize(*self._measure_each(message, clients, draws, ranks).sum(0).tolist())

    def reply_bytes(
        self, message: type, clients: Ints, draws: ClientDraws, ranks: Ranks = NO_RANKS
    ) -> Ints:
        """Return the bytes of the reply of each of these clients, (n,)."""
        return self._measure_each(message, clients, draws, ranks)[:, 2]

    def _measure_each(self, message: type, clients: Ints, draws: ClientDraws, ranks: Ranks) -> Ints:
        """Return the numbers, bits and bytes of each client's reply, (n, 3)."""
        each = np.tile(np.array(self.reply_size[message], dtype=np.int64), (len(clients), 1))
        if not self.has_fixed_size:
            for place, _ in self._fields[message]:
                size = self.replies[message].sizes[place]
                most = self.up.bits(size, self.dtype)
                keys = self._keys(draws, clients, place, ranks)
                sizes = self.up.sizes(size, self.dtype, keys)
                each[:, 0] -= self.up.floats(size) - self.up.numbers(size, keys)
                each[:, 1] -= most - sizes
                each[:, 2] -= -(-most // 8) + (-sizes // 8)
        return each

    def _keys(self, draws: ClientDraws, clients: Ints, place: int, ranks: Ranks) -> Keys:
        if not self.up.is_random:
            return NO_KEYS
        return Keys(draws.client_keys(clients, place), draws.shared_key(place), *ranks)

    def receive(self, message: MessageT) -> MessageT:
        """Return a message as clients see it, after `down`."""
        if self.down == IDENTITY:
            return message
        rounded = self._rounded[type(message)]
        parts = (
            as_received(self.down, part) if i in rounded else part for i, part in enumerate(message)
        )
        build: Callable[..., MessageT] = type(message)
        return build(*parts)

    def finish(
        self,
        message: MessageT,
        replies: ReplyT,
        client_states: ClientStateT,
        clients: Ints,
        draws: ClientDraws,
        ranks: Ranks = NO_RANKS,
    ) -> tuple[ReplyT, ClientStateT]:
        """Return replies (n, d) as the server will see them, and the clients' states after sending.

        Args:
            message: The message as these clients received it.
            replies: The replies of `Method.client`.
            client_states: The client states of `Method.client`.
            clients: The clients, (n,).
            draws: The round's random numbers.
            ranks: The clients' places among the called, where `needs_ranks`.
        """
        if fields := self._fields[type(message)]:
            parts: list[Any] = list(replies)
            for place, reference in fields:
                keys = self._keys(draws, clients, place, ranks)
                if reference is None:
                    parts[place] = self.up.apply(parts[place], keys)
                else:
                    base = message[reference]
                    parts[place] = base + self.up.apply(parts[place] - base, keys)
            replies = self.replies[type(message)].build(parts)
        if self._update is not None:
            client_states = self._update(message, replies, client_states)
        return replies, client_states

    def message_shapes(self, message: type) -> Shapes:
        """Return the size and type of each array of a message as it is sent."""
        layout = self.messages[message]
        coded = {i: self.down.bits(layout.sizes[i], self.dtype) for i in self._rounded[message]}
        return _shapes(layout, coded)

    def reply_shapes(
        self, message: type, clients: Ints, draws: ClientDraws, ranks: Ranks = NO_RANKS
    ) -> Shapes:
        """Return the size and type of each array of the reply that one client (1,) sends."""
        layout = self.replies[message]
        coded = {i: self.up.bits(layout.sizes[i], self.dtype) for i in self._coded[message]}
        if not self.has_fixed_size:
            for place, _ in self._fields[message]:
                keys = self._keys(draws, clients, place, ranks)
                coded[place] = int(self.up.sizes(layout.sizes[place], self.dtype, keys)[0])
        return _shapes(layout, coded)

    def encode_message(self, message: MessageT) -> dict[str, AnyArray]:
        """Return the arrays that are sent for a message, by field."""
        rounded = self._rounded[type(message)]
        names = self.messages[type(message)].fields
        return {
            name: self.down.encode(part[None], NO_KEYS) if i in rounded else part
            for i, (name, part) in enumerate(zip(names, message, strict=True))
        }

    def decode_message(self, message: type, parts: Sequence[AnyArray]) -> Fields:
        """Return a message from the arrays that were received, in the order of its fields."""
        layout, rounded = self.messages[message], self._rounded[message]
        return layout.build(
            self.down.decode(part, size, dtype, NO_KEYS)[0] if i in rounded else part
            for i, (part, size, dtype) in enumerate(
                zip(parts, layout.sizes, layout.dtypes, strict=True)
            )
        )

    def encode_reply(
        self, message: MessageT, reply: ReplyT, client: Ints, draws: ClientDraws, ranks: Ranks
    ) -> dict[str, AnyArray]:
        """Return the arrays that are sent for the reply (1, d) of one client (1,), by field."""
        layout = self.replies[type(message)]
        sent: dict[str, AnyArray] = {
            name: part[0] for name, part in zip(layout.fields, reply, strict=True)
        }
        for place, reference in self._fields[type(message)]:
            change: Vector = reply[place]
            if reference is not None:
                change = change - message[reference]
            keys = self._keys(draws, client, place, ranks)
            sent[layout.fields[place]] = self.up.encode(change, keys)
        return sent

    def decode_reply(
        self,
        message: MessageT,
        parts: Sequence[AnyArray],
        client: Ints,
        draws: ClientDraws,
        ranks: Ranks,
    ) -> ReplyT:
        """Return one client's reply, fields (d,), from the arrays that were received.

        Raises:
            InputError: The codec cannot decode them.
        """
        layout, decoded = self.replies[type(message)], list(parts)
        for place, reference in self._fields[type(message)]:
            keys = self._keys(draws, client, place, ranks)
            change = self.up.decode(parts[place], layout.sizes[place], self.dtype, keys)[0]
            decoded[place] = change if reference is None else message[reference] + change
        return layout.build(decoded)


def _measure(layout: Layout[Any], codec: Codec, coded: set[int]) -> MessageSize:
    """Return the size of a message or reply whose fields `coded` pass through a codec."""
    floats = bits = nbytes = 0
    for i, (size, dtype) in enumerate(zip(layout.sizes, layout.dtypes, strict=True)):
        of_field = codec.bits(size, dtype) if i in coded else 8 * size * dtype.itemsize
        floats += codec.floats(size) if i in coded else size
        bits += of_field
        nbytes += -(-of_field // 8)
    return MessageSize(floats, bits, nbytes)


def _shapes(layout: Layout[Any], coded: dict[int, int]) -> Shapes:
    """Return the arrays of a message or reply, given the bits of the fields that are coded."""
    each = enumerate(zip(layout.fields, layout.sizes, layout.dtypes, strict=True))
    return {
        name: (-(-coded[i] // 8), _BYTE) if i in coded else (size, dtype)
        for i, (name, size, dtype) in each
    }
