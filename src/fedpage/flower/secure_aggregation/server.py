"""The server's side of secure aggregation: pass keys and shares on, add up, remove the masks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from flwr.app import RecordDict

from fedpage.engine.transport import Rejection
from fedpage.flower import messages
from fedpage.flower.exchange import check_sender, content_of
from fedpage.flower.grid_transport import GridTransport
from fedpage.flower.messages import ProtocolError
from fedpage.flower.node_errors import NodeRefused
from fedpage.flower.secure_aggregation import protocol
from fedpage.flower.secure_aggregation.primitives import (
    SEED_BYTES,
    Words,
    combine,
    commit,
    pairwise_mask,
    private_key,
    public_bytes,
    self_mask,
)
from fedpage.flower.secure_aggregation.protocol import NO_ROSTER, Roster, Session

T = TypeVar("T")


AnyTransport: TypeAlias = GridTransport[Any, Any, Any, Any]


class WrongShares(ProtocolError):
    """Shares that do not give a client's seed.

    Args:
        client: The client whose seed it is.
    """

    def __init__(self, client: int) -> None:
        super().__init__("the shares of its seed do not fit")
        self.client = client


class Sum(NamedTuple):
    """What came of a request for a sum."""

    total: Words | None
    """The sum modulo 2^64; None if it could not be computed."""
    clients: tuple[int, ...]
    """The clients whose numbers are in it, ascending."""
    headers: dict[int, RecordDict]
    """The header of each masked reply that arrived for this request."""
    responsive: frozenset[int]
    """The clients that answered every request that they were sent."""
    rejected: list[Rejection]
    seconds: dict[int, float]
    """When each client's masked numbers arrived, since the first exchange."""


@dataclass
class _Attempt:
    """An attempt to compute a sum, with all that the server has received."""

    sessions: dict[int, Session]
    size: int
    purpose: bytes
    """What the masks are for."""
    roster: Roster = NO_ROSTER
    threshold: int = 0
    sealed: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """The encrypted shares of each client, one for each client of the roster."""
    commitments: dict[int, bytes] = field(default_factory=dict)
    masked: dict[int, Words] = field(default_factory=dict)
    shares: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """The shares that each client has revealed, one for each client that sent shares."""

    @property
    def present(self) -> tuple[int, ...]:
        return tuple(sorted(self.sealed))

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(sorted(self.masked))

    def request(self, client: int, content: RecordDict | None = None) -> RecordDict:
        """Return the request for masked numbers, or without content for unmasking."""
        place = self.roster.clients.index(client)
        return protocol.encode_request(
            self.sessions[client],
            self.roster,
            self.present,
            b"".join(self.sealed[sender][place] for sender in self.present),
            () if content is not None else self.survivors,
            content,
        )


