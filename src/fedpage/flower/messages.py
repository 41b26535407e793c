"""Encode messages and replies as Flower records, and decode them without trusting the sender.

Every message has two records: `header`, a ConfigRecord with the fields of one of the header types
below, and, except for `Description` and `Refusal`, `arrays`, an ArrayRecord with one array for each
field of a NamedTuple. A decoder knows the expected shapes and types beforehand. It compares them
with what was received before it allocates memory, and it never unpickles.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy

from fedpage.core.errors import InputError
from fedpage.core.messages import Layout, field_names
from fedpage.core.types import AnyArray, DType, Fields, Vector

DESCRIBE = "query.describe"
"""Message type: ask a node which client it is. No content; the reply is a `Description`."""
STATISTICS = "query.statistics"
"""Message type: ask a node for the statistics of its columns. `StatisticsRequest`."""
TRAIN = "train.client"
"""Message type: run `Method.client` on a node. `TrainRequest` and a message of the method.

It may carry the records of an `EVALUATE` message as well (see `join`)."""
EVALUATE = "evaluate.client"
"""Message type: evaluate a model on a node. `EvaluateRequest` and `ModelArrays`."""
FINISH = "query.finish"
"""Message type: a run has ended, so a node removes its client state. A `FinishRequest`."""

ARRAYS, HEADER = "arrays", "header"
_EVALUATION = "evaluation-"
"""Prefix of the records of an evaluation in a `TRAIN` message and in its reply."""
_NPY_HEADER = 1024
"""Largest header of a .npy array, in bytes."""


class ProtocolError(ValueError):
    """A message or reply is not what the protocol allows. The text says why, in one line."""


class Description(NamedTuple):
    """Header of the reply to `DESCRIBE`: which client a node holds, and which code it runs."""

    client: int
    rows: int
    features: int
    """Features of a row; 0 for an objective of the app."""
    d: int
    """Parameters of the node's problem."""
    digest: str
    """SHA-256 of the client's rows."""
    columns: str
    """Feature columns of its file, a list in JSON, if the run config does not name them; or ""."""
    fedpage: str
    """Version of fedpage."""
    code: str
    """Digest of the method's code."""
    problem: str
    """Digest of the problem's code and of a model's initial parameters."""


class StatisticsRequest(NamedTuple):
    """Header of a `STATISTICS` message."""

    client: int
    agreement: str
    """The agreed columns, as `Agreement.to_text` writes them."""


class StatisticsReply(NamedTuple):
    """Header of the reply to a `STATISTICS` message, whose arrays are `Statistics`."""

    client: int
    rows: int
    levels: str
    """The categories that enough rows have, of each column that has none in the run config."""
    log_factorials: float
    """The sum of log b! over the site's counts b; 0 in other runs, as is `logs`."""
    logs: float
    """The sum of b log b."""


class TrainRequest(NamedTuple):
    """Header of a `TRAIN` message."""

    client: int
    round: int
    seed: int
    message: str
    """Name of the message type, a key of `Method.messages`."""
    d: int
    scale: float
    """N w_i, by which the client's objective is multiplied; 1.0 for uniform weights."""
    run: str
    """Digest that identifies the run; the client state is stored under it."""
    state_version: str
    """Version of the client state to start from, as `state_version()` writes it; "": zeros."""
    rank: int
    """The client's place among the called clients."""
    called: int
    """How many clients are called."""
    agreement: str
    """What the sites agreed on, as `Agreement.to_text` writes it."""
    digest: str
    """SHA-256 of the client's rows, as its description had it; "": they are not compared."""


class TrainReply(NamedTuple):
    """Header of the reply to a `TRAIN` message."""

    client: int
    round: int
    gradients: int
    evaluations: int


class EvaluateRequest(NamedTuple):
    """Header of an `EVALUATE` message."""

    client: int
    round: int
    d: int
    scale: float
    agreement: str
    digest: str


class EvaluateReply(NamedTuple):
    """Header of the reply to an `EVALUATE` message."""

    client: int
    round: int


class FinishRequest(NamedTuple):
    """Header of a `FINISH` message."""

    run: str
    """As in `TrainRequest`."""


class FinishReply(NamedTuple):
    """Header of the reply to a `FINISH` message."""

    client: int


