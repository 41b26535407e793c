"""The ClientApp of a node: it describes its client, runs `Method.client`, and evaluates models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NoReturn

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpage._version import __version__
from fedpage.codecs.message_codec import MessageCodec, Ranks
from fedpage.core.capabilities import NodeProblem, dtype_of
from fedpage.core.errors import InputError
from fedpage.core.messages import layout_of
from fedpage.core.types import AnyMethod, DType
from fedpage.flower import audit, messages
from fedpage.flower.agreement import write_names
from fedpage.flower.allowed import check_allowed
from fedpage.flower.client_state import ClientStateStore, remove_state
from fedpage.flower.config import (
    AppConfig,
    NodeConfig,
    build_method,
    parse_app_config,
    parse_node_config,
)
from fedpage.flower.disclosure import (
    CLEAR,
    check_description,
    check_weights,
    guard_hessian,
    has_sums,
    sends_hessian,
)
from fedpage.flower.node_data import (
    NodeData,
    check_client,
    load_node_data,
    load_statistics,
    problem_digest,
)
from fedpage.flower.node_draws import NodeDraws
from fedpage.flower.node_errors import Code, NodeError, refuse
from fedpage.flower.node_evaluation import check_evaluation, evaluate_client
from fedpage.flower.secure_aggregation import node as secure_node
from fedpage.flower.secure_aggregation import protocol
from fedpage.flower.secure_aggregation.node_state import NodeState
from fedpage.methods.schedules import at_round
from fedpage.runs.fingerprint import method_digest

Handler = Callable[[Message, AppConfig, NodeConfig], Message]
_MAX_PARAMETERS = 1 << 28
"""Largest d that a server may ask for."""
_MAX_SCALE = 1e9
_LONGEST_NAME = 200
"""Longest text that the audit log takes over from a message."""
_ONLY_CLIENT = np.zeros(1, dtype=np.int64)
"""The number of the only client of a node's problem."""


class FedpageClientApp(ClientApp):
    """A ClientApp that answers fedpage's types of messages and accepts no mods.

    Every reply is entered in the node's audit log before it is sent.

    Flower's secure aggregation mod would pass these messages on unencrypted without a warning, and
    its differential-privacy mods clip a model, which FedPAGE's messages are not. So this class
    takes no mods, registers no functions, and looks up its handlers itself.
    """

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message.

        Flower sends the text of an exception to the server, so none may leave this function.

        Args:
            message: the received message.
            context: the node's and the run's configuration.

        Returns:
            The reply; a `messages.Refusal` if the message cannot be answered.
        """
        try:
            return _answer_audited(message, context)
        except Exception as error:
            refusal = refuse(error, _client_of(context))
            return Message(messages.encode_header(refusal), reply_to=message)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            "fedpage's ClientApp takes no functions and no mods: secure aggregation would send its "
            "messages unencrypted, and clipping would be wrong for them"
        )

    train = evaluate = query = lifespan = _refuse


def _answer_audited(message: Message, context: Context) -> Message:
    """Answer or refuse a message once the audit log has an entry about the reply."""
    with _bad_config():
        node_config = parse_node_config(context.node_config)
    refusal = None
    try:
        reply = _answer(message, context, node_config)
    except Exception as error:
        refusal = refuse(error, node_config.partition_id)
        reply = Message(messages.encode_header(refusal), reply_to=message)
    if node_config.audit_path is not None:
        try:
            audit.append(node_config.audit_path, _audit_entry(message, context, reply, refusal))
        except OSError as error:
            raise NodeError(Code.AUDIT, f"the audit log cannot be written ({error})") from None
    return reply


def _client_of(context: Context) -> int:
    """Return the number of this node's client, -1 where the configuration does not say it."""
    number = dict(context.node_config).get("partition-id")
    return number if type(number) is int and 0 <= number < 2**31 else -1


def _answer(message: Message, context: Context, node_config: NodeConfig) -> Message:
    """Answer a message, or raise what is wrong with it."""
    handler = _HANDLERS.get(message.metadata.message_type)
    if handler is None:
        raise messages.ProtocolError(
            f"unknown message type {str(message.metadata.message_type)[:40]!r}"
        )
    with _bad_config():
        config = parse_app_config(context.run_config)
    check_allowed(config, node_config.allowed, fits_only=node_config.fits_only)
    return handler(message, config, node_config)


@contextmanager
def _bad_config() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise NodeError(Code.BAD_CONFIG, str(error)) from None


