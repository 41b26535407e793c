"""List the runs of a report: how each went, its settings and its events, or a page of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedpage.core.columns import COLUMNS, describe_column
from fedpage.core.display import format_number
from fedpage.report.summary import format_bytes
from fedpage.runs.history import History, by_method
from fedpage.runs.history_file import EventRow

_METRICS = 4
"""The most metrics in the table; a run's own page draws all of them."""


@dataclass(frozen=True)
class RunEntry:
    """What the page says about one run.

    Attributes:
        label: The method's label among the page's methods.
        seed: The run's seed.
        cells: The last values, in the order of `run_headings`.
        end: How the run ended.
        events: What happened to clients.
        settings: Provenance as JSON.
        link: The run's own page, relative to this page; "" if the details are in this page.
    """

    label: str
    seed: str
    cells: tuple[str, ...]
    end: str
    events: Sequence[EventRow]
    settings: str
    link: str = ""


def run_headings(runs: Sequence[History]) -> list[str]:
    """Return the headings of the last values: rounds, losses, metrics and total bytes."""
    return ["rounds", *(describe_column(name).label for name in _metrics(runs)), "total bytes"]


def _metrics(runs: Sequence[History]) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.columns)
    return [name for name in names if name not in COLUMNS or not COLUMNS[name].is_cost][:_METRICS]


def run_entries(runs: Sequence[History], links: Sequence[str] = ()) -> list[RunEntry]:
    """Describe runs, in the order of the page's legend.

    Args:
        runs: The runs.
        links: A page for each of them; none puts the details into this page.
    """
    labels = {id(run): label for label, group in by_method(runs).items() for run in group}
    pages = list(links) or [""] * len(runs)
    names = _metrics(runs)
    return [
        RunEntry(
            labels[id(run)],
            str(run.meta.get("seed", "")),
            (
                format_number(run.last("round")),
                *(format_number(run.last(name)) if name in run.columns else "" for name in names),
                format_bytes(run.last("bytes")) if "bytes_up" in run.columns else "",
            ),
            run.stop_text or "not ended",
            run.events,
            json.dumps(run.meta, indent=2, ensure_ascii=False, default=str),
            link,
        )
        for run, link in zip(runs, pages, strict=True)
    ]
