"""Check certificates and keys before a deployment."""

from __future__ import annotations

import datetime
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedpage.core.errors import InputError
from fedpage.flower.deploy.findings import CheckFailed, read_file

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_MAKE_KEYS = "create keys: fedpage deploy keys DIR --host NAME"


def _load_certificate(path: Path) -> Certificate:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(read_file(path))
    except ValueError:
        raise CheckFailed(
            f"{path}: not a PEM certificate", "give ca.pem with --ca, and server.pem with --cert"
        ) from None
    if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise CheckFailed(
            f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}", _MAKE_KEYS
        )
    return certificate


def check_authority(path: Path) -> str:
    """Check that a file is the certificate of an authority."""
    _load_authority(path)
    return f"{path}: a certificate authority"


def _load_authority(path: Path) -> Certificate:
    from cryptography import x509

    certificate = _load_certificate(path)
    try:
        authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        authority = False
    if not authority:
        raise CheckFailed(
            f"{path}: not a certificate authority",
            "give ca.pem here, and the server's certificate with --cert",
        )
    return certificate


def check_server_certificate(
    cert: Path, key: Path | None, ca: Path | None, address: str | None
) -> str:
    """Check the server's certificate: its authority, the host it is valid for, and its key."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    certificate = _load_certificate(cert)
    if ca is not None:
        try:
            certificate.verify_directly_issued_by(_load_authority(ca))
        except (CheckFailed, InputError):
            pass  # the check of the authority reports it
        except (ValueError, TypeError, InvalidSignature):
            raise CheckFailed(
                f"{cert}: not issued by {ca}", "use the ca.pem that was created with it"
            ) from None
    host = "" if address is None else address.rpartition(":")[0]
    if host:  # the check of the address reports one that is not host:port
        try:
            names = certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value
            known = {
                *names.get_values_for_type(x509.DNSName),
                *map(str, names.get_values_for_type(x509.IPAddress)),
            }
        except x509.ExtensionNotFound:
            known = set()
        if host not in known:
            raise CheckFailed(
                f"{cert}: valid for {', '.join(sorted(known)) or 'no host'}, not for {host}",
                f"fedpage deploy keys DIR --host {host}",
            )
    if key is not None:
        _check_private(key)
        try:
            private = serialization.load_pem_private_key(read_file(key), password=None)
        except (ValueError, TypeError):
            raise CheckFailed(
                f"{key}: not a private key without a password", "give server.key with --key"
            ) from None
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        own = private.public_key().public_bytes(encoding, form)
        if own != certificate.public_key().public_bytes(encoding, form):
            raise CheckFailed(
                f"{key}: does not belong to {cert}", "give the key that was created with it"
            )
    return f"{cert}: the server's certificate, until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _check_private(path: Path) -> None:
    read_file(path)
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise CheckFailed(f"{path}: other users can read this private key", f"chmod 600 {path}")


def check_node_key(path: Path) -> str:
    """Check a node's private key, and that its public key belongs to it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    _check_private(path)
    try:
        private = serialization.load_ssh_private_key(read_file(path), password=None)
    except (ValueError, TypeError):
        raise CheckFailed(
            f"{path}: not an OpenSSH private key without a password",
            "give the file nodeN that belongs to nodeN.pub",
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise CheckFailed(
            f"{path}: not an elliptic-curve key, which Flower needs",
            "ssh-keygen -t ecdsa -b 384 -N ''",
        )
    public = path.with_name(path.name + ".pub")
    own = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    if public.exists() and read_file(public).split()[:2] != own.split()[:2]:
        raise CheckFailed(
            f"{public}: does not belong to {path}", f"ssh-keygen -y -f {path} > {public}"
        )
    return f"{path}: a node's key; register it: flwr supernode register {public} NAME"
