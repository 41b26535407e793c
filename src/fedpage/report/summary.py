"""What a comparison found: a table of medians over seeds, for the terminal and for pages."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedpage.runs.history import History, by_method

HEADINGS = {
    "method": "method",
    "step": "effective step",
    "grad_norm": "gradient norm",
    "loss": "loss",
    "rounds_to": "rounds to target",
    "bytes_to": "bytes to target",
    "clients_to": "clients to target",
    "per_round": "clients a round",
    "seconds": "seconds a run",
    "end": "ended",
}


def summarise(histories: Iterable[History], target: float) -> list[dict[str, Any]]:
    """A row per method: medians over its runs. target: the gradient norm that counts as reached."""
    table = []
    for label, runs in by_method(histories).items():

        def middle(values: Iterable[float]) -> float:
            return float(np.median(list(values)))

        gone = sum(run.diverged for run in runs)
        table.append(
            {
                "method": label,
                "step": runs[0].meta.get("method", {}).get("effective_step", math.nan),
                "grad_norm": middle(run.last("grad_norm") for run in runs),
                "loss": middle(run.last("loss") for run in runs),
                "rounds_to": middle(run.cost_to("grad_norm", target, "round") for run in runs),
                "bytes_to": middle(run.cost_to("grad_norm", target) for run in runs),
                "clients_to": middle(run.cost_to("grad_norm", target, "clients") for run in runs),
                "per_round": middle(
                    run.last("clients") / max(run.last("round"), 1.0) for run in runs
                ),
                "seconds": middle(run.last("seconds") for run in runs),
                "end": f"{gone} of {len(runs)} diverged" if gone else "",
            }
        )
    return table


def cells(row: dict[str, Any]) -> list[str]:
    """A summary row as people read it."""
    return [
        row["method"],
        f"{row['step']:g}",
        f"{row['grad_norm']:.3g}",
        f"{row['loss']:.5g}",
        _count(row["rounds_to"]),
        volume(row["bytes_to"]),
        _count(row["clients_to"]),
        f"{row['per_round']:.1f}",
        f"{row['seconds']:.2f}",
        row["end"],
    ]


def _count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "not reached"


def volume(value: float) -> str:
    """Bytes with a unit.

    >>> volume(1_234_567)
    '1.23 MB'
    """
    if not math.isfinite(value):
        return "not reached"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds as people read them.

    >>> duration(90), duration(1e6)
    ('1.5 min', '11.6 days')
    """
    for limit, divisor, unit in (
        (60, 1, "s"),
        (3600, 60, "min"),
        (86400, 3600, "h"),
        (3.15e7, 86400, "days"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3.15e7:.3g} years"


def table(histories: Iterable[History], target: float) -> str:
    """The summary as an HTML table, with what its columns mean."""
    rows = summarise(histories, target)
    shown = [key for key in HEADINGS if key != "end" or any(row["end"] for row in rows)]
    keep = [list(HEADINGS).index(key) for key in shown]
    head = "".join(f"<th>{html.escape(HEADINGS[key])}</th>" for key in shown)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cells(row)[i])}</td>" for i in keep) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">Medians over seeds. The target is a gradient norm of {target:g} while the loss is at most '
        "that of the start.</p>"
    )
