"""The ClientApp of a node: it describes its client, runs `Method.client`, and evaluates models."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpage._version import __version__
from fedpage.codecs.wire import Ranks, Wire
from fedpage.core.messages import layout_of
from fedpage.core.metrics import row_metrics
from fedpage.core.types import dtype_of
from fedpage.flower import messages
from fedpage.flower.client_state import ClientStateStore
from fedpage.flower.config import AppConfig, build_method, parse_app_config, parse_node_config
from fedpage.flower.metrics import select_metrics
from fedpage.flower.node_data import NodeData, NodeProblem, load_node_data, problem_digest
from fedpage.flower.node_draws import NodeDraws
from fedpage.flower.node_errors import Code, NodeError, refuse
from fedpage.runs.fingerprint import method_digest

Handler = Callable[[Message, Context], Message]
_MAX_PARAMETERS = 1 << 28
"""Largest d that a server may ask for."""
_MAX_SCALE = 1e9
_ONLY_CLIENT = np.zeros(1, dtype=np.int64)
"""The number of the only client of a node's problem."""


class FedpageClientApp(ClientApp):
    """A ClientApp that answers three types of messages and accepts no mods.

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
            return _answer(message, context)
        except Exception as error:
            return Message(messages.encode_header(refuse(error)), reply_to=message)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            "fedpage's ClientApp takes no functions and no mods: secure aggregation would send its "
            "messages unencrypted, and clipping would be wrong for them"
        )

    train = evaluate = query = lifespan = _refuse


def _answer(message: Message, context: Context) -> Message:
    """Answer a message, or raise what is wrong with it."""
    handler = _HANDLERS.get(message.metadata.message_type)
    if handler is None:
        raise messages.ProtocolError(
            f"unknown message type {str(message.metadata.message_type)[:40]!r}"
        )
    return handler(message, context)


def _describe(message: Message, context: Context) -> Message:
    """Describe the client of this node: its number, its rows and its code."""
    config = parse_app_config(context.run_config)
    node = load_node_data(parse_node_config(context.node_config), config)
    description = messages.Description(
        client=node.client,
        rows=int(node.problem.sizes[0]),
        features=node.problem.d,
        digest=node.digest,
        labels=node.labels,
        fedpage=__version__,
        code=method_digest(build_method(config)),
        problem=problem_digest(node.problem),
    )
    return Message(messages.encode_header(description), reply_to=message)


def _train(message: Message, context: Context) -> Message:
    """Run `Method.client` on this node's rows."""
    request = messages.decode_header(message.content, messages.TrainRequest)
    config = parse_app_config(context.run_config)
    node = _load_requested(request, config, context)
    dtype = dtype_of(node.problem)
    method = build_method(config)
    types = {message_type.__name__: message_type for message_type in method.messages}
    if request.message not in types:
        raise messages.ProtocolError(f"{method.name} has no message {request.message[:40]!r}")
    message_type = types[request.message]
    wire = Wire(method, request.d, dtype)
    arrays = messages.decode_arrays(message.content, wire.message_shapes(message_type))
    fields = messages.decode(wire.decode_message, message_type, list(arrays.values()))

    store, client_state = None, None
    if method.client_state is not None:
        folder = parse_node_config(context.node_config).client_state_dir
        store = ClientStateStore(
            folder, request.run, node.client, method.client_state, request.d, dtype
        )
        client_state = store.load(request.state_version)
    draws = NodeDraws(request.seed, request.round, node.client)
    oracle = _rescale(node.problem, request.scale).oracle(_ONLY_CLIENT, draws)
    with np.errstate(over="ignore", invalid="ignore"):
        reply, client_state = method.client(fields, oracle, client_state)
        ranks = Ranks(np.array([request.rank], dtype=np.int64), request.called)
        sent = wire.encode_reply(fields, reply, _ONLY_CLIENT, draws, ranks)
        if store is not None:
            _, client_state = wire.finish(fields, reply, client_state, _ONLY_CLIENT, draws, ranks)
    if store is not None:
        version = messages.state_version(request.round, message_type)
        store.save(request.state_version, version, client_state)

    header = messages.TrainReply(
        node.client, request.round, int(oracle.gradients), int(oracle.evaluations)
    )
    return Message(messages.encode_arrays(sent, header), reply_to=message)


def _evaluate(message: Message, context: Context) -> Message:
    """Evaluate this client's loss, gradient and metrics at a model."""
    request = messages.decode_header(message.content, messages.EvaluateRequest)
    config = parse_app_config(context.run_config)
    node = _load_requested(request, config, context)
    layout = layout_of(messages.Model, request.d, dtype_of(node.problem))
    model = messages.decode_fields(message.content, layout)
    found = _rescale(node.problem, request.scale).evaluate_clients(_ONLY_CLIENT, model.x)
    names = row_metrics(select_metrics(config.metric_names, node.problem))
    for name in names:
        if name not in found.metrics:
            raise NodeError(
                Code.NO_METRIC, f"client {node.client}: the problem does not compute {name!r}"
            )
    values = np.array([float(found.metrics[name][0]) for name in names])
    header = messages.EvaluateReply(node.client, request.round)
    evaluation = messages.Evaluation(found.losses, found.gradients[0], values)
    return Message(messages.encode_message(evaluation, header), reply_to=message)


def _load_requested(
    request: messages.TrainRequest | messages.EvaluateRequest, config: AppConfig, context: Context
) -> NodeData:
    """Load this node's client if the request is for it and has plausible sizes."""
    if not 0 < request.d <= _MAX_PARAMETERS or not 0.0 < request.scale < _MAX_SCALE:
        raise messages.ProtocolError(
            f"d = {request.d} and scale = {request.scale:g} are out of the accepted range"
        )
    node = load_node_data(parse_node_config(context.node_config), config, request.d)
    if request.client != node.client:
        raise messages.ProtocolError(
            f"the message is for client {request.client}, but this node holds client {node.client}"
        )
    if node.problem.d != request.d:
        raise NodeError(
            Code.BAD_SIZE,
            f"client {node.client} has {node.problem.d} features, but {request.d} are expected",
        )
    return node


def _rescale(problem: NodeProblem, scale: float) -> NodeProblem:
    return problem if scale == 1.0 else problem.rescale(scale)


_HANDLERS: dict[str, Handler] = {
    messages.DESCRIBE: _describe,
    messages.TRAIN: _train,
    messages.EVALUATE: _evaluate,
}
app = FedpageClientApp()
