"""Check a deployment before the first round: versions, programs, certificates, keys, data."""

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
from typing import TYPE_CHECKING, NamedTuple

from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import refuse_special
from fedpage.flower import site_files
from fedpage.flower.config import parse_node_config
from fedpage.flower.server_app import FedpageStrategy
from fedpage.runs import toml

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MINIMUM_FLOWER = (1, 41)
"""Oldest version of Flower that works."""
_MAKE_KEYS = "create keys: fedpage deploy keys DIR --host NAME"


class Finding(NamedTuple):
    """The result of one check."""

    ok: bool
    text: str
    """What was found."""
    advice: str = ""
    """What to do about it."""


class CheckFailed(Exception):
    """A check failed.

    Args:
        text: what is wrong.
        advice: what to do about it.
    """

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


def run_checks(
    *,
    app: Path | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    node_key: Path | None = None,
    address: str | None = None,
    superlink: str | None = None,
    data: Path | None = None,
    node_config: str | None = None,
) -> Iterator[Finding]:
    """Run every check for which something is given; the environment is always checked.

    Args:
        app: directory of the Flower app.
        ca: certificate of the authority.
        cert: certificate of the server.
        key: private key of the server; it is checked together with `cert`.
        node_key: private key of a node.
        address: host:port of the SuperLink.
        superlink: name of a connection in Flower's config.toml.
        data: a node's own data file.
        node_config: what `flower-supernode --node-config` will be given.

    Yields:
        The result of each check.
    """
    yield _run_check(_check_versions)
    yield _run_check(_check_programs)
    yield _run_check(_check_numba_cache)
    yield _run_check(_check_telemetry)
    if app is not None:
        yield _run_check(lambda: _check_app(app))
    if ca is not None:
        yield _run_check(lambda: _check_authority(ca))
    if cert is not None:
        yield _run_check(lambda: _check_server_certificate(cert, key, ca, address))
    if node_key is not None:
        yield _run_check(lambda: _check_node_key(node_key))
    if superlink is not None:
        yield _run_check(lambda: _check_connection(superlink))
    if address is not None:
        yield _run_check(lambda: _check_address(address, ca))
    if data is not None:
        yield _run_check(lambda: _check_data(data))
    if node_config is not None:
        yield from _check_node_config(node_config)


def _run_check(check: Callable[[], str]) -> Finding:
    try:
        return Finding(True, check())
    except CheckFailed as failure:
        return Finding(False, str(failure), failure.advice)
    except InputError as error:
        return Finding(False, str(error))


def _check_versions() -> str:
    version = metadata.version("flwr")
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_FLOWER:
        oldest = ".".join(map(str, MINIMUM_FLOWER))
        raise CheckFailed(
            f"flwr {version} is installed", f"install 'fedpage[flower]', which needs flwr {oldest}"
        )
    python = sys.version.split()[0]
    return (
        f"flwr {version}, fedpage {metadata.version('fedpage')}, Python {python}; "
        "use the same versions on every machine"
    )


def _check_programs() -> str:
    folder = Path(sys.executable).parent
    programs = ("flwr", "flower-superlink", "flower-supernode")
    missing = [name for name in programs if not (folder / name).exists()]
    if missing:
        raise CheckFailed(
            f"{folder / missing[0]} is missing", "install 'fedpage[flower]' into this environment"
        )
    if str(folder) not in os.environ.get("PATH", "").split(os.pathsep):
        raise CheckFailed(
            f"{folder} is not in PATH, and Flower starts its programs by name",
            f"export PATH={folder}:$PATH, or activate the environment",
        )
    return f"Flower's programs are in {folder} and in PATH"


