"""Show the status of one run: its state, last record, clients, bytes, time left and events."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedpage.core.columns import COLUMNS, describe_column
from fedpage.core.display import format_number
from fedpage.report.summary import format_bytes, format_duration
from fedpage.report.watch import COLOURS, FollowedRun, RunState

if TYPE_CHECKING:
    from rich.table import Table

_EVENTS_SHOWN = 5
_QUIET = 5.0
"""Seconds after which a status says how long ago the last round ended."""


def describe_status(run: FollowedRun) -> dict[str, object]:
    """Return what is known of a run as plain values."""
    status, history, state = run.status, run.history, run.state
    is_active = state in (RunState.RUNNING, RunState.WAITING)
    return {
        "run": run.path,
        "state": state,
        "detail": _explain(run, state),
        "method": history.meta.get("method", {}).get("name", ""),
        "round": run.round,
        "rounds": run.rounds,
        "record": history.rows[-1] if history.rows else {},
        "called": status.called,
        "answered": status.answered,
        "slowest_client": status.slowest_client if status.slowest_client >= 0 else None,
        "slowest_seconds": status.slowest_seconds if status.slowest_client >= 0 else None,
        "lost": status.lost,
        "lost_clients": status.lost_clients,
        "bytes_down": status.bytes_down,
        "bytes_up": status.bytes_up,
        "seconds_per_round": status.seconds_per_round or None,
        "seconds_left": status.seconds_left if is_active else None,
        "seconds_ago": time.time() - status.written if status.written else None,
        "events": history.events[-_EVENTS_SHOWN:],
    }


def status_table(run: FollowedRun) -> Table:
    """Return a table for the terminal with a line for each subject."""
    from rich.table import Table
    from rich.text import Text

    state, status, history = run.state, run.status, run.history
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", Text(str(run.path)))
    table.add_row("state", Text(state.value, style=COLOURS.get(state, "bold")))
    lines = {
        "": _explain(run, state),
        "method": str(history.meta.get("method", {}).get("name", "")),
        "round": f"{run.round:,} of {run.rounds:,}" if run.rounds else "",
        "record": _describe_record(history.rows[-1]) if history.rows else "",
        "clients": _describe_clients(run),
        "bytes": _describe_bytes(status.bytes_down, status.bytes_up),
        "time": _describe_time(run, state),
    }
    for name, text in lines.items():
        if text:
            table.add_row(name, Text(text))
    for number, event in enumerate(history.events[-_EVENTS_SHOWN:]):
        text = f"round {event['round']}: {event['event']}: {event['text']}"
        table.add_row("" if number else "events", Text(text))
    return table


def _explain(run: FollowedRun, state: RunState) -> str:
    """Return a sentence about the state, and what to do where something is to be done."""
    if state is RunState.UNREADABLE:
        return run.error
    if state is RunState.WAITING:
        return run.status.waiting or "no round is done yet"
    if state is RunState.STALE:
        return "no process is writing this run, and it has no end; start it again to resume it"
    if state in (RunState.FAILED, RunState.INTERRUPTED):
        detail = run.status.detail
        return detail if "resume" in detail else f"{detail}; start it again to resume it"
    return run.history.stop_detail


def _describe_record(record: Mapping[str, float]) -> str:
    """Return the values of a record that are not costs, each with its name."""
    values = [name for name in record if name not in COLUMNS or name in ("loss", "grad_norm")]
    words = [f"{describe_column(name).label} {_number(record[name])}" for name in values]
    return f"round {record['round']:,.0f}: {', '.join(words)}"


def _number(value: float) -> str:
    return format_number(value) or str(value)


def _describe_clients(run: FollowedRun) -> str:
    status = run.status
    if not status.called:
        return ""
    words = [f"{status.answered:,} of {status.called:,} called answered"]
    if status.slowest_client >= 0:
        took = format_duration(status.slowest_seconds)
        words.append(f"slowest: client {status.slowest_client}, {took}")
    if status.lost:
        more = " ..." if status.lost > 1 + status.lost_clients.count(",") else ""
        words.append(f"lost: {status.lost_clients}{more}")
    return "; ".join(words)


def _describe_bytes(down: int, up: int) -> str:
    if not down + up:
        return ""
    parts = f"{format_bytes(down)} down, {format_bytes(up)} up"
    return f"{format_bytes(down + up)} so far ({parts})"


def _describe_time(run: FollowedRun, state: RunState) -> str:
    status, words = run.status, []
    if status.seconds_per_round:
        words.append(f"{format_duration(status.seconds_per_round)} a round")
    if state is RunState.RUNNING and math.isfinite(status.seconds_left):
        words.append(f"about {format_duration(status.seconds_left)} left")
    age = time.time() - status.written if status.written else 0.0
    if state is RunState.RUNNING and age > _QUIET:
        words.append(f"the last round ended {format_duration(age)} ago")
    return "; ".join(words)
