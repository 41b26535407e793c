"""`fedpage deploy`: the keys and apps that it writes, and the checks before a deployment."""

import contextlib
import http.server
import os
import re
import shutil
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
SITE = ("data=", "clients=2", "label=sick", "classes=0,1", "columns=age,bmi", "method=fedavg")
TABLE = "bmi,sick,age\n20.5,1,40\n30,0,50\n"


@pytest.fixture
def key_dir(tmp_path, monkeypatch):
    """Create keys for 127.0.0.1, in an environment that passes every check."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    create_keys(tmp_path / "keys", hosts=["localhost", "127.0.0.1"], nodes=2)
    return tmp_path / "keys"


@pytest.fixture
def other_keys(tmp_path):
    create_keys(tmp_path / "other", hosts=["example.org"], nodes=1)
    return tmp_path / "other"


def failures(**options):
    """Return the failed checks."""
    findings = preflight.run_checks(**options)
    return [f"{finding.text}; {finding.advice}" for finding in findings if not finding.ok]


@pytest.fixture
def init(run, tmp_path):
    """Return a function that writes an app with some settings anew."""

    def write(*settings):
        shutil.rmtree(tmp_path / "app", ignore_errors=True)
        words = [word for each in settings for word in ("--set", each)]
        code, _, err = run("deploy", "init", "app", *words)
        return code, err, tmp_path / "app" / "pyproject.toml"

    return write


@contextlib.contextmanager
def listening(folder=None):
    """Listen on 127.0.0.1, with TLS if the keys of a folder are given; yield the address."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        if folder is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_all_checks_pass(key_dir, tmp_path):
    (tmp_path / "flwr").mkdir()
    with listening(key_dir) as server:
        (tmp_path / "flwr" / "config.toml").write_text(
            f'[superlink.here]\naddress = "{server}"\nroot-certificates = "{key_dir / "ca.pem"}"\n'
        )
        (tmp_path / "node.svm").write_text("1 1:2\n-1 3:1\n")
        findings = list(preflight.run_checks(
            app=ROOT / "examples" / "flower", ca=key_dir / "ca.pem", cert=key_dir / "server.pem",
            key=key_dir / "server.key", node_key=key_dir / "node1", address=server,
            superlink="here", data=tmp_path / "node.svm",
        ))  # fmt: skip
    assert [finding for finding in findings if not finding.ok] == []
    text = " ".join(finding.text for finding in findings)
    assert "TLSv1.3, certificate verified" in text
    assert "2 rows, 3 features, labels -1,1" in text
    assert "FedPAGE over 4 clients, 20 rounds" in text


# Keys, addresses and the environment


def test_addresses_and_authorities(key_dir, other_keys):
    with listening(key_dir) as server, listening() as plain:
        (wrong,) = failures(address=server, ca=other_keys / "ca.pem")
        assert "give nodes the ca.pem that was created with server.pem" in wrong
        (mute,) = failures(address=plain, ca=key_dir / "ca.pem")
        assert "does not speak TLS; start flower-superlink with --ssl-certfile" in mute
        gone = server
    (unreachable,) = failures(address=gone, ca=key_dir / "ca.pem")
    assert "cannot be reached (Connection refused); check that flower-superlink runs" in unreachable
    for address in ("nowhere", "127.0.0.1:", ":80", "127.0.0.1:99999999"):
        assert len(failures(address=address)) == 1


WRONG_KEYS: dict[str, tuple[dict[str, str], str]] = {
    "no authority": ({"ca": "keys/server.pem"}, "not a certificate authority"),
    "another issuer": ({"ca": "keys/ca.pem", "cert": "other/server.pem"}, "not issued by"),
    "another key": ({"cert": "keys/server.pem", "key": "other/server.key"}, "does not belong to"),
    "no certificate": ({"cert": "junk"}, "not a PEM certificate"),
    "no key": ({"cert": "keys/server.pem", "key": "junk"}, "not a private key without a password"),
    "another kind": ({"node_key": "keys/server.key"}, "not an OpenSSH private key"),
    "open": ({"node_key": "open"}, "other users can read this private key; chmod 600"),
    "another pair": ({"node_key": "mixed"}, "does not belong to"),
    "expired": ({"ca": "old.pem"}, "expired on"),
    "gone": ({"ca": "keys/nothing"}, "keys/nothing: there is no such file; "),
    "gone too": ({"node_key": "keys/nothing"}, "/keys holds ca.key, ca.pem"),
    "no directory": ({"cert": "keys/server.pem", "key": "none/x"}, "there is no directory"),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_wrong_keys(key_dir, other_keys, tmp_path, case):
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    old = keys._certificate("x", key, "x", key, days=0, authority=True)
    (tmp_path / "old.pem").write_bytes(keys._pem(old))
    for name, first, second in (("open", "node0", "node0"), ("mixed", "node0", "node1")):
        shutil.copy2(key_dir / first, tmp_path / name)
        shutil.copy2(key_dir / f"{second}.pub", tmp_path / f"{name}.pub")
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "junk").chmod(0o600)
    (tmp_path / "open").chmod(0o644)
    given, words = WRONG_KEYS[case]
    line = failures(**{name: tmp_path / path for name, path in given.items()})[0]
    assert words in line
    assert "no such file" not in line or "create" not in line
    assert failures(node_key=key_dir / "node0") == []


