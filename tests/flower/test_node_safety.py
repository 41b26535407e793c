"""What leaves a node when something is wrong there, and what a server cannot make a node do."""

import builtins
import dataclasses
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import REQUEST as ANY_REQUEST
from faults import ask, refusal
from flwr.app import Array, ConfigRecord, RecordDict
from localgrid import wire_bytes

from fedpage.flower import messages
from fedpage.flower.config import AppConfig
from fedpage.flower.exchange import content_of
from fedpage.flower.node_data import _load_node_data, load_own_problem
from fedpage.flower.node_errors import Code, NodeError, NodeRefused, refuse

CELL, LABEL, PATIENT = "41250.5", "31337.25", "Ada-Lovelace"
HEADER, WEIGHT = "hiv_status", "weight_kg"


@pytest.fixture
def site(tmp_path):
    """Return a function that writes a node's file, in a directory whose name reveals something."""

    def write(*rows, name="site.csv", header=f"{WEIGHT},{HEADER},y"):
        folder = tmp_path / PATIENT
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text("\n".join([header, *rows]) + "\n")
        return str(path)

    return write


@pytest.fixture
def settings(config):
    return config | {
        "data": "",
        "clients": 1,
        "objective": "logistic-l2",
        "label": "y",
        "classes": "0,1",
    }


