"""The messages of secure aggregation, and what clients and server compute alike.

A sum takes four exchanges with the called clients: public keys, shares, masked numbers, unmasking.
Every request has a record `secure` with the fields of one of the types below. The request for
masked numbers also has the records of the ordinary request that it stands for.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpage.engine.aggregation import Aggregation
from fedpage.engine.fixed_point import FixedPointMean
from fedpage.flower import messages
from fedpage.flower.messages import ProtocolError
from fedpage.flower.secure_aggregation.primitives import (
    KEY_BYTES,
    SEALED_BYTES,
    SEED_BYTES,
    Words,
)

KEYS = "query.secure_keys"
"""Message type: send public keys. `Session`; the reply is `KeyReply`."""
SHARES = "query.secure_shares"
"""Message type: send shares of the mask seeds to each client, encrypted. The reply is `Shares`."""
TRAIN = "train.secure"
"""Message type: a `messages.TRAIN` request whose reply is masked."""
EVALUATE = "evaluate.secure"
"""Message type: a `messages.EVALUATE` request whose reply is masked."""
UNMASK = "query.secure_unmask"
"""Message type: send shares of the seeds that the sum's masks follow from. Reply: `Unmasking`."""

EVALUATION = "evaluation"
"""The name of the message of sums of evaluations, beside those of the method's messages."""
MASKED = "masked"
"""The array of a masked reply: numbers modulo 2^64."""
SECURE = "secure"
"""The record of a request that belongs to this protocol."""
_WORD = np.dtype(np.uint64)
NONCE_BYTES = 16


class Session(NamedTuple):
    """Which sum a request belongs to."""

    client: int
    run: str
    round: int
    message: str
    """Name of the method's message type, or `EVALUATION`."""
    nonce: bytes
    """Random bytes of this attempt to compute the sum."""

    @property
    def context(self) -> bytes:
        """What all keys of the attempt are derived for; equal at all clients."""
        return digest(json.dumps([self.run, self.round, self.message]).encode(), self.nonce)


class Roster(NamedTuple):
    """The clients of an attempt with their public keys, in client order."""

    clients: tuple[int, ...]
    channel_keys: tuple[bytes, ...]
    mask_keys: tuple[bytes, ...]

    @property
    def digest(self) -> bytes:
        """What identifies the roster."""
        return digest(json.dumps(self.clients).encode(), *self.channel_keys, *self.mask_keys)


NO_ROSTER = Roster((), (), ())


class RosterFields(NamedTuple):
    """A roster as a request has it, and the shares that the receiver was sent."""

    clients: str
    channel_keys: bytes
    mask_keys: bytes
    present: str
    """The clients whose shares are in `sealed`; "" where none are known yet."""
    sealed: bytes
    survivors: str
    """The clients whose numbers are added up; "" before unmasking."""


class KeyReply(NamedTuple):
    """Header of the reply to `KEYS`."""

    client: int
    channel_key: bytes
    mask_key: bytes
    revealed: str
    """The clients whose sum this node has unmasked for this round already; "" if none."""


class Shares(NamedTuple):
    """Header of the reply to `SHARES`: encrypted shares for each client of the roster."""

    client: int
    sealed: bytes
    commitment: bytes
    """Digest by which the client's self-mask seed is recognised."""


class Unmasking(NamedTuple):
    """Header of the reply to `UNMASK`: one share for each client that sent shares.

    Of survivors it is a share of the self-mask's seed, of the others one of the mask key's seed.
    """

    client: int
    shares: bytes


def find_settings(aggregation: str) -> FixedPointMean | None:
    """Return the settings of secure aggregation; None if the run has another aggregation.

    Args:
        aggregation: The text of the run's configuration.

    Raises:
        InputError: They cannot be used.
    """
    if aggregation.partition(":")[0].strip() != FixedPointMean.name:
        return None
    found = Aggregation.from_text(aggregation)
    assert isinstance(found, FixedPointMean)
    return found


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts of any length."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.digest()


