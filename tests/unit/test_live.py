"""Follow runs that are being written: their states, the terminal table, and the live report."""

from __future__ import annotations

import http.client
import json
import queue
import shutil
import subprocess
import threading
from urllib.parse import unquote

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report.live import LiveReport, LiveServer
from fedpage.report.watch import FollowedRun, RunFollower, RunState, sparkline
from fedpage.runs.lock import is_in_use
from fedpage.runs.store import RunStore


@pytest.fixture
def folder(tmp_path):
    """Two finished runs below a directory."""
    problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    fp.sweep(
        problem, [fp.FedAvg(S=2)], rounds=40, seeds=2, record_every=10, out=tmp_path / "all/runs"
    )
    return tmp_path / "all"


def cut(run, count):
    """Leave so many lines of a run's history, and return the others."""
    file = run / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:count]))
    return lines[count:]


def append(run, *lines):
    with open(run / "history.jsonl", "ab") as stream:
        stream.write(b"".join(lines))


def test_new_records_are_read_as_they_come(folder):
    path = folder / "runs" / "0-fedavg-seed0"
    whole = fp.History.load(path)
    rest = cut(path, 2)
    run = FollowedRun(path)
    assert run.poll()
    assert (run.round, run.rounds, len(run.history)) == (0, 40, 1)
    assert str(run.state) == "running"  # the file has just been written
    assert not run.poll()
    append(path, rest[0], rest[1][:20])  # half a line is left for the next time
    assert run.poll()
    assert run.round == 10
    assert not run.poll()
    append(path, rest[1][20:], *rest[2:])
    assert run.poll()
    assert str(run.state) == "finished"
    assert run.history.rows == whole.rows
    assert run.rate > 0


def test_a_file_that_is_cut_or_begun_again_is_read_anew(folder):
    path = folder / "runs" / "0-fedavg-seed0"
    run = FollowedRun(path)
    run.poll()
    rest = cut(path, 3)  # as a resumed run does
    assert run.poll()
    assert (run.round, run.state) == (10, RunState.RUNNING)
    cut(path, 1)
    other = json.loads(rest[0]) | {"loss": 7.0, "round": 5}
    append(path, json.dumps(other).encode() + b"\n", *rest)  # longer than what was read
    assert run.poll()
    assert run.history.rows[0]["loss"] == 7.0


def test_states_without_an_end(folder, monkeypatch):
    path = folder / "runs" / "0-fedavg-seed0"
    cut(path, 3)
    monkeypatch.setattr("fedpage.report.watch._FRESH", -1.0)  # as if it were written long ago
    run = FollowedRun(path)
    run.poll()
    assert str(run.state) == "stale"
    with RunStore(path):
        assert is_in_use(path)
        assert str(run.state) == "running"
    assert not is_in_use(path)
    append(path, b"[]\n")
    run.poll()
    assert str(run.state) == "unreadable"
    assert "line 4: not a line of a fedpage history" in run.error


def test_runs_are_found_at_any_depth(folder, tmp_path):
    follower = RunFollower(folder)
    assert follower.poll()
    assert list(follower.runs) == ["runs/0-fedavg-seed0", "runs/0-fedavg-seed1"]
    assert not follower.poll()
    (folder / "runs" / "0-fedavg-seed1" / "history.jsonl").unlink()
    assert follower.poll()
    assert len(follower.runs) == 1
    with pytest.raises(InputError, match="is not a directory"):
        RunFollower(tmp_path / "nothing")


def test_sparkline():
    assert sparkline(range(160), 4) == "▁▃▆█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([1.0, float("nan"), 0.0]) == "█x▁"
    assert sparkline([float("inf")]) == "x"


def test_watch_once(run, refused, folder):
    code, out, _ = run("watch", str(folder), "--once")
    assert code == 0
    assert "2 finished" in out
    assert "0-fedavg-seed1" in out
    assert "40/40" in out
    assert "gradient norm" in out
    assert "loss" in run("watch", str(folder), "--once", "--column", "loss")[1]
    code, out, _ = run("watch", str(folder), "--json")
    first = json.loads(out)["runs"][0]
    assert (first["run"], first["state"], first["round"]) == ("runs/0-fedavg-seed0", "finished", 40)
    assert first["last"]["round"] == 40
    refused(["watch", "nowhere", "--once"], "nowhere: is not a directory")
    refused(["serve", "nowhere"], "nowhere: is not a directory")


@pytest.fixture
def server(folder):
    with LiveServer(LiveReport(folder), interval=0.05) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def ask(server):
    """Send a request, and close its connection at the end of the test."""
    opened = []

    def send(method="GET", path="/", host=None):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
        opened.append(connection)
        connection.request(method, path, headers={} if host is None else {"Host": host})
        opened.append(answer := connection.getresponse())
        return answer

    yield send
    for connection in opened:
        connection.close()


