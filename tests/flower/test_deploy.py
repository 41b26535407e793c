"""`fedpage deploy`: the keys and apps that it writes, and the checks before a deployment."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import sys
import threading
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="these need Flower: pip install 'fedpage[flower]'")

import fedpage as fp
from fedpage.flower.config import parse_app_config
from fedpage.flower.deploy import keys, preflight
from fedpage.flower.deploy.check_keys import check_server_certificate
from fedpage.flower.deploy.findings import run_check
from fedpage.flower.deploy.keys import create_keys

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def key_dir(tmp_path, monkeypatch):
    """Create keys for 127.0.0.1, in an environment that passes every check."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    create_keys(tmp_path / "keys", hosts=["localhost", "127.0.0.1"], nodes=2)
    return tmp_path / "keys"


def failures(**options):
    """Return the failed checks."""
    findings = preflight.run_checks(**options)
    return [f"{finding.text}; {finding.advice}" for finding in findings if not finding.ok]


class Listening:
    """A server on 127.0.0.1 that accepts connections, with or without TLS."""

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
        self.socket.shutdown(socket.SHUT_RDWR)  # so that accept() returns in the thread
        self.socket.close()


def test_all_checks_pass(key_dir, tmp_path):
    (tmp_path / "flwr").mkdir()
    with Listening(key_dir) as server:
        (tmp_path / "flwr" / "config.toml").write_text(
            f'[superlink.here]\naddress = "{server.address}"\n'
            f'root-certificates = "{key_dir / "ca.pem"}"\n'
        )
        (tmp_path / "node.svm").write_text("1 1:2\n-1 3:1\n")
        findings = list(preflight.run_checks(
            app=ROOT / "examples" / "flower", ca=key_dir / "ca.pem", cert=key_dir / "server.pem",
            key=key_dir / "server.key", node_key=key_dir / "node1", address=server.address,
            superlink="here", data=tmp_path / "node.svm",
        ))  # fmt: skip
    assert [finding for finding in findings if not finding.ok] == []
    text = " ".join(finding.text for finding in findings)
    assert "TLSv1.3, certificate verified" in text
    assert "2 rows, 3 features, labels -1,1" in text
    assert "FedPAGE over 4 clients, 20 rounds" in text


def test_addresses_and_authorities(key_dir, tmp_path):
    other = tmp_path / "other"
    create_keys(other, hosts=["localhost", "127.0.0.1"], nodes=1)
    with Listening(key_dir) as server, Listening() as plain:
        (wrong,) = failures(address=server.address, ca=other / "ca.pem")
        assert "give nodes the ca.pem that was created with server.pem" in wrong
        (mute,) = failures(address=plain.address, ca=key_dir / "ca.pem")
        assert "does not speak TLS; start flower-superlink with --ssl-certfile" in mute
        gone = server.address
    (unreachable,) = failures(address=gone, ca=key_dir / "ca.pem")
    assert "cannot be reached (Connection refused); check that flower-superlink runs" in unreachable
    for address in ("nowhere", "127.0.0.1:", ":80", "127.0.0.1:99999999"):
        assert len(failures(address=address)) == 1


def test_wrong_certificates(key_dir, tmp_path):
    other = tmp_path / "other"
    create_keys(other, hosts=["example.org"], nodes=1)
    assert "not a certificate authority" in failures(ca=key_dir / "server.pem")[0]
    assert "not issued by" in failures(ca=key_dir / "ca.pem", cert=other / "server.pem")[0]
    assert (
        "does not belong to" in failures(cert=key_dir / "server.pem", key=other / "server.key")[0]
    )
    address = "10.1.2.3:8000"
    assert (
        "valid for 127.0.0.1, localhost, not for 10.1.2.3"
        in run_check(
            lambda: check_server_certificate(key_dir / "server.pem", None, None, address)
        ).text
    )
    (tmp_path / "junk.pem").write_text("junk")
    assert "not a PEM certificate" in failures(cert=tmp_path / "junk.pem")[0]
    assert (
        "not a private key without a password"
        in failures(cert=key_dir / "server.pem", key=_copy(tmp_path / "junk.pem"))[0]
    )


