"""What is missing for a deployment, found before a round is run: `fedpage deploy check`."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from fedpage.core.errors import InputError, short_repr
from fedpage.flower import node
from fedpage.runs import toml

WANTED = ((1, 41), (1, 42))
"""Flower from the first version, below the second."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    ok: bool
    what: str
    advice: str = ""


class Wrong(Exception):
    """What is not as it should be, and what to do."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.advice = advice


def look(
    *, app: Path | None = None, ca: Path | None = None, cert: Path | None = None, key: Path | None = None,
    node_key: Path | None = None, address: str | None = None, superlink: str | None = None, data: Path | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """Everything that the given options allow to look at, one finding after the other."""
    yield _try(_flower)
    yield _try(_programs)
    yield _try(_compiled)
    yield _try(_telemetry)
    if app is not None:
        yield _try(lambda: _app(app))
    authority: list[Any] = []
    if ca is not None:
        yield _try(lambda: authority.append(_authority(ca)) or f"{ca}: a certificate authority")  # type: ignore[func-returns-value]
    if cert is not None:
        yield _try(lambda: _server(cert, key, authority[0] if authority else None, address))
    if node_key is not None:
        yield _try(lambda: _node(node_key))
    if superlink is not None:
        yield _try(lambda: _connection(superlink))
    if address is not None:
        yield _try(lambda: _reachable(address, ca))
    if data is not None:
        yield _try(lambda: _data(data))


def _try(looked: Callable[[], str]) -> Finding:
    try:
        return Finding(True, looked())
    except Wrong as wrong:
        return Finding(False, str(wrong), wrong.advice)
    except InputError as error:
        return Finding(False, str(error))


def _flower() -> str:
    found = metadata.version("flwr")
    parts = tuple(int(part) for part in found.split(".")[:2])
    if not WANTED[0] <= parts < WANTED[1]:
        raise Wrong(
            f"flwr {found} is installed", "install 'fedpage[flower]', which takes flwr 1.41"
        )
    python = sys.version.split()[0]
    return f"flwr {found}, fedpage {metadata.version('fedpage')}, Python {python}; have the same everywhere"


def _programs() -> str:
    folder = Path(sys.executable).parent
    missing = [
        p for p in ("flwr", "flower-superlink", "flower-supernode") if not (folder / p).exists()
    ]
    if missing:
        raise Wrong(
            f"{folder / missing[0]} is missing", "install 'fedpage[flower]' into this environment"
        )
    if str(folder) not in os.environ.get("PATH", "").split(os.pathsep):
        raise Wrong(
            f"{folder} is not in PATH, and Flower starts its programs by name",
            f"export PATH={folder}:$PATH, or activate it",
        )
    return f"Flower's programs are in {folder} and in PATH"


def _compiled() -> str:
    """A service's user may be able to write neither the package's directory nor a home; then nothing is compiled."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    places = (
        [Path(given)]
        if given
        else [Path(node.__file__).parents[1] / "__pycache__", Path.home() / ".cache"]
    )
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return f"compiled code can be kept below {place}"
        except OSError:
            continue
    raise Wrong(
        f"{places[-1]} cannot be written, so no compiled code can be kept",
        "export NUMBA_CACHE_DIR=/a/writable/directory",
    )


def _telemetry() -> str:
    if os.environ.get("FLWR_TELEMETRY_ENABLED") != "0":
        raise Wrong(
            "Flower's telemetry is on",
            "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1",
        )
    return "Flower's telemetry is off"


def _app(folder: Path) -> str:
    path = folder / "pyproject.toml"
    table = toml.read(path)
    app = table.get("tool", {}).get("flwr", {}).get("app", {})
    parts, config = app.get("components", {}), app.get("config", {})
    for name in ("serverapp", "clientapp"):
        if parts.get(name) != f"fedpage.flower.{name.removesuffix('app')}_app:app":
            raise Wrong(
                f"{path}: {name} is not fedpage's", f"write it anew: fedpage deploy init {folder}"
            )
    try:
        checked = node.checked(config)
        method = node.method_of(checked)
    except InputError as error:
        raise Wrong(
            f"{path}: {error}", f"compare it with a new one: fedpage deploy init {folder}-new"
        ) from None
    return f"{path}: {method.name} over {checked['clients']} clients, {checked['rounds']} rounds"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Wrong(
            f"{path}: cannot be read ({error.strerror})",
            "make keys: fedpage deploy keys DIR --host NAME",
        ) from None


def _certificate(path: Path) -> Any:
    from cryptography import x509

    try:
        made = x509.load_pem_x509_certificate(_bytes(path))
    except ValueError:
        raise Wrong(
            f"{path}: not a PEM certificate", "make keys: fedpage deploy keys DIR --host NAME"
        ) from None
    left = made.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if left.total_seconds() < 0:
        raise Wrong(
            f"{path}: expired on {made.not_valid_after_utc:%Y-%m-%d}",
            "make new ones: fedpage deploy keys",
        )
    return made


