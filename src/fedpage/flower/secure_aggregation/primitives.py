"""Keys, masks and shares of secure aggregation, from the packages cryptography and pycryptodome.

Both packages come with Flower. Flower's own building blocks are not used: its masks are drawn with
numpy's RandomState from a seed of 32 bits, which can be guessed, and its modulus is at most 2^63.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedpage.flower.messages import ProtocolError

KEY_BYTES = 32
"""Bytes of a public key."""
SEED_BYTES = 16
"""Bytes of a seed that is divided into shares, and of a share."""
_NONCE_BYTES = 12
_TAG_BYTES = 16
SEALED_BYTES = _NONCE_BYTES + 2 * SEED_BYTES + _TAG_BYTES
"""Bytes of two shares that are encrypted for a client."""
Words = NDArray[np.uint64]
"""Numbers modulo 2^64."""


def derive(secret: bytes, purpose: str, context: bytes, length: int = KEY_BYTES) -> bytes:
    """Derive a key from a secret, for one purpose in one context (HKDF with SHA-256)."""
    info = purpose.encode("ascii") + b"\0" + context
    key: bytes = HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)
    return key


def private_key(seed: bytes, purpose: str, context: bytes) -> X25519PrivateKey:
    """Return the X25519 key pair that follows from a seed."""
    return X25519PrivateKey.from_private_bytes(derive(seed, purpose, context))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public key as bytes."""
    data: bytes = key.public_key().public_bytes_raw()
    return data


def agree(key: X25519PrivateKey, peer: bytes) -> bytes:
    """Return the secret that two clients share.

    Raises:
        ProtocolError: The peer's public key is not one.
    """
    try:
        secret: bytes = key.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise ProtocolError("a public key cannot be used") from None
    return secret


def stream(key: bytes, size: int) -> Words:
    """Return pseudo-random numbers modulo 2^64, (size,): AES-256 in counter mode.

    The counter starts at zero, so a key is used for one stream only.
    """
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)


def pairwise_mask(
    key: X25519PrivateKey, peer: bytes, context: bytes, *, adds: bool, size: int
) -> Words:
    """Return what a client adds for a peer; the peer adds the negative of it.

    Args:
        key: The client's mask key.
        peer: The peer's public mask key.
        context: What the mask is for.
        adds: Whether this client adds the stream; the other one of the two subtracts it.
        size: How many numbers.
    """
    mask = stream(derive(agree(key, peer), "pairwise mask", context), size)
    return mask if adds else np.negative(mask)


def self_mask(seed: bytes, context: bytes, size: int) -> Words:
    """Return a client's own mask, (size,)."""
    return stream(derive(seed, "self mask", context), size)


def commit(seed: bytes, context: bytes) -> bytes:
    """Return a digest by which a seed can be recognised, but not found."""
    return hashlib.sha256(derive(seed, "commitment", context)).digest()


def split(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """Divide a seed into shares, of which `threshold` give it back and fewer tell nothing."""
    return [share for _, share in Shamir.split(threshold, count, seed, ssss=False)]


def combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the seed of exactly `threshold` shares, each with its place from 0."""
    seed: bytes = Shamir.combine([(place + 1, share) for place, share in shares], ssss=False)
    return seed


def seal(secret: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Encrypt shares for a client (ChaCha20-Poly1305), bound to a context.

    Args:
        secret: What sender and receiver share.
        plaintext: The shares.
        context: What they are for; it is not sent.
    """
    nonce = os.urandom(_NONCE_BYTES)
    key = derive(secret, "shares", b"")
    sealed: bytes = ChaCha20Poly1305(key).encrypt(nonce, plaintext, context)
    return nonce + sealed


def unseal(secret: bytes, sealed: bytes, context: bytes) -> bytes:
    """Decrypt shares.

    Raises:
        ProtocolError: They were changed, or are not from this sender for this context.
    """
    key = derive(secret, "shares", b"")
    try:
        opened: bytes = ChaCha20Poly1305(key).decrypt(
            sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context
        )
    except InvalidTag:
        raise ProtocolError("shares of a client are not authentic") from None
    return opened