def _copy(path):
    path.chmod(0o600)
    return path


def test_expired_certificates(key_dir, tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    old = keys._certificate("x", key, "x", key, days=0, authority=True)
    (tmp_path / "old.pem").write_bytes(keys._pem(old))
    (line,) = failures(ca=tmp_path / "old.pem")
    assert "expired on" in line


def test_wrong_keys(key_dir, tmp_path):
    (key_dir / "node0").chmod(0o644)
    assert (
        "other users can read this private key; chmod 600"
        in failures(node_key=key_dir / "node0")[0]
    )
    (key_dir / "node0").chmod(0o600)
    assert failures(node_key=key_dir / "node0") == []
    (key_dir / "node0.pub").write_bytes((key_dir / "node1.pub").read_bytes())
    assert "does not belong to" in failures(node_key=key_dir / "node0")[0]
    assert "not an OpenSSH private key" in failures(node_key=key_dir / "server.key")[0]
    assert (key_dir / "ca.key").stat().st_mode & 0o077 == 0
    with pytest.raises(fp.InputError, match="keys are never overwritten"):
        create_keys(key_dir, hosts=["localhost"], nodes=1)


def test_a_wrong_path_is_missing_and_advises_no_new_keys(key_dir, tmp_path, run):
    for option in ("ca", "cert", "node_key"):
        (line,) = failures(**{option: key_dir / "nothing"})
        assert (
            f"{key_dir / 'nothing'}: there is no such file; {key_dir} holds ca.key, ca.pem" in line
        )
        assert "create" not in line
    (line,) = failures(cert=key_dir / "server.pem", key=tmp_path / "none" / "server.key")
    assert f"none/server.key: there is no such file; there is no directory {tmp_path}/none" in line
    words = ("--ca", str(key_dir / "server.pem"), "--node-key", "keys/nod0", "--data", "x.csv")
    code, out, _ = run("deploy", "check", *words, "--superlink", "fl", "--app", "nowhere")
    assert code == 1
    results = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [word for word, text in results if "not a certificate authority" in text] == ["FAILED"]
    for name in ("keys/nod0", "x.csv", "config.toml", "nowhere/pyproject.toml"):
        assert [word for word, text in results if f"{name}: there is" in text] == ["MISSING"], name
    assert {word for word, _ in results} == {"ok", "FAILED", "MISSING"}


def test_wrong_environments(key_dir, tmp_path, monkeypatch):
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED")
    assert "telemetry is on; export FLWR_TELEMETRY_ENABLED=0" in failures()[0]
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("PATH", "/usr/bin")
    assert "is not in PATH, and Flower starts its programs by name" in failures()[0]
    monkeypatch.setattr(preflight, "MINIMUM_FLOWER", (99, 0))
    assert "is installed; install 'fedpage[flower]'" in failures()[0]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert any("NUMBA_CACHE_DIR=/a/writable/directory" in line for line in failures())


def test_wrong_connections(key_dir, tmp_path):
    home = tmp_path / "flwr"
    assert "there is no such file" in failures(superlink="x")[0]
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink.a]\naddress = "h:1"\ninsecure = true\n[superlink.b]\naddress = "h:1"\n'
    )
    assert "there is no [superlink.x]; the file has a, b" in failures(superlink="x")[0]
    assert "[superlink.a] is insecure; give root-certificates instead" in failures(superlink="a")[0]
    assert "needs an address and root-certificates that exist" in failures(superlink="b")[0]


def test_wrong_apps_and_data(key_dir, tmp_path, run):
    assert run("deploy", "init", "app")[0] == 0
    path = tmp_path / "app" / "pyproject.toml"
    assert failures(app=path.parent) == []
    text = path.read_text()
    path.write_text(text.replace('method = "fedpage"', 'method = "fedpag"'))
    assert "did you mean 'fedpage'" in failures(app=path.parent)[0]
    path.write_text(text.replace("fedpage.flower.client_app:app", "mine:app"))
    assert "the clientapp is not fedpage's" in failures(app=path.parent)[0]
    path.write_text(text + "[")
    assert "not TOML" in failures(app=path.parent)[0]
    (tmp_path / "x.csv").write_text("a,b\n1,2\n1\n")
    assert "row 3: it has 1 cells" in failures(data=tmp_path / "x.csv")[0]
    code, _, err = run("deploy", "init", "app")
    assert (code, err) == (
        2,
        "fedpage: app/pyproject.toml: exists already; choose another directory\n",
    )