def _authority(path: Path) -> Any:
    from cryptography import x509

    made = _certificate(path)
    try:
        authority = made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        authority = False
    if not authority:
        raise Wrong(
            f"{path}: not a certificate authority",
            "give ca.pem here, and the server's own with --cert",
        )
    return made


def _server(cert: Path, key: Path | None, authority: Any, address: str | None) -> str:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization as form

    made = _certificate(cert)
    if authority is not None:
        try:
            made.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise Wrong(
                f"{cert}: not issued by this authority", "use the ca.pem that it was made with"
            ) from None
    if address is not None:
        host = address.rpartition(":")[0]
        try:
            names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            known = {
                *names.get_values_for_type(x509.DNSName),
                *map(str, names.get_values_for_type(x509.IPAddress)),
            }
        except x509.ExtensionNotFound:
            known = set()
        if host not in known:
            raise Wrong(
                f"{cert}: made for {', '.join(sorted(known)) or 'nobody'}, not for {host}",
                f"fedpage deploy keys DIR --host {host}",
            )
    if key is not None:
        _secret(key)
        try:
            private = form.load_pem_private_key(_bytes(key), password=None)
        except (ValueError, TypeError):
            raise Wrong(
                f"{key}: not a private key without a password", "make keys: fedpage deploy keys"
            ) from None
        plain = form.PublicFormat.SubjectPublicKeyInfo
        mine, its = (
            k.public_bytes(form.Encoding.PEM, plain)
            for k in (private.public_key(), made.public_key())
        )
        if mine != its:
            raise Wrong(
                f"{key}: does not belong to {cert}",
                "give the key that the certificate was made with",
            )
    return f"{cert}: the server's certificate, until {made.not_valid_after_utc:%Y-%m-%d}"


def _secret(path: Path) -> None:
    _bytes(path)
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise Wrong(f"{path}: others may read this private key", f"chmod 600 {path}")


def _node(path: Path) -> str:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    _secret(path)
    try:
        private = form.load_ssh_private_key(_bytes(path), password=None)
    except (ValueError, TypeError):
        raise Wrong(
            f"{path}: not an OpenSSH private key without a password",
            "fedpage deploy keys, or ssh-keygen -t ecdsa -b 384 -N ''",
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise Wrong(
            f"{path}: not an elliptic-curve key, which Flower wants",
            "ssh-keygen -t ecdsa -b 384 -N ''",
        )
    public = path.with_name(path.name + ".pub")
    mine = private.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    if public.exists() and _bytes(public).split()[:2] != mine.split()[:2]:
        raise Wrong(f"{public}: does not belong to {path}", f"ssh-keygen -y -f {path} > {public}")
    return f"{path}: a node's key; it must be registered: flwr supernode register {public} NAME"


def _connection(name: str) -> str:
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    path = home / "config.toml"
    links = toml.read(path).get("superlink", {})
    link = links.get(name)
    if not isinstance(link, dict):
        known = ", ".join(key for key, value in links.items() if isinstance(value, dict)) or "none"
        raise Wrong(
            f"{path}: there is no [superlink.{name}]; there are {known}",
            "see docs/deploy.md for the four lines",
        )
    if link.get("insecure"):
        raise Wrong(f"{path}: [superlink.{name}] is insecure", "give root-certificates instead")
    if not link.get("address") or not Path(str(link.get("root-certificates", ""))).is_file():
        raise Wrong(
            f"{path}: [superlink.{name}] lacks an address or root-certificates that exist",
            "see docs/deploy.md",
        )
    return f"{path}: [superlink.{name}] at {link['address']}"


def _reachable(address: str, ca: Path | None) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise Wrong(
            f"{short_repr(address)} is not host:port", "give --address such as 10.0.0.5:8000"
        )
    try:
        plain = socket.create_connection((host, int(port)), timeout=5)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Wrong(
            f"{address}: cannot be reached ({why})",
            "is flower-superlink running, and the port open?",
        ) from None
    with plain:
        if ca is None:
            return f"{address}: something listens; give --ca to see who"
        try:
            context = ssl.create_default_context(cafile=str(ca))
        except (OSError, ssl.SSLError):
            raise Wrong(
                f"{ca}: cannot be used as a certificate authority", "make keys: fedpage deploy keys"
            ) from None
        try:
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return f"{address}: reached, {secure.version()}, certificate verified"
        except ssl.SSLCertVerificationError as error:
            raise Wrong(
                f"{address}: {error.verify_message}",
                "nodes must have the ca.pem that server.pem was made with",
            ) from None
        except (OSError, ssl.SSLError):
            raise Wrong(
                f"{address}: does not speak TLS",
                "start flower-superlink with --ssl-certfile and --ssl-keyfile",
            ) from None


def _data(path: Path) -> str:
    data, kinds = node.read(path, None, "", "")
    return (
        f"{path}: {data.rows:,} rows, {data.features:,} features, labels {kinds or 'of many kinds'}"
    )
