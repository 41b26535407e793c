"""Show a history in a notebook: a table of its columns, its costs, and a plot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedpage.core.columns import describe_column
from fedpage.core.display import format_number, html_card, html_curve, html_facts, html_table
from fedpage.core.errors import InputError

if TYPE_CHECKING:
    from fedpage.runs.history import History

_COSTS = ("round", "clients", "bytes_up", "bytes_down", "gradients_per_client", "seconds")


def history_html(history: History) -> str:
    """Return the HTML of a history: first, last and best values, costs, how it ended, a plot."""
    if not history.rows:
        return html_card(repr(history))
    is_cost = {name: describe_column(name).is_cost for name in history.columns}
    shown = [name for name, cost in is_cost.items() if not cost]
    head = ("", "first", "last", "best")
    values = html_table(head, [_value_row(history, name) for name in shown]) if shown else ""
    costs = {
        describe_column(name).label: format_number(history.last(name))
        for name in _COSTS
        if name in history.columns
    }
    facts = {**costs, "seed": history.meta.get("seed"), "end": history.stop_text}
    drawn = next((name for name in ("grad_norm", "loss", *shown) if name in shown), "")
    plot = ""
    if drawn:
        label = describe_column(drawn).label
        plot = html_curve(
            history["round"], history.measured_by_all(drawn), "communication rounds", label
        )
    return html_card(repr(history), values, html_facts(facts), plot)


def _value_row(history: History, column: str) -> list[str]:
    """Return the label of a column, and its first, last and best value."""
    values = history[column]
    try:
        best = history.best(column)
    except InputError:  # nobody has said whether higher is better
        best = math.nan
    numbers = (float(values[0]), float(values[-1]), best if math.isfinite(best) else None)
    return [describe_column(column).label, *map(format_number, numbers)]
