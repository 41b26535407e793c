"""Compress messages with codecs: values that encode vectors and state their size and error."""

from fedpage.codecs.base import (
    CODECS,
    IDENTITY,
    NO_KEYS,
    Codec,
    Identity,
    Keys,
    as_codec,
    register_codec,
)
from fedpage.codecs.casts import BFloat16, Float16, Float32
from fedpage.codecs.compose import Chain, Scaled
from fedpage.codecs.message_codec import Compressible, check
from fedpage.codecs.quantise import Dither, Natural, ScaledSign
from fedpage.codecs.sparse import Bernoulli, PermK, RandK, TopK

__all__ = [
    "CODECS",
    "IDENTITY",
    "NO_KEYS",
    "BFloat16",
    "Bernoulli",
    "Chain",
    "Codec",
    "Compressible",
    "Dither",
    "Float16",
    "Float32",
    "Identity",
    "Keys",
    "Natural",
    "PermK",
    "RandK",
    "Scaled",
    "ScaledSign",
    "TopK",
    "as_codec",
    "check",
    "register_codec",
]
