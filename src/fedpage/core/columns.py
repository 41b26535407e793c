"""Describe the columns that a history records: label, unit, and whether a column is a cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """The description of one recorded column.

    Attributes:
        label: Words for axes and table headings.
        unit: "B" for bytes, "s" for seconds, "" for a count or a pure number.
        is_cost: Whether the column is a cumulative cost, and therefore a possible horizontal axis.
    """

    label: str
    unit: str = ""
    is_cost: bool = False


COLUMNS: dict[str, Column] = {
    "round": Column("communication rounds", is_cost=True),
    "clients": Column("clients called", is_cost=True),
    "bytes": Column("total bytes, up and down", "B", is_cost=True),
    "bytes_up": Column("bytes up", "B", is_cost=True),
    "bytes_down": Column("bytes down", "B", is_cost=True),
    "gradients": Column("row gradients, all clients", is_cost=True),
    "gradients_per_client": Column("row gradients per called client", is_cost=True),
    "seconds": Column("seconds in rounds", "s", is_cost=True),
    "floats_up": Column("floats up", is_cost=True),
    "floats_down": Column("floats down", is_cost=True),
    "evaluations": Column("gradient evaluations", is_cost=True),
    "full_rounds": Column("full rounds", is_cost=True),
    "missing": Column("missing replies", is_cost=True),
    "rejected": Column("rejected replies", is_cost=True),
    "fallbacks": Column("full rounds replaced by sampled rounds", is_cost=True),
    "loss": Column("loss"),
    "grad_norm": Column("gradient norm"),
}
"""Every built-in column by name. Costs are cumulative.

"bytes" is computed from "bytes_up" and "bytes_down". "gradients" counts gradients of single rows
(f_ij) over all clients. "gradients_per_client" sums, over rounds, the mean number of gradients of a
called client. "missing" counts requests without a valid reply in time, "rejected" replies that
failed validation, and "fallbacks" full rounds that were replaced by sampled ones.
"""

AXES = (
    "round", "clients", "bytes", "bytes_up", "bytes_down", "gradients", "gradients_per_client",
)  # fmt: skip
"""The costs that reports offer as horizontal axis, in menu order."""


def describe_column(name: str) -> Column:
    """Return the description of a column; a metric's label is its name in words.

    Args:
        name: A built-in column, or the name of a recorded metric.

    Returns:
        The entry of `COLUMNS`, or a new one for a metric.

    >>> describe_column("bytes_up").label, describe_column("held_out_accuracy").label
    ('bytes up', 'held-out accuracy')
    """
    words = name.replace("held_out_", "held-out ").replace("_", " ")
    return COLUMNS.get(name, Column(words))