def _audit_entry(
    message: Message, context: Context, reply: Message, refusal: messages.Refusal | None
) -> audit.AuditEntry:
    """Return what the audit log says of a reply."""
    header: Mapping[str, object] = {}
    if message.has_content():
        records = dict(message.content)
        record = records.get(messages.HEADER, records.get(protocol.SECURE))
        header = dict(record) if isinstance(record, ConfigRecord) else {}
    now = header.get("round")
    size, digest = messages.digest_content(reply.content)
    return audit.AuditEntry(
        time=audit.now(),
        flower_run=str(context.run_id),
        node=str(context.node_id),
        run=str(header.get("run", ""))[:_LONGEST_NAME],
        app=audit.code_digest(),
        fab=audit.installed_app(),
        method=str(context.run_config.get("method", ""))[:_LONGEST_NAME],
        message=str(message.metadata.message_type)[:_LONGEST_NAME],
        round=now if isinstance(now, int) else -1,
        bytes=size,
        digest=digest,
        code="" if refusal is None else refusal.code,
        reference="" if refusal is None else refusal.reference,
    )


def _describe(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Describe the client of this node: its number, its rows and its code."""
    check_evaluation(config, node_config)
    node = load_node_data(node_config, config)
    check_description(node_config, config, node)
    description = messages.Description(
        client=node.client,
        rows=int(node.problem.sizes[0]),
        features=node.features,
        d=node.problem.d,
        digest=node.digest,
        columns="" if config.columns else write_names(node.columns),
        fedpage=__version__,
        code=method_digest(build_method(config)),
        problem=problem_digest(node.problem),
    )
    return Message(messages.encode_header(description), reply_to=message)


def _send_statistics(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Send statistics of columns, if the node's owner shares them, and common categories."""
    request = messages.decode_header(message.content, messages.StatisticsRequest)
    client = check_client(node_config, config)
    _check_recipient(request.client, client)
    found = load_statistics(node_config, config, request.agreement)
    levels = json.dumps(found.levels, separators=(",", ":"))
    header = messages.StatisticsReply(client, found.rows, levels, *found.constants)
    return Message(messages.encode_message(found.statistics, header), reply_to=message)


def _answer_train(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Run `Method.client` on this node's rows, and evaluate a model if the message asks for it."""
    training, evaluation = messages.split(message.content)
    with _guard_hessian(training, config, node_config, CLEAR):
        content = _train(training, config, node_config)
    if evaluation is not None:
        try:
            answer = _evaluate(evaluation, config, node_config)
        except Exception as error:  # the reply to the training counts all the same
            answer = messages.encode_header(refuse(error, node_config.partition_id))
        content = messages.join(content, answer)
    return Message(content, reply_to=message)


def _mask_train(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Run `Method.client` on this node's rows, and mask the reply."""
    session, roster, _, content = protocol.decode_request(message.content, has_roster=True)
    total = f"{session.run} {protocol.join_numbers(roster.clients)}"
    revealed = NodeState(node_config.state_dir, session.run, session.client).revealed(
        session.round, session.message
    )
    if revealed not in ((), roster.clients) and sends_hessian(build_method(config)):
        raise messages.ProtocolError("a sum of Hessians was unmasked in part before it began")
    with _guard_hessian(content, config, node_config, total):
        return secure_node.mask_reply(_train, message, config, node_config)


def _unmask(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Help to unmask a sum; one of Hessians must be over all clients that it began with."""
    session, roster, fields, _ = protocol.decode_request(message.content, has_roster=True)
    is_whole = protocol.split_numbers(fields.survivors) == roster.clients
    is_hessian = sends_hessian(build_method(config)) or has_sums(node_config, session.run)
    if not is_whole and is_hessian:
        raise messages.ProtocolError("a sum of Hessians is over all clients that it began with")
    return secure_node.unmask(message, config, node_config)


@contextmanager
def _guard_hessian(
    content: RecordDict, config: AppConfig, node_config: NodeConfig, total: str
) -> Iterator[None]:
    """Check whether a Hessian may leave the node, and note that it does."""
    request = messages.decode_header(content, messages.TrainRequest)
    if not node_config.data or not sends_hessian(build_method(config), request.message):
        yield
        return
    node = _load_requested(request, config, node_config)
    words = repr(node.problem.describe())  # the same numbers with other rows are another model
    point = protocol.digest(protocol.content_digest(content), words.encode()).hex()
    with guard_hessian(node_config, node, point, total):
        yield


def _answer_evaluate(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    return Message(_evaluate(message.content, config, node_config), reply_to=message)


@lru_cache(maxsize=16)
def _message_codec(method: AnyMethod, d: int, dtype: DType) -> MessageCodec[Any, Any, Any, Any]:
    """Return the codec of a method's messages, made once for all rounds of a run."""
    return MessageCodec(method, d, dtype)


def _train(content: RecordDict, config: AppConfig, node_config: NodeConfig) -> RecordDict:
    """Run `Method.client` on this node's rows."""
    request = messages.decode_header(content, messages.TrainRequest)
    node = _load_requested(request, config, node_config)
    dtype = dtype_of(node.problem)
    method = build_method(config)
    types = {message_type.__name__: message_type for message_type in method.messages}
    if request.message not in types:
        raise messages.ProtocolError(f"{method.name} has no message {request.message[:40]!r}")
    message_type = types[request.message]
    codec = _message_codec(method, request.d, dtype)  # type: ignore[arg-type]  # frozen: hashable
    arrays = messages.decode_arrays(content, codec.message_shapes(message_type))
    fields = messages.decode(codec.decode_message, message_type, list(arrays.values()))
    if node_config.data and sends_hessian(method, request.message):
        check_weights(node_config, node, np.ravel(fields[0]))

    store, client_state = None, None
    if method.client_state is not None:
        store = ClientStateStore(
            node_config.state_dir, request.run, node.client, method.client_state, request.d, dtype
        )
        store.remove_older(node_config.state_days)
        client_state = store.load(request.state_version)
    draws = NodeDraws(request.seed, request.round, node.client)
    oracle = _rescale(node.problem, request.scale).oracle(_ONLY_CLIENT, draws)
    with np.errstate(over="ignore", invalid="ignore"):
        now = at_round(method, request.round)
        reply, client_state = now.client(fields, oracle, client_state)
        ranks = Ranks(np.array([request.rank], dtype=np.int64), request.called)
        sent = codec.encode_reply(fields, reply, _ONLY_CLIENT, draws, ranks)
        if store is not None:
            _, client_state = codec.finish(fields, reply, client_state, _ONLY_CLIENT, draws, ranks)
    if store is not None:
        version = messages.state_version(request.round, message_type)
        store.save(request.state_version, version, client_state)

    header = messages.TrainReply(
        node.client, request.round, int(oracle.gradients), int(oracle.evaluations)
    )
    return messages.encode_arrays(sent, header)


def _evaluate(content: RecordDict, config: AppConfig, node_config: NodeConfig) -> RecordDict:
    """Evaluate this client's loss, gradient and metrics at a model."""
    request = messages.decode_header(content, messages.EvaluateRequest)
    check_evaluation(config, node_config)
    if config.evaluation == "none":
        raise messages.ProtocolError('a run with evaluation = "none" evaluates no model')
    node = _load_requested(request, config, node_config)
    layout = layout_of(messages.ModelArrays, request.d, dtype_of(node.problem))
    model = messages.decode_fields(content, layout)
    header = messages.EvaluateReply(node.client, request.round)
    problem = _rescale(node.problem, request.scale)
    return messages.encode_message(evaluate_client(problem, model.x, config), header)


def _finish(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
    """Remove what this node keeps of a run that has ended."""
    request = messages.decode_header(message.content, messages.FinishRequest)
    remove_state(node_config.state_dir, request.run, node_config.partition_id)
    NodeState(node_config.state_dir, request.run, node_config.partition_id).forget_keys()
    reply = messages.FinishReply(node_config.partition_id)
    return Message(messages.encode_header(reply), reply_to=message)


def _load_requested(
    request: messages.TrainRequest | messages.EvaluateRequest,
    config: AppConfig,
    node_config: NodeConfig,
) -> NodeData:
    """Load this node's client if the request is for it and has plausible sizes."""
    if not 0 < request.d <= _MAX_PARAMETERS or not 0.0 < request.scale < _MAX_SCALE:
        raise messages.ProtocolError(
            f"d = {request.d} and scale = {request.scale:g} are out of the accepted range"
        )
    node = load_node_data(node_config, config, request.agreement)
    _check_recipient(request.client, node.client)
    if node.problem.d != request.d:
        raise NodeError(
            Code.BAD_SIZE,
            f"client {node.client} has {node.problem.d} parameters, but {request.d} are expected",
        )
    if request.digest not in ("", node.digest):
        raise NodeError(Code.CHANGED, f"client {node.client}: its rows changed since the start")
    return node


def _check_recipient(requested: int, client: int) -> None:
    """Refuse a message for another client."""
    if requested != client:
        raise messages.ProtocolError(
            f"the message is for client {requested}, but this node holds client {client}"
        )


def _rescale(problem: NodeProblem, scale: float) -> NodeProblem:
    return problem if scale == 1.0 else problem.rescale(scale)


def _refuse_in_clear(handler: Handler) -> Handler:
    """Return a handler that refuses replies in clear where the run or the node forbids them."""

    def answer(message: Message, config: AppConfig, node_config: NodeConfig) -> Message:
        if protocol.find_settings(config.aggregation) is not None:
            raise messages.ProtocolError("a run with secure aggregation has no replies in clear")
        if node_config.require_secure:
            raise NodeError(Code.NOT_ALLOWED, "the run has no secure aggregation (require-secure)")
        return handler(message, config, node_config)

    return answer


_HANDLERS: dict[str, Handler] = {
    messages.DESCRIBE: _describe,
    messages.STATISTICS: _send_statistics,
    messages.TRAIN: _refuse_in_clear(_answer_train),
    messages.EVALUATE: _refuse_in_clear(_answer_evaluate),
    messages.FINISH: _finish,
    protocol.KEYS: secure_node.send_keys,
    protocol.SHARES: secure_node.send_shares,
    protocol.TRAIN: _mask_train,
    protocol.EVALUATE: partial(secure_node.mask_reply, _evaluate),
    protocol.UNMASK: _unmask,
}
app = FedpageClientApp()
