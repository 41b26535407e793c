"""Certificates and keys for a federation: an authority, the server's certificate, a key pair for each node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError


def make(folder: Path, *, hosts: Sequence[str], nodes: int, days: int = 365) -> list[Path]:
    """Write ca.pem, ca.key, server.pem, server.key and node0, node0.pub, ... into a new folder; returns their paths.

    hosts: names and addresses by which nodes reach the server. Private files are readable by their owner only.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: is not empty; keys are never overwritten, choose another directory"
        )
    if nodes < 1 or days < 1 or not hosts:
        raise InputError("at least one node, one day and one host are needed")
    folder.mkdir(parents=True, exist_ok=True)
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    ca_key, server_key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    ca = _certificate("fedpage CA", ca_key, "fedpage CA", ca_key, days, authority=True)
    names = [
        x509.IPAddress(ipaddress.ip_address(h)) if _is_address(h) else x509.DNSName(h)
        for h in hosts
    ]
    server = _certificate(hosts[0], server_key, "fedpage CA", ca_key, days, names=names)
    made = [
        _write(folder / "ca.key", _private(ca_key), secret=True), _write(folder / "ca.pem", _pem(ca)),
        _write(folder / "server.key", _private(server_key), secret=True), _write(folder / "server.pem", _pem(server)),
    ]  # fmt: skip
    for node in range(nodes):
        made += node_pair(folder / f"node{node}")
    return made


def node_pair(path: Path) -> list[Path]:
    """A node's keys, as `ssh-keygen -t ecdsa -b 384` makes them: the private one at path, the public at path.pub."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return [_write(path, private, secret=True), _write(path.with_name(path.name + ".pub"), public)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _certificate(
    subject: str,
    key: Any,
    issuer: str,
    issuer_key: Any,
    days: int,
    *,
    authority: bool = False,
    names: Any = None,
) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    now = datetime.datetime.now(datetime.UTC)
    usage = {
        "digital_signature": True, "key_cert_sign": authority, "crl_sign": authority, "content_commitment": False,
        "key_encipherment": False, "data_encipherment": False, "key_agreement": False, "encipher_only": False,
        "decipher_only": False,
    }  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return made.sign(issuer_key, hashes.SHA256())


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    data: bytes = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    return data


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    data: bytes = certificate.public_bytes(form.Encoding.PEM)
    return data


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    return path
