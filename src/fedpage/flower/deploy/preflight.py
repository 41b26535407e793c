"""Check a deployment before the first round: versions, programs, certificates, keys, data."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError, short_repr
from fedpage.flower import site_files
from fedpage.flower.allowed import check_allowed
from fedpage.flower.config import NodeConfig, parse_app_config
from fedpage.flower.deploy.check_keys import (
    check_authority,
    check_node_key,
    check_server_certificate,
)
from fedpage.flower.deploy.check_site import check_data, check_site, read_node_config
from fedpage.flower.deploy.findings import CheckFailed, CheckResult, require_file, run_check
from fedpage.flower.node_errors import NodeError
from fedpage.flower.server_app import FedpageStrategy
from fedpage.runs import toml

MINIMUM_FLOWER = (1, 41)
"""Oldest version of Flower that works."""


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
) -> Iterator[CheckResult]:
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
    site, unreadable = None, None
    if node_config is not None:
        try:
            site = read_node_config(node_config)
        except CheckFailed as failure:
            unreadable = CheckResult(False, str(failure), failure.advice)
    yield run_check(_check_versions)
    yield run_check(_check_programs)
    yield run_check(_check_numba_cache)
    yield run_check(_check_telemetry)
    run = None
    if app is not None and unreadable is None:  # without it nobody knows what a site allows
        yield (found := run_check(lambda: _check_app(app, site)))
        run = parse_app_config(_read_app(app)["config"]) if found.ok else None
    if ca is not None:
        yield run_check(lambda: check_authority(ca))
    if cert is not None:
        yield run_check(lambda: check_server_certificate(cert, key, ca, address))
    if node_key is not None:
        yield run_check(lambda: check_node_key(node_key))
    if superlink is not None:
        yield run_check(lambda: _check_connection(superlink))
    if address is not None:
        yield run_check(lambda: _check_address(address, ca))
    if data is not None:
        yield run_check(lambda: check_data(data))
    if unreadable is not None:
        yield unreadable
    if site is not None:
        yield from check_site(site, run)


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
            f"{folder / missing[0]} is missing",
            "install 'fedpage[flower]' into this environment",
            is_missing=True,
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


def _check_app(folder: Path, site: NodeConfig | None) -> str:
    """Check an app as a run would; what a site's owner did not allow is not imported."""
    path = folder / "pyproject.toml"
    app = _read_app(folder)
    components = app.get("components", {})
    for name in ("serverapp", "clientapp"):
        if components.get(name) != f"fedpage.flower.{name.removesuffix('app')}_app:app":
            raise CheckFailed(
                f"{path}: the {name} is not fedpage's",
                f"write a new app: fedpage deploy init {folder}-new",
            )
    try:
        if site is not None:
            check_allowed(parse_app_config(app.get("config", {})), site.allowed)
        strategy = FedpageStrategy(app.get("config", {}))  # checks what a run would refuse
    except NodeError as error:
        raise CheckFailed(f"{path}: {error}", "ask who runs the server") from None
    except InputError as error:
        raise CheckFailed(
            f"{path}: {error}", f"compare it with a new app: fedpage deploy init {folder}-new"
        ) from None
    config = strategy.config
    return f"{path}: {strategy.method.name} over {config.clients} clients, {config.rounds} rounds"


def _read_app(folder: Path) -> dict[str, Any]:
    """Return the table [tool.flwr.app] of an app."""
    path = folder / "pyproject.toml"
    require_file(path)
    table: dict[str, Any] = toml.read(path).get("tool", {}).get("flwr", {}).get("app", {})
    return table


def _check_connection(name: str) -> str:
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    path = home / "config.toml"
    require_file(path)
    tables = toml.read(path).get("superlink", {})
    table = tables.get(name)
    if not isinstance(table, dict):
        known = ", ".join(key for key, value in tables.items() if isinstance(value, dict)) or "none"
        raise CheckFailed(
            f"{path}: there is no [superlink.{name}]; the file has {known}",
            "add the lines of docs/deploy.md",
            is_missing=True,
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
                f"{ca}: cannot be used as a certificate authority", "give ca.pem with --ca"
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
