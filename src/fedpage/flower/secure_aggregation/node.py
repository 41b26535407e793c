"""The node's side of secure aggregation: its keys, its shares, its masked reply, its unmasking.

All keys follow from the node's secret and from the request, so a node that was restarted between
two requests gives the same answers. The only decisions that it must remember are written down
before they leave: the keys of its peers, and which sum of a round it has helped to unmask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedpage.core.types import Vector
from fedpage.engine.fixed_point import (
    BeyondBound,
    FixedPointMean,
    Whole,
    encode,
    scale_exponent,
    stack_values,
)
from fedpage.flower import messages
from fedpage.flower.config import AppConfig, NodeConfig
from fedpage.flower.messages import ProtocolError
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.secure_aggregation import protocol
from fedpage.flower.secure_aggregation.node_state import NodeState
from fedpage.flower.secure_aggregation.primitives import (
    SEED_BYTES,
    agree,
    commit,
    derive,
    pairwise_mask,
    private_key,
    public_bytes,
    seal,
    self_mask,
    split,
    unseal,
)
from fedpage.flower.secure_aggregation.protocol import Roster, RosterFields, Session

Handler = Callable[[RecordDict, AppConfig, NodeConfig], RecordDict]


@dataclass(frozen=True)
class _Secrets:
    """A node's secrets in one attempt."""

    channel: X25519PrivateKey
    """Encrypts shares; the same in all rounds of a run."""
    mask_seed: bytes
    """The mask key follows from it; revealed to the server if this client drops out."""
    self_seed: bytes
    """The self-mask follows from it; revealed to the server if this client's reply counts."""

    @property
    def mask(self) -> X25519PrivateKey:
        return private_key(self.mask_seed, "mask key", b"")


@dataclass(frozen=True)
class _Request:
    """A request with what this node knows of it."""

    session: Session
    roster: Roster
    fields: RosterFields
    content: RecordDict
    settings: FixedPointMean
    N: int
    required: int
    """The fewest clients of a sum that the node's owner allows."""
    state: NodeState
    secrets: _Secrets

    @property
    def threshold(self) -> int:
        return protocol.threshold(len(self.roster.clients), self.settings.least)

    def share_context(self, sender: int, receiver: int) -> bytes:
        """Return what the encrypted shares of a sender for a receiver are bound to."""
        pair = f"{sender} to {receiver}".encode()
        return protocol.digest(self.session.context, self.roster.digest, pair)

    def channel_key(self, client: int) -> bytes:
        return self.roster.channel_keys[self.roster.clients.index(client)]