def threshold(count: int, least: int) -> int:
    """Return how many clients must help to unmask a sum of a roster.

    More than two thirds: two different sets of survivors would need more clients that answer for
    both than there are, unless a third of them helps the server.
    """
    return max(2 * count // 3 + 1, least)


def content_digest(content: RecordDict) -> bytes:
    """Return the digest of the arrays of a request, which are equal for all clients."""
    arrays = content[messages.ARRAYS]
    assert isinstance(arrays, ArrayRecord)
    parts = [part for name in sorted(arrays) for part in (name.encode(), arrays[name].data)]
    return digest(*parts)


def encode_request(
    session: Session,
    roster: Roster | None = None,
    present: tuple[int, ...] = (),
    sealed: bytes = b"",
    survivors: tuple[int, ...] = (),
    content: RecordDict | None = None,
) -> RecordDict:
    """Return the content of a request.

    Args:
        session: Which sum it belongs to.
        roster: The clients and their public keys; None: they are not known yet.
        present: The clients that have sent shares.
        sealed: The shares for this client, in the order of `present`.
        survivors: The clients that have sent masked numbers.
        content: The ordinary request whose reply is to be masked.
    """
    fields = session._asdict()
    if roster is not None:
        fields |= RosterFields(
            join_numbers(roster.clients),
            b"".join(roster.channel_keys),
            b"".join(roster.mask_keys),
            join_numbers(present),
            sealed,
            join_numbers(survivors),
        )._asdict()
    records = {} if content is None else dict(content)
    return RecordDict({**records, SECURE: ConfigRecord(fields)})


def decode_request(
    content: RecordDict, *, has_roster: bool
) -> tuple[Session, Roster, RosterFields, RecordDict]:
    """Decode a request without trusting the sender.

    Returns:
        The session, the roster (empty without one), its fields, and the other records.

    Raises:
        ProtocolError: It is not a request of this protocol.
    """
    records = dict(content)
    record = records.pop(SECURE, None)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError("the message has no record of secure aggregation")
    fields = dict(record)
    first = {name: fields.pop(name) for name in Session._fields if name in fields}
    session = messages.decode_header(_header(first), Session)
    if len(session.nonce) != NONCE_BYTES or session.round < 0 or not session.message.isidentifier():
        raise ProtocolError("the round, the message or the nonce of a sum is not one")
    if not has_roster:
        if fields:
            raise ProtocolError("the request has unknown fields")
        return session, NO_ROSTER, RosterFields("", b"", b"", "", b"", ""), RecordDict()
    rest = messages.decode_header(_header(fields), RosterFields)
    clients = split_numbers(rest.clients)
    roster = Roster(
        clients,
        split_bytes(rest.channel_keys, KEY_BYTES, len(clients)),
        split_bytes(rest.mask_keys, KEY_BYTES, len(clients)),
    )
    both = roster.channel_keys + roster.mask_keys
    if len(set(both)) != len(both):
        raise ProtocolError("two public keys are equal")
    return session, roster, rest, RecordDict(records)


def _header(fields: dict[str, object]) -> RecordDict:
    return RecordDict({messages.HEADER: ConfigRecord(fields)})


def join_numbers(numbers: tuple[int, ...]) -> str:
    """Return client numbers as text."""
    return ",".join(map(str, numbers))


def split_numbers(text: str) -> tuple[int, ...]:
    """Return client numbers from text, which must be ascending.

    Raises:
        ProtocolError: They are not.
    """
    try:
        numbers = tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise ProtocolError("a list of clients cannot be read") from None
    if list(numbers) != sorted(set(numbers)) or (numbers and numbers[0] < 0):
        raise ProtocolError("a list of clients is not in order")
    return numbers


def split_bytes(data: bytes, size: int, count: int) -> tuple[bytes, ...]:
    """Cut bytes into `count` parts of `size` bytes.

    Raises:
        ProtocolError: They have another length.
    """
    if len(data) != size * count:
        raise ProtocolError(f"{len(data)} bytes of keys or shares, but {size * count} are expected")
    return tuple(data[i : i + size] for i in range(0, len(data), size))


def split_sealed(data: bytes, count: int) -> tuple[bytes, ...]:
    """Cut encrypted shares for or of `count` clients."""
    return split_bytes(data, SEALED_BYTES, count)


def split_shares(data: bytes, count: int) -> tuple[bytes, ...]:
    """Cut shares of `count` clients."""
    return split_bytes(data, SEED_BYTES, count)


def encode_masked(header: ConfigRecord, masked: Words) -> RecordDict:
    """Return the content of a masked reply, with the header of the ordinary one."""
    arrays = ArrayRecord({MASKED: Array(masked)})
    return RecordDict({messages.ARRAYS: arrays, messages.HEADER: header})


def decode_masked(content: RecordDict, size: int) -> Words:
    """Decode masked numbers.

    Raises:
        ProtocolError: They are not `size` numbers modulo 2^64.
    """
    return messages.decode_arrays(content, {MASKED: (size, _WORD)})[MASKED]