def test_exit_codes(key_dir, run, monkeypatch):
    assert run("deploy", "check", "--ca", str(key_dir / "ca.pem"))[0] == 0
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


def test_nothing_is_insecure_by_default():
    for path in [*(ROOT / "examples").rglob("*"), *(ROOT / "src").rglob("*.py")]:
        if path.is_file() and path.suffix in (".py", ".toml", ".md", ".sh"):
            text = path.read_text(encoding="utf-8")
            where = text.count("--insecure")
            # Used if a caller leaves TLS out, and for Flower's simulation, which has no network.
            assert where == (2 if path.name == "local_federation.py" else 0), path


def test_init_writes_an_app_with_settings(key_dir, tmp_path, run):
    words = ("--set", "method=scaffold", "--set", "hyper=S=2 K=5", "--set", "target=accuracy:0.9")
    assert run("deploy", "init", "app", *words, "--set", "rounds=7")[0] == 0
    assert failures(app=tmp_path / "app") == []
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    config = parse_app_config(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    assert (config.method, config.hyper, config.rounds) == ("scaffold", "S=2 K=5", 7)
    assert config.target == "accuracy:0.9"
    assert "# rounds between evaluations" in text
    for change, message in (
        ("rounds", "--set: expected a setting such as rounds=50, not 'rounds'"),
        ("ruonds=5", "--set: unknown key 'ruonds'; did you mean 'rounds'?"),
        ("rounds=many", "--set: rounds must be a whole number of at least 1, not 'many'"),
        ("method=fedpag", "did you mean 'fedpage'?"),
    ):
        code, _, err = run("deploy", "init", "other", "--set", change)
        assert code == 2
        assert message in err
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("hyper=S=5 K=2", "cannot sample S=5 of N=4 clients; choose S of at most 4"),
        ("aggregation=trimed:share=0.1", "did you mean 'trimmed'?"),
        ("aggregation=private:clip=1,noise=1", "FedPAGE needs the mean of the replies"),
        ("objective=logistc-l2", "did you mean 'logistic-l2'?"),
        ("metrics=acuracy", "did you mean 'accuracy'?"),
        ("target=0,01", "target: expected a number"),
        ("min-clients=9", "min-clients is larger than clients"),
    ],
)
def test_an_app_is_checked_as_a_run_would_check_it(key_dir, tmp_path, run, change, words):
    code, _, err = run("deploy", "init", "app", "--set", change)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "app").exists()
    assert run("deploy", "init", "app")[0] == 0
    path = tmp_path / "app" / "pyproject.toml"
    key, _, value = change.partition("=")
    path.write_text(
        re.sub(rf"(?m)^{key} = (\"[^\"]*\"|\d+)", _assign(key, value), path.read_text())
    )
    (line,) = failures(app=tmp_path / "app")
    assert words in line


def _assign(key, value):
    return f"{key} = {value}" if value.isdigit() else f'{key} = "{value}"'


SITE = ("data=", "clients=2", "label=sick", "classes=0,1", "columns=age,bmi", "method=fedavg")


@pytest.fixture
def compare_site(key_dir, tmp_path, run):
    """Compare a site's table with an app; returns what failed."""

    def compare(table, *settings, node="", ok=""):
        options = [word for each in (*SITE, "hyper=S=2", *settings) for word in ("--set", each)]
        shutil.rmtree(tmp_path / "app", ignore_errors=True)
        assert run("deploy", "init", "app", *options)[0] == 0
        (tmp_path / "site.csv").write_text(table)
        text = f'partition-id=0 data="{tmp_path / "site.csv"}" client-state-dir="{tmp_path}/s" '
        findings = list(preflight.run_checks(app=tmp_path / "app", node_config=text + node))
        assert ok in "\n".join(finding.text for finding in findings if finding.ok)
        return [f"{each.word}: {each.text}; {each.advice}" for each in findings if not each.ok]

    return compare


