"""An edit of one function, as the tables of mutants list it."""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """Replace `old`, which occurs once in the function (`Class.method`), by `new`."""

    name: str
    function: str
    old: str
    new: str
