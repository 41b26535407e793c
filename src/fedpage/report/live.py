"""Serve the report of runs that are still running, to this machine only.

The server answers GET and HEAD for two paths: the page, and a stream of server-sent events, one at
each change. It reads no path from the request, so that no other file can be asked for. It listens
on a loopback address, and refuses a Host that is not one, so that no other site's page can read it
through a name that resolves to this machine.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from fedpage.core.columns import AXES, list_axes
from fedpage.core.errors import InputError
from fedpage.report import page
from fedpage.report.plots import FigureRuns, PanelRuns
from fedpage.report.tables import Table
from fedpage.report.titles import by_method, describe_problem
from fedpage.report.watch import FollowedRun, RunFollower, RunState, watched_column
from fedpage.runs.history import History

_HOSTS = ("localhost", "127.0.0.1", "::1")
_HEARTBEAT = 15.0
"""Seconds after which a stream without events gets a comment, which finds readers that left."""


class LiveReport:
    """The page about all runs at or below a directory, made anew when a record is new.

    Args:
        root: The directory.
        column: The recorded column to show at first; by default that of the runs' target.

    Raises:
        InputError: It is not a directory.
    """

    def __init__(self, root: Path, column: str = "") -> None:
        self._follower, self._column = RunFollower(root), column
        self._changed = threading.Condition()
        self._html: tuple[int, str] = (-1, "")
        self.version = 0
        """The number of changes so far."""
        self._states: list[RunState] = []
        self.poll()

    def poll(self) -> None:
        """Look for new records, and wake those who wait for a change."""
        with self._changed:
            news = self._follower.poll()
            states = [run.state for run in self._follower.runs.values()]
            if news or states != self._states:
                self._states = states
                self.version += 1
                self._changed.notify_all()

    def wait(self, version: int, seconds: float) -> int:
        """Wait until there is a newer version than this; return the newest after that time."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > version, seconds)
            return self.version

    def html(self) -> str:
        """Return the page of the newest version."""
        with self._changed:
            if self._html[0] != self.version:
                self._html = self.version, self._render()
            return self._html[1]

    def _render(self) -> str:
        found = list(self._follower.runs.items())
        readable = [run for _, run in found if run.history.rows and not run.error]
        first = watched_column(readable[0], self._column) if readable else ""
        shown = [run for run in readable if first in run.history.columns]
        runs = [run.history for run in shown]
        states = Table.of_texts(
            ["run", "state", "round", "of"],
            [[name, run.state.value, f"{run.round:,}", f"{run.rounds:,}"] for name, run in found],
            "" if found else "No runs yet; the page shows them as soon as they have records.",
        )
        return page.render(
            title=f"Runs in {self._follower.root}",
            figures=_figures(shown),
            settings={"versions": runs[0].meta.get("versions", {})} if runs else {},
            columns=page.value_columns(runs, first) if first else ("grad_norm", "loss"),
            axes=_axes(runs),
            tables=[states],
            target=_shared_target(shown),
            runs=runs,
            events="events",
        )


def _figures(runs: list[FollowedRun]) -> list[FigureRuns]:
    """Draw the runs of each problem in a figure of its own."""
    groups: dict[str, list[FollowedRun]] = {}
    for run in runs:
        about = run.history.meta.get("problem", {})
        groups.setdefault(json.dumps(about, sort_keys=True, default=str), []).append(run)
    figures = []
    for number, group in enumerate(groups.values()):
        about = group[0].history.meta.get("problem", {})
        title = describe_problem(about) or "Runs"
        panel = PanelRuns("", by_method([run.history for run in group]))
        figures.append(FigureRuns(f"problem-{number}", title, "", 1, (panel,)))
    return figures


def _axes(runs: list[History]) -> list[str]:
    """Return the costs that all runs have recorded, or what they are computed from."""

    def has_cost(run: History, cost: str) -> bool:
        try:
            return bool(np.isfinite(run.cost(cost)).all())
        except InputError:
            return False

    names = list_axes(run.columns for run in runs) if runs else AXES
    return [name for name in names if all(has_cost(run, name) for run in runs)] or ["round"]


def _shared_target(runs: list[FollowedRun]) -> tuple[str, float] | None:
    """Return the target if all runs have the same."""
    targets = {run.target for run in runs}
    return targets.pop() if len(targets) == 1 else None


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "fedpage", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if _host_name(self.headers.get("Host", "")) not in _HOSTS:
            self.send_error(403, "this server answers to localhost only")
        elif self.path == "/":
            text = self.server.report.html().encode("utf-8")
            self._send_head("text/html; charset=utf-8", len(text))
            if with_body:
                self.wfile.write(text)
        elif self.path == "/events":
            self._send_head("text/event-stream")
            if with_body:
                self._stream()
        else:
            self.send_error(404, "there is only the page /")

    def _send_head(self, content_type: str, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "img-src data:; connect-src 'self'; frame-ancestors 'none'",
        )
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _stream(self) -> None:
        """Send an event at each change until the reader leaves or the server ends."""
        report, version = self.server.report, self.server.report.version
        try:
            self.wfile.write(b"retry: 2000\n\n")
            self.wfile.flush()
            while not self.server.is_closing:
                newest = report.wait(version, _HEARTBEAT)
                line = f"event: change\ndata: {newest}\n\n" if newest > version else ": \n\n"
                version = newest
                self.wfile.write(line.encode("ascii"))
                self.wfile.flush()
        except OSError:  # the reader has left
            return

    def log_message(self, format: str, *args: object) -> None:
        pass


class LiveServer(ThreadingHTTPServer):
    """A server of a `LiveReport` on a loopback address.

    Args:
        report: The report.
        port: The port; 0 for any that is free.
        host: 127.0.0.1 or ::1.
        interval: Seconds between two looks at the files.

    Raises:
        InputError: The host is not a loopback address, or the port cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, report: LiveReport, port: int = 0, *, host: str = "127.0.0.1", interval: float = 1.0
    ) -> None:
        import socket

        if host not in ("127.0.0.1", "::1"):
            raise InputError(f"host {host!r}: the report is served on 127.0.0.1 or ::1 only")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.report, self.is_closing = report, False
        self._interval, self._stop = interval, threading.Event()
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"port {port}: {why}; choose another with --port") from None
        threading.Thread(target=self._poll, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def _poll(self) -> None:
        while not self._stop.wait(self._interval):
            self.report.poll()

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent where a reader has left; other errors are printed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def server_close(self) -> None:
        """Stop looking at the files, and close the socket."""
        self.is_closing = True
        if hasattr(self, "_stop"):
            self._stop.set()
        super().server_close()


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port; "" if it is not one."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
