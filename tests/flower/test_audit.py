"""The audit log of a node: complete, chained, written by several processes, and never left out."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from faults import REQUEST, ask, refusal
from flwr.app import ConfigRecord, RecordDict

from fedpage.flower import audit, messages

ENTRY = audit.AuditEntry(
    time="2026-01-01T00:00:00.000+00:00", flower_run="1", node="2", run="r", app="a", fab="",
    method="fedpage", message="train.client", round=3, bytes=10, digest="d",
)  # fmt: skip


@pytest.fixture
def node(tmp_path):
    return {"client-state-dir": str(tmp_path / "state")}


@pytest.fixture
def log(tmp_path):
    return tmp_path / "state" / "audit.jsonl"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes entries to a log and returns its path."""

    def append(count):
        for _ in range(count):
            audit.append(tmp_path / "logs" / "audit.jsonl", ENTRY)
        return tmp_path / "logs" / "audit.jsonl"

    return append


def test_a_reply_is_entered_with_its_bytes_and_their_digest(config, node, log):
    reply = ask(node, config, header=REQUEST._replace(round=4)._asdict())
    (entry,) = audit.verify(log).entries
    header, array = dict(reply.content["header"]), reply.content["arrays"]["g"]
    text = json.dumps(header, sort_keys=True).encode()
    assert entry.bytes == len(array.data) + len(text)
    assert entry.digest == messages.digest_content(reply.content)[1]
    assert (entry.flower_run, entry.run, entry.round) == ("7", "r", 4)
    assert (entry.method, entry.message) == ("fedpage", messages.TRAIN)
    assert entry.app == audit.code_digest()
    assert entry.code == entry.reference == ""
    assert entry.previous == audit.FIRST
    assert stat.S_IMODE(log.stat().st_mode) == 0o600 or os.name != "posix"


def test_the_digest_tells_any_two_replies_apart():
    arrays = {"g": np.arange(3.0)}
    header = messages.TrainReply(0, 1, 2, 3)
    first, same, *others = [
        messages.digest_content(content)
        for content in (
            messages.encode_arrays(arrays, header),
            messages.encode_arrays(arrays, header),
            messages.encode_arrays({"h": np.arange(3.0)}, header),
            messages.encode_arrays({"g": np.array([0.0, 1.0, 2.0000000001])}, header),
            messages.encode_arrays(arrays, header._replace(gradients=4)),
            messages.encode_header(header),
        )
    ]
    assert first == same
    assert first not in others
    with pytest.raises(messages.ProtocolError, match="has no record 'more'"):
        messages.digest_content(RecordDict({"more": ConfigRecord({})}))


def test_a_refusal_is_entered_with_its_code_and_reference(config, node, log):
    found = refusal(ask(node, config, header=REQUEST._replace(client=1)._asdict()))
    (entry,) = audit.verify(log).entries
    assert (entry.code, entry.reference) == ("protocol", found.reference)


def test_every_message_of_a_run_is_entered(federate, tmp_path):
    strategy = federate(method="scaffold", hyper="S=3 K=2", rounds=3)
    found = audit.verify(tmp_path / "client-state" / "audit.jsonl")
    assert found.problems == []
    assert [entry.message for entry in found.entries] == [kind for _, kind in strategy.grid.sent]
    up = sum(entry.bytes for entry in found.entries if entry.message == messages.TRAIN)
    assert up > strategy.history.last("bytes_up")
    # Descriptions come before the run has a name; a resumed run has a new number of Flower.
    assert "" in {entry.run for entry in found.entries}
    again = [replace(entry, flower_run="8") for entry in found.entries]
    alone = replace(ENTRY, flower_run="9876543210", run="")
    *names, last = audit.name_runs([*found.entries, *again, alone])
    assert len(set(names)) == 1
    assert last == "98765432"


@pytest.mark.parametrize("what", ["a directory", "a full disk", "a torn write", "no permission"])
def test_nothing_leaves_a_node_whose_log_cannot_be_written(
    what, config, node, log, monkeypatch, node_log
):
    ask(node, config)
    before = log.read_bytes()
    if what == "a directory":
        log.unlink()
        log.mkdir()
    elif what == "no permission":
        log.chmod(0o666)
    elif what == "a full disk":
        monkeypatch.setattr(os, "fsync", _no_space)
    else:
        write = os.write
        monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:20]))
    reply = ask(node, config)
    assert refusal(reply).code == "audit"
    assert set(reply.content) == {"header"}
    assert "audit log cannot be written" in node_log(refusal(reply).reference)
    if log.is_file():
        assert log.read_bytes() == before