REQUEST = ANY_REQUEST._replace(d=2)._asdict()
GOOD = ("50,1,1", "60,0,0")
ERRORS: dict[str, dict[str, Any]] = {
    "a bad cell": {"rows": ("50,1,1", f"{PATIENT},0,0"), "words": ["row 3"]},
    "an infinite cell": {"rows": ("50,1,1", "inf,0,0"), "words": ["site.csv"]},
    "a bad label": {"rows": (f"50,1,{LABEL}",), "words": [LABEL, "row 1"]},
    "no header": {"rows": (), "words": ["site.csv"]},
    "a missing file": {"data": f"/data/{PATIENT}/patients.csv", "words": [PATIENT, "patients.csv"]},
    "an unknown label column": {"rows": GOOD, "run": {"label": "outcome"}, "words": ["outcome"]},
    "a bad run config": {"rows": GOOD, "run": {"rounds": f"{CELL}"}, "words": ["rounds", CELL]},
    "an unknown key": {"rows": GOOD, "run": {PATIENT: 1}, "words": [PATIENT]},
    "a bad node config": {"node": {"partition-id": PATIENT}, "words": ["partition-id", PATIENT]},
    "a bad hyper-parameter": {"rows": GOOD, "run": {"hyper": f"S={CELL}"}, "words": [CELL]},
    "another number of features": {
        "rows": GOOD, "type": messages.TRAIN, "header": REQUEST | {"d": 3}, "words": ["2", "3"]
    },
    "lost state": {
        "rows": GOOD, "run": {"method": "scaffold", "hyper": "S=1 K=1"}, "type": messages.TRAIN,
        "header": REQUEST | {"message": "Controlled", "state_version": "4 Controlled"},
        "arrays": {"x": Array(np.zeros(2)), "c": Array(np.zeros(2))}, "words": ["round 4"],
    },
    "a malformed request": {
        "rows": GOOD, "type": messages.TRAIN, "header": {PATIENT: 1}, "words": ["header"],
    },
    "an unknown message": {"rows": GOOD, "type": "query.rows", "words": ["query.rows"]},
    "a broken objective": {
        "node": {"allow": "broken:problem"}, "run": {"objective": "broken:problem"},
        "words": [CELL, "Traceback"],
    },
    "an error that cannot be shown": {
        "node": {"allow": "broken:unprintable"}, "run": {"objective": "broken:unprintable"},
        "words": [],
    },
    "no memory": {
        "node": {"allow": "broken:memory"}, "run": {"objective": "broken:memory"},
        "words": ["1234567"],
    },
}  # fmt: skip
SECRETS = [CELL, LABEL, PATIENT, HEADER, WEIGHT, ".csv", "line ", "row ", "1234567,", "/data"]


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Make a user's objective importable whose exceptions quote a cell."""
    (tmp_path / "broken.py").write_text(
        "class Odd(Exception):\n"
        f"    def __str__(self): return 'the cell {CELL} of {PATIENT}'\n"
        "def problem(client, clients): raise Odd\n"
        "class Unprintable(Exception):\n"
        "    def __str__(self): raise self\n"
        "def unprintable(client, clients): raise Unprintable\n"
        "def memory(client, clients):\n"
        "    raise MemoryError('cannot allocate an array of shape (1234567,)')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    load_own_problem.cache_clear()
    yield
    load_own_problem.cache_clear()


@pytest.mark.parametrize("name", ERRORS)
def test_no_error_sends_anything_of_the_node(name, settings, site, node_log, broken, tmp_path):
    case = ERRORS[name]
    node = {"client-state-dir": str(tmp_path / "state")}
    if "rows" in case:
        node["data"] = site(*case["rows"])
    elif "data" in case:
        node["data"] = case["data"]
    reply = ask(
        node | case.get("node", {}), settings | case.get("run", {}),
        case.get("type", messages.DESCRIBE), case.get("header"),
        case.get("arrays", {"x": Array(np.zeros(2))}),
    )  # fmt: skip
    found = refusal(reply)
    assert found.missing == ('["outcome"]' if "outcome" in case["words"] else "")
    assert found.extra == ""
    # The reply's metadata repeats the type of the message, which the server chose.
    sent = wire_bytes(reply).decode("latin-1").replace(case.get("type", messages.DESCRIBE), "")
    for secret in [*SECRETS, str(tmp_path)]:
        assert secret not in sent, secret
    entry = node_log(found.reference)
    assert f"({found.code})" in entry
    assert [word for word in case["words"] if word not in entry] == []
    is_shown = "broken" in str(case) and name != "an error that cannot be shown"
    assert ("Traceback" in entry) == is_shown  # the code of a user failed


@pytest.mark.parametrize(
    "header",
    [
        {"code": "wicked"}, {"reference": "rm -rf /"}, {"missing": "rm,wicked"},
        {"extra": "[3]"}, {"extra": 3}, {"client": "wicked"},
    ],
)  # fmt: skip
def test_a_refusal_that_is_none_is_not_believed(header):
    valid = messages.Refusal("bad-label", "01234567", 0, "", "")._asdict()

    class Reply:
        content = RecordDict({"header": ConfigRecord(valid | header)})

        @staticmethod
        def has_error():
            return False

    with pytest.raises(messages.ProtocolError) as error:
        content_of(Reply())
    assert not isinstance(error.value, NodeRefused)
    assert "wicked" not in str(error.value)
    assert "rm" not in str(error.value)


def test_names_of_missing_and_extra_columns_reach_the_server():
    error = NodeError(Code.COLUMNS, f"no {HEADER}", missing=["bmi"], extra=["BMI", "\x1b[0m"])
    found = refuse(error, 3)
    assert HEADER not in str(found)
    text = str(NodeRefused(found))
    assert "; missing: 'bmi'; extra: 'BMI', '?[0m' (columns; details" in text
    for wicked in (
        "[1]",
        "[" * 10**5,
        "x" * 10**6,
        '["a","b","c","d","e","f","g","h","i","j","k"]',
    ):
        with pytest.raises(messages.ProtocolError):
            NodeRefused(found._replace(extra=wicked))


def test_the_documentation_explains_every_code():
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert [code for code in Code if f"| `{code.value}` | {code.sentence} |" not in text] == []


# --- what a server may name -----------------------------------------------------------------------


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Write a module that leaves a mark when it is executed, and watch what a node opens."""
    mark = tmp_path / "executed"
    name = f"evil_{secrets.token_hex(4)}"
    text = (
        f"open({str(mark)!r}, 'w').close()\n"
        "import fedpage as fp\n"
        "class E(fp.FedAvg): pass\n"
        "def problem(client, clients): raise RuntimeError\n"
    )
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    opened: list[str] = []
    original = builtins.open

    def watch(file, *args, **options):
        opened.append(str(file))
        return original(file, *args, **options)

    monkeypatch.setattr(builtins, "open", watch)
    monkeypatch.setattr(socket, "create_connection", _no_network)
    monkeypatch.setattr(socket.socket, "connect", _no_network)
    return path, mark, opened


def _no_network(*_, **__):
    raise AssertionError("a node opened a connection")


TEXT_KEYS = [
    field.name.replace("_", "-")
    for field in dataclasses.fields(AppConfig)
    if "str" in str(field.type) or "Literal" in str(field.type)
]


@pytest.mark.parametrize("key", TEXT_KEYS)
@pytest.mark.parametrize(
    "text",
    [
        "{path}@E", "{path}@E-l2", "{module}:problem", "{module}.problem", "{path}",
        "a9a:/../..{path}", "census:rows={path}", "http://127.0.0.1:9/x.csv", "builtins:print",
        "up={path}@E", "x={path}@E", "accuracy,{path}@E", "fedavg:up={path}@E", "~{path}",
    ],
)  # fmt: skip
def test_no_setting_makes_a_node_open_or_execute_what_its_owner_did_not_name(
    key, text, config, evil, tmp_path, capsys
):
    path, mark, opened = evil
    value = text.format(path=path, module=path.stem)
    if key == "hyper":
        value = f"S=1 eta_l={value} up={value}"
    state = {"client-state-dir": str(tmp_path / "state")}
    reply = ask(state, config | {"clients": 1, key: value})
    reply.content  # noqa: B018 - an answer or a refusal, never an exception
    assert not mark.exists(), "the file was executed"
    assert not any(str(path) in name for name in opened), "the file was opened"
    assert capsys.readouterr().out == "", "print was called"
    if key in ("method", "objective", "data"):
        expected = "bad-input" if value.startswith("census:") and key == "data" else "not-allowed"
        assert refusal(reply).code == expected


@pytest.mark.parametrize(
    ("key", "text"), [("method", "{path}@E"), ("objective", "{module}:problem")]
)
def test_what_the_owner_allows_is_executed(key, text, config, evil, tmp_path, monkeypatch):
    path, mark, _ = evil
    value = text.format(path=path, module=path.stem)
    settings = config | {"clients": 1, "hyper": "", key: value}
    state = {"client-state-dir": str(tmp_path / "state")}
    assert refusal(ask(state | {"allow": value + "x"}, settings)).code == "not-allowed"
    assert not mark.exists()
    ask(state | {"allow": f"other:problem, {value}"}, settings)
    assert mark.exists()
    mark.unlink()
    _load_node_data.cache_clear()
    load_own_problem.cache_clear()
    sys.modules.pop(path.stem, None)
    monkeypatch.setenv("FEDPAGE_ALLOW", value)
    ask(state, settings)
    assert mark.exists() or key == "method"  # the method is cached