def test_keys_are_for_their_hosts_and_never_overwritten(key_dir):
    check = check_server_certificate
    found = run_check(lambda: check(key_dir / "server.pem", None, None, "10.1.2.3:8000"))
    assert "valid for 127.0.0.1, localhost, not for 10.1.2.3" in found.text
    assert (key_dir / "ca.key").stat().st_mode & 0o077 == 0
    with pytest.raises(fp.InputError, match="keys are never overwritten"):
        create_keys(key_dir, hosts=["localhost"], nodes=1)


def test_missing_files_are_not_failures_and_have_an_exit_code(key_dir, run):
    assert run("deploy", "check", "--ca", str(key_dir / "ca.pem"))[0] == 0
    words = ("--ca", str(key_dir / "server.pem"), "--node-key", "keys/nod0", "--data", "x.csv")
    code, out, _ = run("deploy", "check", *words, "--superlink", "fl", "--app", "nowhere")
    assert code == 1
    results = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [word for word, text in results if "not a certificate authority" in text] == ["FAILED"]
    for name in ("keys/nod0", "x.csv", "config.toml", "nowhere/pyproject.toml"):
        assert [word for word, text in results if f"{name}: there is" in text] == ["MISSING"], name
    assert {word for word, _ in results} == {"ok", "FAILED", "MISSING"}
    code, out, _ = run("deploy", "keys", "k", "--host", "example.org", "--nodes", "3")
    assert code == 0
    assert "node2.pub" in out
    assert run("deploy", "keys", "k")[0] == 2
    assert run("deploy", "demo", "--nodes", "0")[0] == 2


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
    assert "there is no such file" in failures(superlink="x")[0]
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        '[superlink.a]\naddress = "h:1"\ninsecure = true\n[superlink.b]\naddress = "h:1"\n'
    )
    assert "there is no [superlink.x]; the file has a, b" in failures(superlink="x")[0]
    assert "[superlink.a] is insecure; give root-certificates instead" in failures(superlink="a")[0]
    assert "needs an address and root-certificates that exist" in failures(superlink="b")[0]


# Apps


def test_the_example_is_the_app_that_init_writes_and_nothing_is_insecure_by_default():
    mine = (ROOT / "src" / "fedpage" / "flower" / "app.toml").read_text(encoding="utf-8")
    assert (ROOT / "examples" / "flower" / "pyproject.toml").read_text(encoding="utf-8") == mine
    for path in [*(ROOT / "examples").rglob("*"), *(ROOT / "src").rglob("*.py")]:
        if path.is_file() and path.suffix in (".py", ".toml", ".md", ".sh"):
            found = path.read_text(encoding="utf-8").count("--insecure")
            # Used if a caller leaves TLS out, and for Flower's simulation, which has no network.
            assert found == (2 if path.name == "local_federation.py" else 0), path


def test_init_writes_an_app_with_settings(key_dir, init):
    code, _, path = init("method=scaffold", "hyper=S=2 K=5", "target=accuracy:0.9", "rounds=7")
    assert code == 0
    assert failures(app=path.parent) == []
    text = path.read_text()
    config = parse_app_config(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    assert (config.method, config.hyper, config.rounds) == ("scaffold", "S=2 K=5", 7)
    assert config.target == "accuracy:0.9"
    assert "# rounds between evaluations" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rounds", "--set: expected a setting such as rounds=50, not 'rounds'"),
        ("ruonds=5", "--set: unknown key 'ruonds'; did you mean 'rounds'?"),
        ("rounds=many", "--set: rounds must be a whole number of at least 1, not 'many'"),
        ("method=fedpag", "did you mean 'fedpage'?"),
        ("hyper=S=5 K=2", "cannot sample S=5 of N=4 clients; choose S of at most 4"),
        ("aggregation=trimed:share=0.1", "did you mean 'trimmed'?"),
        ("aggregation=private:clip=1,noise=1", "FedPAGE needs the mean of the replies"),
        ("objective=logistc-l2", "did you mean 'logistic-l2'?"),
        ("metrics=acuracy", "did you mean 'accuracy'?"),
        ("target=0,01", "target: expected a number"),
        ("min-clients=9", "min-clients is larger than clients"),
    ],
)
def test_an_app_is_checked_as_a_run_would_check_it(key_dir, init, change, words):
    code, err, path = init(change)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not path.exists()
    if words.startswith("--set"):
        return
    path = init()[2]
    key, _, value = change.partition("=")
    line = f"{key} = {value}" if value.isdigit() else f'{key} = "{value}"'
    path.write_text(re.sub(rf"(?m)^{key} = (\"[^\"]*\"|\d+)", line, path.read_text()))
    (line,) = failures(app=path.parent)
    assert words in line