class Refusal(NamedTuple):
    """Header of the reply to any message that a node cannot or will not answer.

    It quotes nothing of the node's data, files and configuration.
    """

    code: str
    """A word of `node_errors.Code`."""
    reference: str
    """Hexadecimal digits under which the node's own log has the details."""
    client: int
    """The client that the node holds, as its configuration says; -1 if it is not known."""
    missing: str
    """Names of agreed columns that its file lacks, a bounded list in JSON; "" if none."""
    extra: str
    """Names of columns of its file that are not agreed, likewise."""


class ModelArrays(NamedTuple):
    """Arrays of an `EVALUATE` message: the model x (d,)."""

    x: Vector


class Evaluation(NamedTuple):
    """Arrays of the reply to an `EVALUATE` message: one client's values at a model."""

    loss: Vector
    """(1,) float64."""
    gradient: Vector
    """(d,) of the problem's dtype."""
    metrics: Vector
    """(m,) float64, in the order of the run config's `metrics`; (0,) if there are none."""


def state_version(round: int, message_type: type) -> str:
    """Return the name of the client state after a reply to a message of this type in a round."""
    return f"{round} {message_type.__name__}"


def encode_message(fields: tuple[Vector, ...], header: NamedTuple) -> RecordDict:
    """Encode arrays with their header.

    Args:
        fields: NamedTuple of arrays.
        header: one of the header types of this module.

    Returns:
        The content of a Flower message.
    """
    return encode_arrays(dict(zip(field_names(type(fields)), fields, strict=True)), header)


def encode_arrays(arrays: Mapping[str, AnyArray], header: NamedTuple) -> RecordDict:
    """Encode arrays by name, as a codec may have packed them, with their header."""
    record = {name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()}
    return RecordDict({ARRAYS: ArrayRecord(record), HEADER: ConfigRecord(header._asdict())})


def encode_header(header: NamedTuple) -> RecordDict:
    """Encode a header without arrays."""
    return RecordDict({HEADER: ConfigRecord(header._asdict())})


def digest_content(content: RecordDict) -> tuple[int, str]:
    """Return the number of bytes of a message's header and arrays, and their SHA-256.

    Flower's own envelope is not counted. A header is hashed as JSON with sorted keys (bytes in
    hexadecimal), an array as its .npy bytes after its name.

    Args:
        content: The content of a message of this module.

    Raises:
        ProtocolError: It has other records than a header and arrays.
    """
    size, found = 0, hashlib.sha256()
    for name, record in sorted(dict(content).items()):
        part = name.removeprefix(_EVALUATION)
        if part == HEADER and isinstance(record, ConfigRecord):
            text = json.dumps(dict(record), sort_keys=True, default=bytes.hex)
            parts = [(name, text.encode())]
        elif part == ARRAYS and isinstance(record, ArrayRecord):
            prefix = name.removesuffix(ARRAYS)
            parts = [(prefix + key, bytes(array.data)) for key, array in sorted(record.items())]
        else:
            raise ProtocolError(f"a message has no record {str(name)[:40]!r}")
        for key, data in parts:
            found.update(f"{key} {len(data)}\n".encode())
            found.update(data)
            size += len(data)
    return size, found.hexdigest()


def join(training: RecordDict, evaluation: RecordDict) -> RecordDict:
    """Put the records of an evaluation beside those of a `TRAIN` message or of its reply."""
    added = {f"{_EVALUATION}{name}": record for name, record in dict(evaluation).items()}
    return RecordDict({**dict(training), **added})


def split(content: RecordDict) -> tuple[RecordDict, RecordDict | None]:
    """Divide what `join` put together; None: there is no evaluation."""
    training, evaluation = {}, {}
    for name, record in dict(content).items():
        if str(name).startswith(_EVALUATION):
            evaluation[name.removeprefix(_EVALUATION)] = record
        else:
            training[name] = record
    return RecordDict(training), RecordDict(evaluation) if evaluation else None


Header = TypeVar("Header")
T = TypeVar("T", bound=Fields)


def decode_header(content: RecordDict, header_type: Callable[..., Header]) -> Header:
    """Decode a header whose fields and types are exactly those of `header_type`.

    Args:
        content: the content of a received message.
        header_type: a NamedTuple class of this module.

    Returns:
        The header.

    Raises:
        ProtocolError: the header is missing, or a field is missing, unknown or of another type.
    """
    record = dict(content).get(HEADER)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError("the message has no header")
    received, expected = dict(record), _field_types(header_type)
    for name, wanted in expected.items():
        if name not in received:
            raise ProtocolError(f"header field {name!r} is missing")
        if type(received[name]) is not wanted:
            found = type(received[name]).__name__
            raise ProtocolError(
                f"header field {name!r} must be of type {wanted.__name__}, not {found}"
            )
    if len(received) != len(expected):
        raise ProtocolError("the header has unknown fields")
    return header_type(**received)


