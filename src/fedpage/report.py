"""What a comparison found: a table of medians over seeds, and a page that shows it with its plot."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.history import History, by_method

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
                "rounds_to": middle(run.rounds_to("grad_norm", target) for run in runs),
                "bytes_to": middle(run.bytes_to("grad_norm", target) for run in runs),
                "clients_to": middle(run.clients_to("grad_norm", target) for run in runs),
                "per_round": middle(run.last("clients") / max(run.last("round"), 1.0) for run in runs),
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
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (3.15e7, 86400, "days")):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3.15e7:.3g} years"


def page(histories: Sequence[History], plot: Path, path: Path, *, title: str, target: float) -> Path:
    """Write one self-contained HTML page: the plot, the table, settings and provenance."""
    rows = summarise(histories, target)
    shown = [key for key in HEADINGS if key != "end" or any(row["end"] for row in rows)]
    keep = [list(HEADINGS).index(key) for key in shown]
    head = "".join(f"<th>{html.escape(HEADINGS[key])}</th>" for key in shown)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cells(row)[i])}</td>" for i in keep) + "</tr>" for row in rows)
    image = base64.b64encode(plot.read_bytes()).decode("ascii")
    about = histories[0].meta
    settings = {
        "problem": about.get("problem", {}),
        "rounds": about.get("rounds"),
        "seeds": sorted({int(run.meta.get("seed", 0)) for run in histories}),
        "versions": about.get("versions", {}),
        "methods": [runs[0].meta.get("method") for runs in by_method(histories).values()],
    }
    note = about.get("problem", {}).get("data_note", "")
    caution = f"<p class=note>Data: {html.escape(note)}.</p>" if note else ""
    text = _PAGE.format(
        title=html.escape(title),
        caution=caution,
        image=image,
        head=head,
        body=body,
        target=f"{target:g}",
        settings=html.escape(json.dumps(settings, indent=2, ensure_ascii=False)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --line: #d0d0d7; --soft: #60606b; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8e8ee; --paper: #17171b; --line: #3c3c46; --soft: #a4a4b0; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }}
img {{ width: 100%; height: auto; background: #fff; border-radius: 6px; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: .35rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th {{ white-space: normal; vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; }}
.note, figcaption {{ color: var(--soft); }}
figure {{ margin: 1rem 0; }}
pre {{ overflow-x: auto; font-size: 13px; }}
</style></head><body>
<h1>{title}</h1>
{caution}
<figure><img alt="Gradient norm against rounds and bytes" src="data:image/png;base64,{image}">
<figcaption>Median over seeds, with the band from the lower to the upper quartile.</figcaption></figure>
<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<p class=note>Medians over seeds. The target is a gradient norm of {target} while the loss is at most that of the
start.</p>
<details><summary>Settings and provenance</summary><pre>{settings}</pre></details>
</body></html>
"""