def _check_numba_cache() -> str:
    """Check that numba can write its cache, which a service's user may not be allowed to."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    package = Path(site_files.__file__).parents[1]
    folders = [Path(given)] if given else [package / "__pycache__", Path.home() / ".cache"]
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return f"compiled code can be cached in {folder}"
        except OSError:
            continue
    raise CheckFailed(
        f"{folders[-1]} cannot be written, so compiled code cannot be cached",
        "export NUMBA_CACHE_DIR=/a/writable/directory",
    )


def _check_telemetry() -> str:
    if os.environ.get("FLWR_TELEMETRY_ENABLED") != "0":
        raise CheckFailed(
            "Flower's telemetry is on",
            "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1",
        )
    return "Flower's telemetry is off"


def _check_app(folder: Path) -> str:
    path = folder / "pyproject.toml"
    app = toml.read(path).get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {})
    for name in ("serverapp", "clientapp"):
        if components.get(name) != f"fedpage.flower.{name.removesuffix('app')}_app:app":
            raise CheckFailed(
                f"{path}: the {name} is not fedpage's",
                f"write a new app: fedpage deploy init {folder}-new",
            )
    try:
        strategy = FedpageStrategy(app.get("config", {}))  # checks what a run would refuse
    except InputError as error:
        raise CheckFailed(
            f"{path}: {error}", f"compare it with a new app: fedpage deploy init {folder}-new"
        ) from None
    config = strategy.config
    return f"{path}: {strategy.method.name} over {config.clients} clients, {config.rounds} rounds"


def _read_bytes(path: Path) -> bytes:
    try:
        refuse_special(path)
        return path.read_bytes()
    except InputError as error:
        raise CheckFailed(str(error), _MAKE_KEYS) from None
    except OSError as error:
        raise CheckFailed(
            f"{path}: cannot be read ({error.strerror})",
            _MAKE_KEYS,
        ) from None


def _load_certificate(path: Path) -> Certificate:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(_read_bytes(path))
    except ValueError:
        raise CheckFailed(f"{path}: not a PEM certificate", _MAKE_KEYS) from None
    if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise CheckFailed(
            f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}", _MAKE_KEYS
        )
    return certificate


def _check_authority(path: Path) -> str:
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


def _check_server_certificate(
    cert: Path, key: Path | None, ca: Path | None, address: str | None
) -> str:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    certificate = _load_certificate(cert)
    if ca is not None:
        try:
            certificate.verify_directly_issued_by(_load_authority(ca))
        except CheckFailed:
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
            private = serialization.load_pem_private_key(_read_bytes(key), password=None)
        except (ValueError, TypeError):
            raise CheckFailed(f"{key}: not a private key without a password", _MAKE_KEYS) from None
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        own = private.public_key().public_bytes(encoding, form)
        if own != certificate.public_key().public_bytes(encoding, form):
            raise CheckFailed(
                f"{key}: does not belong to {cert}", "give the key that was created with it"
            )
    return f"{cert}: the server's certificate, until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _check_private(path: Path) -> None:
    _read_bytes(path)
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise CheckFailed(f"{path}: other users can read this private key", f"chmod 600 {path}")


def _check_node_key(path: Path) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    _check_private(path)
    try:
        private = serialization.load_ssh_private_key(_read_bytes(path), password=None)
    except (ValueError, TypeError):
        raise CheckFailed(
            f"{path}: not an OpenSSH private key without a password",
            "fedpage deploy keys, or ssh-keygen -t ecdsa -b 384 -N ''",
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
    if public.exists() and _read_bytes(public).split()[:2] != own.split()[:2]:
        raise CheckFailed(
            f"{public}: does not belong to {path}", f"ssh-keygen -y -f {path} > {public}"
        )
    return f"{path}: a node's key; register it: flwr supernode register {public} NAME"


def _check_connection(name: str) -> str:
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    path = home / "config.toml"
    tables = toml.read(path).get("superlink", {})
    table = tables.get(name)
    if not isinstance(table, dict):
        known = ", ".join(key for key, value in tables.items() if isinstance(value, dict)) or "none"
        raise CheckFailed(
            f"{path}: there is no [superlink.{name}]; the file has {known}",
            "add the lines of docs/deploy.md",
        )
    if table.get("insecure"):
        raise CheckFailed(
            f"{path}: [superlink.{name}] is insecure", "give root-certificates instead"
        )
    if not table.get("address") or not Path(str(table.get("root-certificates", ""))).is_file():
        raise CheckFailed(
            f"{path}: [superlink.{name}] needs an address and root-certificates that exist",
            "see docs/deploy.md",
        )
    return f"{path}: [superlink.{name}] at {table['address']}"


def _check_address(address: str, ca: Path | None) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CheckFailed(
            f"{short_repr(address)} is not host:port", "give --address such as 10.0.0.5:8000"
        )
    try:
        plain = socket.create_connection((host, int(port)), timeout=5)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CheckFailed(
            f"{address}: cannot be reached ({why})",
            "check that flower-superlink runs and that the port is open",
        ) from None
    with plain:
        if ca is None:
            return f"{address}: a server listens; give --ca to verify its certificate"
        try:
            context = ssl.create_default_context(cafile=str(ca))
        except (OSError, ssl.SSLError):
            raise CheckFailed(
                f"{ca}: cannot be used as a certificate authority", _MAKE_KEYS
            ) from None
        try:
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return f"{address}: reached, {secure.version()}, certificate verified"
        except ssl.SSLCertVerificationError as error:
            raise CheckFailed(
                f"{address}: {error.verify_message}",
                "give nodes the ca.pem that was created with server.pem",
            ) from None
        except (OSError, ssl.SSLError):
            raise CheckFailed(
                f"{address}: does not speak TLS",
                "start flower-superlink with --ssl-certfile and --ssl-keyfile",
            ) from None


def _check_data(path: Path) -> str:
    return site_files.describe_file(path)


def _check_node_config(text: str) -> Iterator[Finding]:
    """Check a node's configuration: its keys, its data, its state directory and its audit log."""
    from flwr.common.config import parse_config_args

    try:
        config = parse_node_config(parse_config_args([text]))
    except InputError as error:
        yield Finding(False, str(error), "docs/deploy.md has an example")
        return
    except Exception:  # flwr raises errors of typer and of its TOML reader
        advice = 'write words such as partition-id=0, and text in quotes: data="/data/site.csv"'
        yield Finding(False, "--node-config: cannot be read", advice)
        return
    allowed = ", ".join(sorted(config.allowed)) or "nothing"
    yield Finding(
        True,
        f"node config: client {config.partition_id}; runs may name {allowed} beside fedpage's own; "
        f"evaluations send at most {config.evaluation}"
        + "; statistics of columns are shared"
        * config.share_statistics,
    )
    if config.data:
        yield _run_check(lambda: _check_data(Path(config.data)))
    yield _run_check(lambda: _check_state_dir(config.state_dir))
    yield _run_check(lambda: _check_audit(config.audit_path))


def _check_state_dir(folder: Path) -> str:
    """Check that the node's state directory is private, and can be written or created."""
    if not folder.exists():
        parent = next(path for path in folder.absolute().parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise CheckFailed(f"{folder}: cannot be created in {parent}", "create it for this user")
        return f"{folder}: will be created for client states"
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise CheckFailed(f"{folder}: not a directory that this user can write", "choose another")
    if sys.platform != "win32" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise CheckFailed(f"{folder}: other users can enter it", f"chmod 700 {folder}")
    return f"{folder}: private, for client states"


def _check_audit(path: Path | None) -> str:
    """Check that the audit log can be written."""
    if path is None:
        raise CheckFailed("the audit log is off", 'remove audit="off" unless that is meant')
    folder = path if path.is_file() else path.parent
    folder = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(folder, os.W_OK):
        raise CheckFailed(f"{path}: cannot be written", "name another file with audit=")
    return f"{path}: the audit log; `fedpage deploy audit` reads it"