def test_wrong_apps_and_data(key_dir, tmp_path, run, init):
    path = init()[2]
    assert failures(app=path.parent) == []
    text = path.read_text()
    path.write_text(text.replace("fedpage.flower.client_app:app", "mine:app"))
    assert "the clientapp is not fedpage's" in failures(app=path.parent)[0]
    path.write_text(text + "[")
    assert "not TOML" in failures(app=path.parent)[0]
    (tmp_path / "x.csv").write_text("a,b\n1,2\n1\n")
    assert "row 3: it has 1 cells" in failures(data=tmp_path / "x.csv")[0]
    code, _, err = run("deploy", "init", "app")
    assert code == 2
    assert err == "fedpage: app/pyproject.toml: exists already; choose another directory\n"


# Sites


@pytest.mark.parametrize(
    ("old", "new", "settings", "node", "words"),
    [
        ("", "", (), "", ""),
        ("bmi", "weight", (), "", "missing: 'bmi'; extra: 'weight'; correct the file"),
        ("age", "age,name", (), "", "; extra: 'name';"),
        ("age", "age,name", ("extra-columns=ignore",), "", ""),
        ("30,0", "30,2", (), "", "row 2 of the data has the label 2.0, which is not one of 0, 1"),
        ("", "", ("columns=",), "", ""),
        ("", "", ("standardise=true",), "", "share-statistics=true"),
        ("", "", ("standardise=true",), "share-statistics=true", ""),
        ("", "", (), 'evaluation="values"', 'the run has evaluation = "gradients", and this node'),
        ("", "", (), "require-secure=2", "has no secure aggregation"),
    ],
)
def test_a_site_is_compared_with_the_app(key_dir, tmp_path, init, old, new, settings, node, words):
    app = init(*SITE, "hyper=S=2", *settings)[2].parent
    table = TABLE.replace(old, new) if old else TABLE
    if "name" in new:
        table = table.replace("40", "40,x").replace("50", "50,y")
    (tmp_path / "site.csv").write_text(table)
    text = f'partition-id=0 data="{tmp_path / "site.csv"}" client-state-dir="{tmp_path}/s" {node}'
    findings = list(preflight.run_checks(app=app, node_config=text))
    found = [f"{each.text}; {each.advice}" for each in findings if not each.ok]
    if words:
        assert words in found[0]
        assert {each.word for each in findings if not each.ok} == {"FAILED"}
    else:
        assert found == []
        fits = "so every site needs the same" if "columns=" in settings else "fits the app: 2 rows"
        assert fits in "\n".join(each.text for each in findings)


def test_checking_a_site_executes_nothing_that_its_owner_did_not_allow(key_dir, tmp_path, init):
    path = init(*SITE, "hyper=S=2")[2]
    (tmp_path / "site.csv").write_text(TABLE)
    (tmp_path / "own.py").write_text("open('executed', 'w').close()\n")
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
    found = "\n".join(finding.text for finding in findings)
    for words in (
        "client 1; runs may name digits:problem beside fedpage's own", "send at most values",
        "2 rows, 3 features", f"{state}: will be created",
        f"{state / 'audit.jsonl'}: the audit log",
    ):  # fmt: skip
        assert words in found
    state.mkdir()
    state.chmod(0o755)
    assert f"other users can enter it; chmod 700 {state}" in failures(node_config=text)[0]
    state.chmod(0o700)
    assert failures(node_config=text) == []
    (tmp_path / "file").write_text("")
    for config, words in (
        (f'{text} audit="off"', "the audit log is off"),
        ('partition-id=0 dta="x"', "did you mean 'data'"),
        ('data="x"', "'partition-id' is missing"),
        ('partition-id="', "--node-config: cannot be read"),
        ("partition-id=0 data=/data/x.csv", "text in quotes"),
        (text.replace(str(state), str(tmp_path / "file")), "not a directory that this user can"),
    ):
        assert words in failures(node_config=config)[0]