def test_the_page_is_served(ask):
    answer = ask()
    text = answer.read().decode()
    assert answer.status == 200
    assert 'data-events="events"' in text
    assert "on census, blocks, N = 20</h2>" in text
    assert answer.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    head = ask("HEAD")
    assert (head.status, head.read()) == (200, b"")


def test_an_event_follows_a_new_record(ask, server, folder):
    path = folder / "runs" / "0-fedavg-seed0"
    rest = cut(path, 3)
    server.report.poll()
    assert "<td>10</td>" in ask().read().decode()
    stream = ask(path="/events")
    assert stream.headers["Content-Type"] == "text/event-stream"
    assert stream.readline() == b"retry: 2000\n"
    append(path, *rest)
    lines = [stream.readline() for _ in range(3)]
    assert lines[1] == b"event: change\n"
    assert "<td>10</td>" not in ask().read().decode()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(ask, method):
    assert ask(method).status == 501


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/x", "/runs/", "/history.jsonl", "/?x", "*"]
)
def test_other_paths_are_not_served(ask, path):
    assert ask(path=path).status == 404


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:80", "127.0.0.1.example.org", "", "["]
)
def test_other_hosts_are_refused(ask, host):
    assert ask(host=host).status == 403
    assert ask(path="/events", host=host).status == 403


def test_local_names_are_served(ask):
    for host in ("localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.1"):
        assert ask(host=host).status == 200


def test_other_addresses_are_refused(folder, server):
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(InputError, match=r"127\.0\.0\.1 or ::1 only"):
        LiveServer(LiveReport(folder), host="0.0.0.0")
    with pytest.raises(InputError, match="choose another with --port"):
        LiveServer(LiveReport(folder), 70000)


def test_a_directory_without_runs_has_a_page(tmp_path):
    assert "No runs yet" in LiveReport(tmp_path).html()


def test_runs_with_other_columns_do_not_hide_the_others(folder):
    path = folder / "runs" / "0-fedavg-seed1" / "history.jsonl"
    header = path.read_text().splitlines()[0]
    path.write_text(header + '\n{"round": 0, "seconds": 0.0, "accuracy": 0.5}\n')
    text = LiveReport(folder).html()
    assert text.count("<td>FedAvg</td>") == 1
    assert LiveReport(folder, "accuracy").html().count("<td>FedAvg</td>") == 1
    path.with_name("history.jsonl").write_text(header + '\n{"round": 0, "loss": 0.5}\n')
    text = LiveReport(folder, "loss").html()
    assert '<option value="round">' in text
    assert '<option value="bytes">' not in text


def test_a_damaged_run_does_not_hide_the_others(folder):
    append(folder / "runs" / "0-fedavg-seed0", b"rubbish\n")
    text = LiveReport(folder).html()
    assert "<td>unreadable</td>" in text
    assert "<td>finished</td>" in text


@pytest.mark.slow
def test_a_browser_shows_new_records_and_keeps_the_choices(server, folder, tmp_path, monkeypatch):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium here; Debian's package `chromium` has it")
    path = folder / "runs" / "0-fedavg-seed0"
    rest = cut(path, 3)
    server.report.poll()
    # A script in the page chooses an axis, and asks for a path that says what the page then shows.
    script = """<script>
      document.getElementById("x").value = "bytes";
      const tell = () => fetch("/seen?" + encodeURIComponent(JSON.stringify([
        document.querySelector("td:nth-child(3)").textContent, document.getElementById("x").value,
        document.querySelector(".xlabel").textContent])));
      new MutationObserver(() => setTimeout(tell, 100)).observe(document.body, {childList: true});
      new MutationObserver(tell).observe(document.getElementById("live"), {childList: true});
    </script></body>"""
    render = server.report.html
    monkeypatch.setattr(server.report, "html", lambda: render().replace("</body>", script))
    asked: queue.Queue[str] = queue.Queue()

    def note(handler, code="-", size="-"):
        if handler.path.startswith("/seen?"):
            asked.put(unquote(handler.path.partition("?")[2]))

    monkeypatch.setattr(server.RequestHandlerClass, "log_request", note)
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
        f"--user-data-dir={tmp_path / 'profile'}", server.url,
    ]  # fmt: skip
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            seen = json.loads(asked.get(timeout=60))
            assert seen[0] == "10"
            append(path, *rest)
            while seen[0] == "10":
                seen = json.loads(asked.get(timeout=60))
        finally:
            process.terminate()
    assert seen == ["40", "bytes", "total bytes, up and down"]
