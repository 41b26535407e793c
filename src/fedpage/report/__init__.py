"""Turn histories into plots, tables and an HTML page.

The package can be called: `fp.report(histories, "report.html")` writes the page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fedpage.core.columns import Cost, TargetLike
    from fedpage.runs.history import History


def write_report(
    histories: History | Iterable[History],
    path: str | os.PathLike[str] = "report.html",
    *,
    title: str = "",
    target: TargetLike | None = None,
    column: str = "grad_norm",
    cost: str | Cost = "bytes",
) -> Path:
    """Write an HTML page about runs: a table, curves, settings and provenance.

    `fp.report` is this function. The page opens offline.

    Args:
        histories: A history, or several of any methods and seeds.
        path: The HTML file.
        title: The page's title; by default the methods and the data.
        target: What counts as reached, such as "accuracy:0.9". By default it is a value of `column`
            that every run reaches and holds to its end.
        column: The recorded column of the table and of the curves, if no target is given.
        cost: The cost of the table, such as "bytes", "round" or "up+0.1*down".

    Returns:
        The path.

    Raises:
        InputError: There is no history, one is empty, or the column is not recorded.

    >>> import fedpage as fp
    >>> import tempfile
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2")
    >>> history = fp.simulate(problem, fp.SecantPAGE(S=4), rounds=40, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fp.report(history, f"{folder}/report.html").name
    'report.html'
    """
    from fedpage.core.columns import Target
    from fedpage.core.errors import InputError
    from fedpage.report.page import write_runs
    from fedpage.report.summary import held_value
    from fedpage.report.titles import by_method, list_runs

    runs = list_runs(histories)
    if not all(run.rows for run in runs):
        raise InputError("report: a history has no record yet")
    if target is None:
        held = [held_value(run, column) for run in runs]
        target = Target(column, min(held) if runs[0].higher_is_better(column) else max(held))
    if not title:
        data = runs[0].meta.get("problem", {}).get("data", "")
        names = ", ".join(dict.fromkeys(run.label for run in runs)) if len(runs) < 9 else "Runs"
        title = f"{names} on {data}" if data else names
    ordered = [run for group in by_method(runs).values() for run in group]
    return write_runs(ordered, Path(path), title=title, target=target, cost=cost)


class Report(ModuleType):
    """The package `fedpage.report`, which can be called as `write_report`."""

    __call__ = staticmethod(write_report)


report = cast(Report, sys.modules[__name__])
report.__class__ = Report