@lru_cache(maxsize=16)
def _field_types(header_type: Callable[..., object]) -> dict[str, type]:
    return get_type_hints(header_type)


def decode_fields(content: RecordDict, layout: Layout[T]) -> T:
    """Decode the arrays of a message as the NamedTuple of a layout.

    Args:
        content: the content of a received message.
        layout: the expected type, sizes and dtype.

    Returns:
        The NamedTuple, with writable arrays.

    Raises:
        ProtocolError: the records or arrays are not those of the layout.
    """
    shapes = zip(layout.sizes, layout.dtypes, strict=True)
    expected = dict(zip(layout.fields, shapes, strict=True))
    build: Callable[..., T] = layout.type
    return build(**decode_arrays(content, expected))


def decode_arrays(
    content: RecordDict, expected: Mapping[str, tuple[int, np.dtype[Any]]]
) -> dict[str, AnyArray]:
    """Decode arrays of known sizes and types, by name.

    Args:
        content: the content of a received message.
        expected: the size and type of each array.

    Returns:
        Writable arrays, in the order of `expected`.

    Raises:
        ProtocolError: the records or arrays are not these.
    """
    records = dict(content)
    arrays = records.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord) or set(records) != {ARRAYS, HEADER}:
        raise ProtocolError("the message must have one record of arrays and one header")
    if set(arrays) != set(expected):
        found = ", ".join(sorted(map(str, arrays)))[:80] or "none"
        raise ProtocolError(f"arrays {found} instead of {', '.join(expected)}")
    return {
        name: decode_array(arrays[name], name, size, dtype)
        for name, (size, dtype) in expected.items()
    }


def decode(function: Callable[..., T], *arguments: object) -> T:
    """Call a codec's decoder on what was received.

    Raises:
        ProtocolError: it cannot be decoded.
    """
    try:
        return function(*arguments)
    except InputError as error:
        raise ProtocolError(str(error)) from None


def decode_evaluation(content: RecordDict, d: int, dtype: DType, metrics: int) -> Evaluation:
    """Decode the arrays of the reply to an `EVALUATE` message.

    Args:
        content: the content of a received message.
        d: the number of parameters.
        dtype: the type of the gradient's numbers.
        metrics: the number of metrics.

    Returns:
        The client's values.

    Raises:
        ProtocolError: the records or arrays are not those of an `Evaluation`.
    """
    float64 = np.dtype(np.float64)
    expected = {"loss": (1, float64), "gradient": (d, dtype), "metrics": (metrics, float64)}
    return Evaluation(**decode_arrays(content, expected))


def decode_array(array: Array, name: str, size: int, dtype: np.dtype[Any]) -> AnyArray:
    """Decode one array (size,) of a known size and dtype.

    Flower's own decoder would allocate any size that the received bytes declare.

    Args:
        array: the received array.
        name: its name in error messages.
        size: the expected number of numbers.
        dtype: the expected type of its numbers.

    Returns:
        A writable array.

    Raises:
        ProtocolError: the bytes are not a .npy array of this size and dtype.
    """
    nbytes = size * dtype.itemsize
    if array.stype != "numpy.ndarray":
        raise ProtocolError(
            f"{name} is serialised as {str(array.stype)[:40]!r}, not as numpy.ndarray"
        )
    if len(array.data) > nbytes + _NPY_HEADER:
        raise ProtocolError(f"{name} has {len(array.data):,} bytes, but {nbytes:,} are expected")
    stream = io.BytesIO(array.data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ProtocolError(f"{name} has another version of the .npy format than 1.0")
        found, fortran, kind = npy.read_array_header_1_0(stream, max_header_size=_NPY_HEADER)
    except ProtocolError:
        raise
    except Exception:
        raise ProtocolError(f"{name} is not an array in .npy format") from None
    if found != (size,) or fortran:
        raise ProtocolError(f"{name} has shape {str(found)[:40]} instead of {(size,)}")
    if kind != dtype:
        raise ProtocolError(f"{name} has type {str(kind)[:40]} instead of {dtype}")
    if len(array.data) - stream.tell() != nbytes:
        raise ProtocolError(f"{name} is incomplete or too long")
    values: Vector = np.frombuffer(array.data, offset=stream.tell(), dtype=dtype).copy()
    return values