class SecureSum:
    """Compute sums of clients' replies without learning the replies.

    Args:
        transport: How nodes are reached.
        least: The fewest clients whose numbers may be added up.
        retries: Further attempts to reach missing clients in each of the four exchanges.
    """

    def __init__(self, transport: AnyTransport, *, least: int, retries: int) -> None:
        self.least, self.retries = least, retries
        self._transport = transport
        self._keys: dict[int, bytes] = {}
        """The channel key of each client in this run."""
        self._unfinished: dict[tuple[int, str, bytes], _Attempt] = {}
        """Attempts whose unmasking was begun: no other sum of the round may be unmasked."""

    def request(
        self,
        message_type: str,
        contents: Mapping[int, RecordDict],
        size: int,
        check: Callable[[int, RecordDict], object],
        *,
        run: str,
        round: int,
        message: str,
        require_all: bool,
    ) -> Sum:
        """Compute the sum of what clients reply to their requests.

        Args:
            message_type: `protocol.TRAIN` or `protocol.EVALUATE`.
            contents: The ordinary request to each client; their arrays are equal.
            size: How many numbers a reply has.
            check: Raises a ProtocolError if the header of a client's reply is wrong.
            run: Digest that identifies the run.
            round: The round.
            message: The name of the message.
            require_all: Whether a sum over some of the clients must not be computed.

        Returns:
            The sum, or which clients stood in its way.
        """
        asked = _Asked(self._transport, round)
        content = protocol.content_digest(next(iter(contents.values())))
        attempt = self._unfinished.get((round, message, content))
        if attempt is None or not set(attempt.roster.clients) <= set(contents):
            nonce = secrets.token_bytes(protocol.NONCE_BYTES)
            sessions = {
                client: Session(client, run, round, message, nonce) for client in sorted(contents)
            }
            purpose = protocol.digest(next(iter(sessions.values())).context, content)
            attempt = _Attempt(sessions, size, purpose)
            if not self._collect(asked, attempt, message_type, contents, check, require_all):
                return asked.fail()
            self._unfinished = {(round, message, content): attempt}
        if not self._unmask(asked, attempt):
            return asked.fail()
        self._unfinished = {}
        try:
            total = remove_masks(attempt)
        except WrongShares as error:
            asked.rejected.append(Rejection(error.client, str(error)))
            asked.responsive.discard(error.client)
            return asked.fail()
        responsive = frozenset(asked.responsive | set(attempt.survivors))
        return Sum(
            total, attempt.survivors, asked.headers, responsive, asked.rejected, asked.seconds
        )

    def _collect(
        self,
        asked: _Asked,
        attempt: _Attempt,
        message_type: str,
        contents: Mapping[int, RecordDict],
        check: Callable[[int, RecordDict], object],
        require_all: bool,
    ) -> bool:
        """Collect keys, shares and masked numbers; return whether there are enough."""
        sessions = attempt.sessions

        def is_enough(clients: Mapping[int, object]) -> bool:
            if require_all and len(clients) < len(sessions):
                return False
            return len(clients) >= max(self.least, attempt.threshold)

        requests = {c: protocol.encode_request(session) for c, session in sessions.items()}
        # A round that needs all clients is asked anew by its own policy.
        retries = 0 if require_all else self.retries
        keys = _select_revealed(asked.ask(protocol.KEYS, requests, self._decode_keys, retries))
        if not is_enough(keys):
            return False
        attempt.roster = roster = Roster(
            tuple(keys),
            tuple(key.channel_key for key in keys.values()),
            tuple(key.mask_key for key in keys.values()),
        )
        attempt.threshold = protocol.threshold(len(keys), self.least)
        requests = {c: protocol.encode_request(sessions[c], roster) for c in keys}

        def decode_shares(client: int, content: RecordDict) -> protocol.Shares:
            shares = messages.decode_header(content, protocol.Shares)
            check_sender(client, shares.client)
            protocol.split_sealed(shares.sealed, len(roster.clients))
            return shares

        shares = asked.ask(protocol.SHARES, requests, decode_shares, self.retries)
        if not is_enough(shares):
            return False
        for client, sent in shares.items():
            attempt.sealed[client] = protocol.split_sealed(sent.sealed, len(roster.clients))
            attempt.commitments[client] = sent.commitment
        requests = {c: attempt.request(c, contents[c]) for c in shares}

        def decode_masked(client: int, content: RecordDict) -> Words:
            check(client, content)
            masked = protocol.decode_masked(content, attempt.size)
            asked.headers[client] = RecordDict({messages.HEADER: content[messages.HEADER]})
            return masked

        attempt.masked = asked.ask(message_type, requests, decode_masked, self.retries)
        return is_enough(attempt.masked)

    def _unmask(self, asked: _Asked, attempt: _Attempt) -> bool:
        """Collect the shares of seeds from enough survivors."""
        waiting = [client for client in attempt.survivors if client not in attempt.shares]

        def decode_unmasking(client: int, content: RecordDict) -> tuple[bytes, ...]:
            reply = messages.decode_header(content, protocol.Unmasking)
            check_sender(client, reply.client)
            return protocol.split_shares(reply.shares, len(attempt.present))

        requests = {client: attempt.request(client) for client in waiting}
        attempt.shares |= asked.ask(protocol.UNMASK, requests, decode_unmasking, self.retries)
        return len(attempt.shares) >= attempt.threshold

    def _decode_keys(self, client: int, content: RecordDict) -> protocol.KeyReply:
        keys = messages.decode_header(content, protocol.KeyReply)
        check_sender(client, keys.client)
        protocol.split_numbers(keys.revealed)
        if self._keys.setdefault(client, keys.channel_key) != keys.channel_key:
            raise ProtocolError("its key has changed during the run, so its peers would refuse it")
        return keys


