"""Certificates and keys of a federation: an authority, a server certificate, a key pair a node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpage.core.errors import InputError
from fedpage.flower.private_files import make_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, Name


def create_keys(folder: Path, *, hosts: Sequence[str], nodes: int, days: int = 365) -> list[Path]:
    """Write the certificates and keys of a federation into a new directory.

    The files are ca.pem, ca.key, server.pem, server.key, and node0, node0.pub and so on. Only their
    owner can read the directory and the private keys, whatever the umask.

    Args:
        folder: a directory that is empty or does not exist.
        hosts: names and addresses by which nodes reach the server.
        nodes: number of node key pairs.
        days: validity of the certificates.

    Returns:
        The paths of the files.

    Raises:
        InputError: the directory is not empty or belongs to others, or a number is too small.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: not empty; keys are never overwritten, choose another directory"
        )
    if nodes < 1 or days < 1 or not hosts:
        raise InputError("at least one node, one day and one host are needed")
    try:
        make_private(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot hold keys ({error.strerror or error})") from None
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    ca_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("fedpage CA", ca_key, "fedpage CA", ca_key, days, authority=True)
    names = [
        x509.IPAddress(ipaddress.ip_address(h)) if _is_address(h) else x509.DNSName(h)
        for h in hosts
    ]
    server = _certificate(hosts[0], server_key, "fedpage CA", ca_key, days, names=names)
    paths = [
        _write(folder / "ca.key", _private_pem(ca_key), secret=True),
        _write(folder / "ca.pem", _pem(ca)),
        _write(folder / "server.key", _private_pem(server_key), secret=True),
        _write(folder / "server.pem", _pem(server)),
    ]
    for node in range(nodes):
        paths += create_node_keys(folder / f"node{node}")
    return paths


def create_node_keys(path: Path) -> list[Path]:
    """Write a node's private key to `path` and its public key to `path`.pub.

    The keys have the format of `ssh-keygen -t ecdsa -b 384`.

    Returns:
        Both paths.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return [_write(path, private, secret=True), _write(path.with_name(path.name + ".pub"), public)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _certificate(
    subject: str,
    key: EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    days: int,
    *,
    authority: bool = False,
    names: Sequence[GeneralName] = (),
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    def name(text: str) -> Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _private_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    data: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return data


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    data: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return data


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as stream:
        os.chmod(path, 0o600 if secret else 0o644)
        stream.write(data)
    return path