def _no_space(handle):
    raise OSError(28, "No space left on device")


def test_the_owner_chooses_the_file_or_turns_the_log_off(config, node, log, tmp_path):
    ask(node | {"audit": "off"}, config)
    assert not log.exists()
    ask(node | {"audit": str(tmp_path / "logs" / "mine.jsonl")}, config)
    assert not log.exists()
    assert len(audit.verify(tmp_path / "logs" / "mine.jsonl").entries) == 1


def _edit(line):
    return line.replace(b'"bytes": 10', b'"bytes": 11')


DAMAGE = {
    "an edited line": (4, lambda lines: [*lines[:2], _edit(lines[2]), *lines[3:]]),
    "a removed line": (3, lambda lines: lines[:2] + lines[3:]),
    "a removed first line": (1, lambda lines: lines[1:]),
    "an inserted line": (3, lambda lines: [*lines[:2], lines[1], *lines[2:]]),
    "exchanged lines": (2, lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]),
    "a torn line": (3, lambda lines: [*lines[:2], lines[2][:50], *lines[3:]]),
    "a list": (3, lambda lines: [*lines[:2], b"[1]", *lines[3:]]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_changed_log_is_noticed(name, write, run):
    path = write(5)
    code, out, _ = run("deploy", "audit", str(path))
    assert code == 0
    last = audit.verify(path).last
    assert f"5 replies, 50 bytes; last digest {last}" in out
    lines = path.read_bytes().splitlines()
    number, damage = DAMAGE[name]
    path.write_bytes(b"".join(line + b"\n" for line in damage(lines)))
    assert audit.verify(path).problems
    code, out, err = run("deploy", "audit", str(path))
    assert code == 1
    assert f"audit.jsonl, line {number}: " in out
    assert "Traceback" not in err


def test_lines_cut_off_at_the_end_change_the_last_digest(write):
    path = write(3)
    noted = audit.verify(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    cut = audit.verify(path)
    assert cut.problems == []
    assert cut.last != noted.last


def test_after_a_crash_the_log_continues_and_the_incomplete_line_is_named(write):
    path = write(2)
    path.write_bytes(path.read_bytes()[:-30])
    found = audit.verify(write(2))
    assert found.problems == ["line 2: not an entry; a crash leaves an incomplete line"]
    assert len(found.entries) == 3


def test_processes_that_write_at_once_do_not_tear_the_log(tmp_path):
    path = tmp_path / "logs" / "audit.jsonl"
    program = (
        "import sys; from pathlib import Path; from fedpage.flower import audit\n"
        "from dataclasses import replace\n"
        f"entry = audit.{ENTRY!r}\n"
        "for i in range(25): audit.append(Path(sys.argv[1]), replace(entry, node=sys.argv[2]))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(i)]) for i in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = audit.verify(path)
    assert found.problems == []
    assert sorted(entry.node for entry in found.entries) == sorted("0123" * 25)


def test_the_app_that_flower_installed_is_named(monkeypatch):
    assert audit.installed_app() == ""
    name = "fedpage.fedpage-app.1.0.0.1a2b3c4d"
    monkeypatch.setattr(sys, "path", [*sys.path, f"/home/site/.flwr/apps/{name}"])
    assert audit.installed_app() == name


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,4\n", "{}\n{}\n", '"x"\n', "\0\n"])
def test_a_file_that_is_no_audit_log_is_refused_in_one_line(text, tmp_path, refused):
    refused(["deploy", "audit", str(tmp_path / "none.jsonl")], "none.jsonl: there is no such file")
    (tmp_path / "x.jsonl").write_text(text)
    refused(["deploy", "audit", "x.jsonl"], "x.jsonl: not an audit log; give a node's audit.jsonl")


def test_an_entry_with_values_of_other_types_is_named(write, run):
    path = write(1)
    with open(path, "a") as log:
        log.write(json.dumps(asdict(ENTRY) | {"time": 5}) + "\n")
    code, out, _ = run("deploy", "audit", str(path))
    assert code == 1
    assert "audit.jsonl, line 2: not an entry" in out