class _Asked:
    """The exchanges of one sum, and which clients answered them."""

    def __init__(self, transport: AnyTransport, round: int) -> None:
        self._transport, self._round = transport, round
        self._began = transport.wait.clock()
        self.responsive: set[int] = set()
        self.headers: dict[int, RecordDict] = {}
        self.rejected: list[Rejection] = []
        self.seconds: dict[int, float] = {}
        """When each client's masked numbers arrived, since the first exchange."""

    def ask(
        self,
        message_type: str,
        requests: Mapping[int, RecordDict],
        decode: Callable[[int, RecordDict], T],
        retries: int,
    ) -> dict[int, T]:
        """Send requests, and again to clients without a valid reply; return what is decoded."""
        transport, now = self._transport, self._round
        found: dict[int, T] = {}
        waiting = dict(requests)
        for attempt in range(retries + 1):
            if not waiting:
                break
            nodes = {client: transport.nodes[client].node_id for client in waiting}
            transport.backoff.pause((now, message_type), nodes)
            if attempt:
                transport.find_new_nodes(now)
            asked = list(waiting)
            arrivals: dict[int, float] = {}
            replies = transport.exchange(message_type, waiting, now, arrivals)
            for client, reply in sorted(replies.items()):
                try:
                    found[client] = decode(client, content_of(reply))
                    del waiting[client]
                except ProtocolError as error:
                    self.rejected.append(Rejection(client, str(error)))
                    if isinstance(error, NodeRefused):
                        del waiting[client]  # it would refuse again
            transport.backoff.note(asked, replies, found)
            if message_type == protocol.TRAIN:
                self.seconds |= {client: at - self._began for client, at in arrivals.items()}
        self.responsive = (self.responsive - set(requests)) | set(found)
        return dict(sorted(found.items()))

    def fail(self) -> Sum:
        """Return that there is no sum."""
        responsive = frozenset(self.responsive)
        return Sum(None, (), self.headers, responsive, self.rejected, self.seconds)


def _select_revealed(keys: dict[int, protocol.KeyReply]) -> dict[int, protocol.KeyReply]:
    """Return the clients that may take part: those of a sum that was unmasked before, if any.

    A server that was restarted during an unmasking computes the sum over the same clients again.
    """
    earlier = {key.revealed for key in keys.values() if key.revealed}
    if not earlier:
        return keys
    wanted = set(protocol.split_numbers(max(earlier)))
    if len(earlier) > 1 or not wanted <= set(keys):
        return {}
    return {client: key for client, key in keys.items() if client in wanted}


def remove_masks(attempt: _Attempt) -> Words:
    """Return the sum of the survivors' numbers modulo 2^64.

    Args:
        attempt: What the server has received.

    Raises:
        WrongShares: The shares of a client do not give its seed.
    """
    roster, size = attempt.roster, attempt.size
    place = {client: i for i, client in enumerate(roster.clients)}
    total = np.zeros(size, dtype=np.uint64)
    for masked in attempt.masked.values():
        total += masked
    context = next(iter(attempt.sessions.values())).context
    for client in attempt.present:
        seed = find_seed(attempt, client)
        if client in attempt.masked:
            if commit(seed, context) != attempt.commitments[client]:
                raise WrongShares(client)
            total -= self_mask(seed, attempt.purpose, size)
            continue
        key = private_key(seed, "mask key", b"")
        if public_bytes(key) != roster.mask_keys[place[client]]:
            raise WrongShares(client)
        for survivor in attempt.survivors:
            total += pairwise_mask(
                key, roster.mask_keys[place[survivor]], attempt.purpose,
                adds=client < survivor, size=size,
            )  # fmt: skip
    return total


def find_seed(attempt: _Attempt, client: int) -> bytes:
    """Return a client's seed from the revealed shares: of a survivor its self-mask's."""
    index = attempt.present.index(client)
    places = {other: i for i, other in enumerate(attempt.roster.clients)}
    shares = [(places[sender], sent[index]) for sender, sent in sorted(attempt.shares.items())]
    seed = combine(shares[: attempt.threshold])
    assert len(seed) == SEED_BYTES
    return seed