def send_keys(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Send this node's public keys of an attempt."""
    request = _open(message, config, node_config, has_roster=False)
    session, own = request.session, request.secrets
    request.state.remove_older(node_config.state_days)
    revealed = request.state.revealed(session.round, session.message)
    keys = protocol.KeyReply(
        session.client,
        public_bytes(own.channel),
        public_bytes(own.mask),
        protocol.join_numbers(revealed),
    )
    return Message(messages.encode_header(keys), reply_to=message)


def send_shares(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Send shares of this node's seeds to every client of the roster, encrypted."""
    request = _open(message, config, node_config, has_roster=True)
    session, roster, own = request.session, request.roster, request.secrets
    count = len(roster.clients)
    self_shares = split(own.self_seed, request.threshold, count)
    mask_shares = split(own.mask_seed, request.threshold, count)
    sealed = [
        seal(
            agree(own.channel, roster.channel_keys[place]),
            self_shares[place] + mask_shares[place],
            request.share_context(session.client, client),
        )
        for place, client in enumerate(roster.clients)
    ]
    shares = protocol.Shares(
        session.client, b"".join(sealed), commit(own.self_seed, session.context)
    )
    return Message(messages.encode_header(shares), reply_to=message)


def mask_reply(
    handler: Handler, message: Message, config: AppConfig, node_config: NodeConfig
) -> Message:
    """Answer an ordinary request, and mask the numbers of the reply.

    Args:
        handler: Answers the ordinary request.
        message: The request, with the roster and the shares for this node.
        config: The run's configuration.
        node_config: The node's configuration.

    Returns:
        The reply's header, and its numbers in fixed point with all masks added.

    Raises:
        NodeError: A number of the reply is not finite or beyond the bound.
    """
    request = _open(message, config, node_config, has_roster=True)
    session, roster, own = request.session, request.roster, request.secrets
    present = _present(request)
    _open_shares(request, present)
    purpose = protocol.digest(session.context, protocol.content_digest(request.content))
    if (session.message == protocol.EVALUATION) != (
        message.metadata.message_type == protocol.EVALUATE
    ):
        raise ProtocolError("the name of the message is not that of its type")
    reply = handler(request.content, config, node_config)
    numbers = _encode_reply(reply, request)
    masked = numbers.view(np.uint64) + self_mask(own.self_seed, purpose, len(numbers))
    key = own.mask
    for client, peer in zip(roster.clients, roster.mask_keys, strict=True):
        if client != session.client and client in present:
            masked += pairwise_mask(
                key, peer, purpose, adds=session.client < client, size=len(numbers)
            )
    header = reply[messages.HEADER]
    assert isinstance(header, ConfigRecord)
    return Message(protocol.encode_masked(header, masked), reply_to=message)


def unmask(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Send the shares from which the masks of a sum follow, for one set of survivors only."""
    request = _open(message, config, node_config, has_roster=True)
    session = request.session
    present = _present(request)
    survivors = protocol.split_numbers(request.fields.survivors)
    if not set(survivors) <= set(present) or session.client not in survivors:
        raise ProtocolError("the survivors of a sum are not among its clients")
    if len(survivors) < request.threshold:
        raise ProtocolError(
            f"{len(survivors)} survivors of a sum, but {request.threshold} are required"
        )
    opened = _open_shares(request, present)
    # Written before anything leaves: this node never helps with two sums of the same round.
    request.state.reveal(session.round, session.message, survivors)
    shares = [
        opened[client][:SEED_BYTES] if client in survivors else opened[client][SEED_BYTES:]
        for client in present
    ]
    reply = protocol.Unmasking(session.client, b"".join(shares))
    return Message(messages.encode_header(reply), reply_to=message)


def _encode_reply(content: RecordDict, request: _Request) -> Whole:
    """Return all numbers of an ordinary reply in fixed point, in the order of its arrays.

    Of an evaluation these are the loss and the metrics. A gradient at the same model may be part of
    a sum over other clients, from which the difference would reveal one client's.

    Raises:
        NodeError: A number is not finite or beyond the bound.
    """
    record = content[messages.ARRAYS]
    assert isinstance(record, ArrayRecord)
    arrays: dict[str, Vector] = {name: array.numpy() for name, array in record.items()}
    if request.session.message == protocol.EVALUATION:
        asked = messages.decode_header(request.content, messages.EvaluateRequest)
        factor = np.array([asked.scale])
        arrays = {"values": stack_values(arrays["loss"], arrays["metrics"][None, :], factor)[0]}
    bound = request.settings.bound
    exponent = scale_exponent(bound, request.N)
    try:
        return np.concatenate([encode(part, bound, exponent) for part in arrays.values()])
    except BeyondBound as error:
        raise NodeError(Code.BOUND, f"in the reply, {error}") from None


def _open(
    message: Message, config: AppConfig, node_config: NodeConfig, *, has_roster: bool
) -> _Request:
    """Decode a request, and refuse what would weaken the protection of this node."""
    settings = protocol.find_settings(config.aggregation)
    if settings is None:
        raise ProtocolError("the run has no secure aggregation")
    session, roster, fields, content = protocol.decode_request(
        message.content, has_roster=has_roster
    )
    if session.client != node_config.partition_id:
        raise ProtocolError(
            f"the message is for client {session.client}, but this node holds client "
            f"{node_config.partition_id}"
        )
    state = NodeState(node_config.state_dir, session.run, session.client)
    secret = state.secret()
    own = _Secrets(
        private_key(secret, "channel key", b""),
        derive(secret, "mask seed", session.context, SEED_BYTES),
        derive(secret, "self seed", session.context, SEED_BYTES),
    )
    request = _Request(
        session, roster, fields, content, settings, config.clients, node_config.require_secure,
        state, own,
    )  # fmt: skip
    if has_roster:
        _check_roster(request)
    return request


def _check_roster(request: _Request) -> None:
    """Refuse a roster that is too small, without this node, or with keys that have changed."""
    session, roster, own = request.session, request.roster, request.secrets
    if request.settings.least < request.required:
        raise NodeError(
            Code.NOT_ALLOWED,
            f"the run adds up {request.settings.least} clients or more, but this node requires "
            f"{request.required} (require-secure)",
        )
    if len(roster.clients) < request.settings.least:
        raise ProtocolError(
            f"a sum over {len(roster.clients)} clients, but {request.settings.least} are required"
        )
    if session.client not in roster.clients or roster.clients[-1] >= request.N:
        raise ProtocolError("the roster of a sum is not one of this node")
    place = roster.clients.index(session.client)
    keys = roster.channel_keys[place], roster.mask_keys[place]
    if keys != (public_bytes(own.channel), public_bytes(own.mask)):
        raise ProtocolError("the roster has other keys for this node than it sent")
    revealed = request.state.revealed(session.round, session.message)
    if revealed and not set(revealed) <= set(roster.clients):
        raise ProtocolError("a sum over other clients was unmasked in this round already")
    for client, key in zip(roster.clients, roster.channel_keys, strict=True):
        request.state.pin(client, key)


def _present(request: _Request) -> tuple[int, ...]:
    """Return the clients that have sent shares."""
    present = protocol.split_numbers(request.fields.present)
    if not set(present) <= set(request.roster.clients) or request.session.client not in present:
        raise ProtocolError("the clients that sent shares are not those of the roster")
    if len(present) < request.threshold:
        raise ProtocolError(
            f"{len(present)} clients sent shares, but {request.threshold} are required"
        )
    return present


def _open_shares(request: _Request, present: tuple[int, ...]) -> dict[int, bytes]:
    """Decrypt the shares that the clients sent to this node, which also proves their keys."""
    session, own = request.session, request.secrets
    sealed = protocol.split_sealed(request.fields.sealed, len(present))
    return {
        client: unseal(
            agree(own.channel, request.channel_key(client)),
            box,
            request.share_context(client, session.client),
        )
        for client, box in zip(present, sealed, strict=True)
    }