def test_a_site_is_compared_with_the_app(compare_site, tmp_path):
    sound = "bmi,sick,age\n20.5,1,40\n30,0,50\n"
    fits = "fits the app: 2 rows, 2 features, labels 0, 1"
    assert compare_site(sound, ok=fits) == []
    (line,) = compare_site(sound.replace("bmi", "weight"))
    assert line.startswith(
        f"FAILED: {tmp_path}/site.csv: its columns are not those of the app; missing: 'bmi'; "
        "extra: 'weight'; correct the file, or agree on columns"
    )
    more = "bmi,sick,age,name\n20.5,1,40,x\n30,0,50,y\n"
    assert "; extra: 'name';" in compare_site(more)[0]
    assert compare_site(more, "extra-columns=ignore", ok=fits) == []
    (line,) = compare_site(sound.replace("30,0", "30,2"))
    assert "row 2 of the data has the label 2.0, which is not one of 0, 1" in line
    assert compare_site(sound, "columns=", ok="so every site needs the same ones") == []
    assert "share-statistics=true" in compare_site(sound, "standardise=true")[0]
    assert compare_site(sound, "standardise=true", node="share-statistics=true", ok=fits) == []
    (line,) = compare_site(sound, node='evaluation="values"')
    assert 'the run has evaluation = "gradients", and this node at most "values"' in line
    assert "has no secure aggregation" in compare_site(sound, node="require-secure=2")[0]


def test_checking_a_site_executes_nothing_that_its_owner_did_not_allow(compare_site, tmp_path):
    table = "bmi,sick,age\n20.5,1,40\n30,0,50\n"
    compare_site(table)
    (tmp_path / "own.py").write_text("open('executed', 'w').close()\n")
    path = tmp_path / "app" / "pyproject.toml"
    path.write_text(path.read_text().replace('method = "fedavg"', 'method = "own.py@Own"'))
    for config in (f'partition-id=0 data="{tmp_path / "site.csv"}"', 'partition-id="'):
        assert failures(app=path.parent, node_config=config)
        assert not (tmp_path / "executed").exists()
    assert failures(app=path.parent)  # on the server its operator chose the file
    assert (tmp_path / "executed").exists()


def test_node_configs_are_checked(key_dir, tmp_path):
    (tmp_path / "node.svm").write_text("1 1:2\n-1 3:1\n")
    state = tmp_path / "state"
    text = f'partition-id=1 data="{tmp_path / "node.svm"}" client-state-dir="{state}"'
    allowed = ' allow="digits:problem" evaluation="values"'
    findings = list(preflight.run_checks(node_config=text + allowed))
    assert [finding for finding in findings if not finding.ok] == []
    words = "\n".join(finding.text for finding in findings)
    assert "client 1; runs may name digits:problem beside fedpage's own" in words
    assert "send at most values" in words
    assert "2 rows, 3 features" in words
    assert f"{state}: will be created" in words
    assert f"{state / 'audit.jsonl'}: the audit log" in words
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    assert f"other users can enter it; chmod 700 {state}" in failures(node_config=text)[0]
    state.chmod(0o700)
    assert failures(node_config=text) == []
    assert "the audit log is off" in failures(node_config=f'{text} audit="off"')[0]
    assert "did you mean 'data'" in failures(node_config='partition-id=0 dta="x"')[0]
    assert "'partition-id' is missing" in failures(node_config='data="x"')[0]
    assert "--node-config: cannot be read" in failures(node_config='partition-id="')[0]
    assert "text in quotes" in failures(node_config="partition-id=0 data=/data/x.csv")[0]
    (tmp_path / "file").write_text("")
    bad = text.replace(str(state), str(tmp_path / "file"))
    assert "not a directory that this user can write" in failures(node_config=bad)[0]
