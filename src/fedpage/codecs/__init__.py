"""Compression of messages, as values: a codec says what a vector becomes and what it costs."""

from fedpage.codecs.base import CODECS, IDENTITY, Codec, Identity, Keys, as_codec, register_codec
from fedpage.codecs.casts import Float32
from fedpage.codecs.quantise import Natural
from fedpage.codecs.sparse import RandK
from fedpage.codecs.wire import Compressible, check

__all__ = [
    "CODECS",
    "IDENTITY",
    "Codec",
    "Compressible",
    "Float32",
    "Identity",
    "Keys",
    "Natural",
    "RandK",
    "as_codec",
    "check",
    "register_codec",
]
