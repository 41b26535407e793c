"""`fedpage deploy`: what it makes, and what it finds missing before a round is run."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="these need Flower: pip install 'fedpage[flower]'")

import fedpage as fp
from fedpage.flower.deploy import keys, preflight

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Keys for 127.0.0.1, and an environment in which nothing is missing."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    keys.make(tmp_path / "keys", hosts=["localhost", "127.0.0.1"], nodes=2)
    return tmp_path / "keys"


def found(**options):
    """What is missing."""
    return [f"{one.what}; {one.advice}" for one in preflight.look(**options) if not one.ok]


class Listening:
    """A server on loopback that accepts, and speaks TLS or says nothing."""

    def __init__(self, folder=None):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.context = None
        if folder is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(folder / "server.pem", folder / "server.key")
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                plain, _ = self.socket.accept()
            except OSError:
                return
            with plain:
                try:
                    if self.context is not None:
                        self.context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    continue

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        self.socket.close()


def test_nothing_is_missing(made, tmp_path):
    (tmp_path / "flwr").mkdir()
    with Listening(made) as server:
        (tmp_path / "flwr" / "config.toml").write_text(
            f'[superlink.here]\naddress = "{server.address}"\nroot-certificates = "{made / "ca.pem"}"\n'
        )
        (tmp_path / "site.svm").write_text("1 1:2\n-1 3:1\n")
        everything = list(preflight.look(
            app=ROOT / "examples" / "flower", ca=made / "ca.pem", cert=made / "server.pem", key=made / "server.key",
            node_key=made / "node1", address=server.address, superlink="here", data=tmp_path / "site.svm",
        ))  # fmt: skip
    assert [one for one in everything if not one.ok] == []
    text = " ".join(one.what for one in everything)
    assert "TLSv1.3, certificate verified" in text
    assert "2 rows, 3 features, labels -1,1" in text
    assert "FedPAGE over 4 clients, 20 rounds" in text


def test_who_is_reached(made, tmp_path):
    other = tmp_path / "other"
    keys.make(other, hosts=["localhost", "127.0.0.1"], nodes=1)
    with Listening(made) as server, Listening() as plain:
        (wrong,) = found(address=server.address, ca=other / "ca.pem")
        assert "nodes must have the ca.pem that server.pem was made with" in wrong
        (mute,) = found(address=plain.address, ca=made / "ca.pem")
        assert "does not speak TLS; start flower-superlink with --ssl-certfile" in mute
        gone = server.address
    (nobody,) = found(address=gone, ca=made / "ca.pem")
    assert "cannot be reached (Connection refused); is flower-superlink running" in nobody
    for address in ("nowhere", "127.0.0.1:", ":80", "127.0.0.1:99999999"):
        assert len(found(address=address)) == 1


def test_certificates_that_do_not_fit(made, tmp_path):
    other = tmp_path / "other"
    keys.make(other, hosts=["example.org"], nodes=1)
    assert "not a certificate authority" in found(ca=made / "server.pem")[0]
    assert "not issued by this authority" in found(ca=made / "ca.pem", cert=other / "server.pem")[0]
    assert "does not belong to" in found(cert=made / "server.pem", key=other / "server.key")[0]
    address = "10.1.2.3:8000"
    assert (
        "made for 127.0.0.1, localhost, not for 10.1.2.3"
        in preflight._try(lambda: preflight._server(made / "server.pem", None, None, address)).what
    )
    assert "cannot be read" in found(ca=tmp_path / "nothing.pem")[0]
    (tmp_path / "junk.pem").write_text("junk")
    assert "not a PEM certificate" in found(cert=tmp_path / "junk.pem")[0]
    assert (
        "not a private key without a password"
        in found(cert=made / "server.pem", key=_copy(tmp_path / "junk.pem"))[0]
    )


def _copy(path):
    path.chmod(0o600)
    return path


def test_certificates_that_have_expired(made, tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    old = keys._certificate("x", key, "x", key, days=0, authority=True)
    (tmp_path / "old.pem").write_bytes(keys._pem(old))
    (line,) = found(ca=tmp_path / "old.pem")
    assert "expired on" in line


def test_keys_that_do_not_fit(made, tmp_path):
    (made / "node0").chmod(0o644)
    assert "others may read this private key; chmod 600" in found(node_key=made / "node0")[0]
    (made / "node0").chmod(0o600)
    assert found(node_key=made / "node0") == []
    (made / "node0.pub").write_bytes((made / "node1.pub").read_bytes())
    assert "does not belong to" in found(node_key=made / "node0")[0]
    assert "not an OpenSSH private key" in found(node_key=made / "server.key")[0]
    assert "cannot be read" in found(node_key=tmp_path / "none")[0]
    assert (made / "ca.key").stat().st_mode & 0o077 == 0
    with pytest.raises(fp.InputError, match="keys are never overwritten"):
        keys.make(made, hosts=["localhost"], nodes=1)


def test_an_environment_that_does_not_fit(made, tmp_path, monkeypatch):
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED")
    assert "telemetry is on; export FLWR_TELEMETRY_ENABLED=0" in found()[0]
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("PATH", "/usr/bin")
    assert "is not in PATH, and Flower starts its programs by name" in found()[0]
    monkeypatch.setattr(preflight, "WANTED", ((2, 0), (3, 0)))
    assert "is installed; install 'fedpage[flower]'" in found()[0]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert any("NUMBA_CACHE_DIR=/a/writable/directory" in line for line in found())


def test_connections_that_do_not_fit(made, tmp_path):
    home = tmp_path / "flwr"
    assert "there is no such file" in found(superlink="x")[0]
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink.a]\naddress = "h:1"\ninsecure = true\n[superlink.b]\naddress = "h:1"\n'
    )
    assert "there is no [superlink.x]; there are a, b" in found(superlink="x")[0]
    assert "[superlink.a] is insecure; give root-certificates instead" in found(superlink="a")[0]
    assert "lacks an address or root-certificates that exist" in found(superlink="b")[0]


def test_apps_and_data_that_do_not_fit(made, tmp_path, run):
    assert run("deploy", "init", "app")[0] == 0
    path = tmp_path / "app" / "pyproject.toml"
    assert found(app=path.parent) == []
    text = path.read_text()
    path.write_text(text.replace('method = "fedpage"', 'method = "fedpag"'))
    assert "did you mean 'fedpage'" in found(app=path.parent)[0]
    path.write_text(text.replace("fedpage.flower.client_app:app", "mine:app"))
    assert "clientapp is not fedpage's" in found(app=path.parent)[0]
    path.write_text(text + "[")
    assert "not TOML" in found(app=path.parent)[0]
    (tmp_path / "x.csv").write_text("a,b\n1,x\n")
    assert "line 2: every cell must be a number" in found(data=tmp_path / "x.csv")[0]
    code, _, err = run("deploy", "init", "app")
    assert (code, err) == (2, "fedpage: app/pyproject.toml: is there already\n")


def test_the_commands_exit_codes(made, run, monkeypatch):
    assert run("deploy", "check", "--ca", str(made / "ca.pem"))[0] == 0
    code, out, _ = run("deploy", "check", "--ca", "nowhere.pem")
    assert code == 1
    assert out.count("MISSING") == 1
    code, out, _ = run("deploy", "keys", "k", "--host", "example.org", "--nodes", "3")
    assert code == 0
    assert "node2.pub" in out
    assert run("deploy", "keys", "k")[0] == 2
    assert run("deploy", "demo", "--nodes", "0")[0] == 2


def test_the_example_is_the_app_that_init_writes():
    mine = (ROOT / "src" / "fedpage" / "flower" / "app.toml").read_text(encoding="utf-8")
    assert (ROOT / "examples" / "flower" / "pyproject.toml").read_text(encoding="utf-8") == mine


def test_nothing_is_insecure_unless_the_user_types_it():
    for path in [*(ROOT / "examples").rglob("*"), *(ROOT / "src").rglob("*.py")]:
        if path.is_file() and path.suffix in (".py", ".toml", ".md", ".sh"):
            text = path.read_text(encoding="utf-8")
            where = text.count("--insecure")
            # there only where a caller leaves TLS out, and for Flower's simulation, whose nodes are in its own process
            assert where == (2 if path.name == "local_federation.py" else 0), path
