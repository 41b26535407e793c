"""Name runs and their problem, for titles and legends of pictures and pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedpage.core.errors import InputError, short_repr
from fedpage.runs.history import History


def describe_problem(problem: Mapping[str, Any]) -> str:
    """Say the objective, the regulariser, the data, the partition and N in one line.

    Args:
        problem: What `Problem.describe` returns, or `History.meta["problem"]`. What is missing is
            left out.

    >>> describe_problem({"objective": "logistic regression", "data": "a9a", "N": 80,
    ...                   "partition": "blocks(80)", "regulariser": "l2", "alpha": 0.1})
    'Logistic regression, l2 regulariser (0.1), on a9a, blocks, N = 80'
    """
    parts = [str(problem["objective"])] if problem.get("objective") else []
    if problem.get("regulariser"):
        alpha = problem.get("alpha")
        weight = "" if alpha is None else f" ({alpha:g})"
        parts.append(f"{problem['regulariser']} regulariser{weight}")
    if problem.get("data"):
        parts.append(f"on {problem['data']}" if parts else str(problem["data"]))
    if problem.get("partition"):
        parts.append(shorten_partition(str(problem["partition"])))
    if problem.get("N") is not None:
        parts.append(f"N = {problem['N']:,}")
    title = ", ".join(parts)
    if "regulariser" not in problem:
        title = title.replace(", on ", " on ", 1)
    return title[:1].upper() + title[1:] if problem.get("objective") else title


def shorten_partition(name: str) -> str:
    """Leave the number of clients, the seed and notes out of a partition's name.

    >>> shorten_partition("dirichlet(50, alpha=0.3, seed=0, min_rows=1: 5 rows moved)")
    'dirichlet(alpha=0.3)'
    """
    name = re.sub(r", min_rows=[^)]*|, seed=\d+", "", name)
    return re.sub(r"\(\d+(?:, )?", "(", name).removesuffix("()")


def describe_runs(runs: Iterable[History]) -> str:
    """Describe what the problems of all runs have in common; see `describe_problem`."""
    first, *others = [run.meta.get("problem", {}) for run in runs] or [{}]
    return describe_problem(
        {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
    )


def list_runs(histories: History | Iterable[History]) -> list[History]:
    """Return one history or several as a list.

    Raises:
        InputError: There is none, or one of them is something else.
    """
    runs = [histories] if isinstance(histories, History) else list(histories)
    wrong = [run for run in runs if not isinstance(run, History)]
    if not runs or wrong:
        found = short_repr(wrong[0]) if wrong else "none"
        raise InputError(f"give histories, as fp.sweep returns them, not {found}")
    return runs


def by_method(histories: Iterable[History]) -> dict[str, list[History]]:
    """Group runs by method, hyper-parameters and problem, under labels that differ.

    The label is the method's name and its codecs. Where several groups share the name, the
    hyper-parameters that differ follow, then the problem's differences, and a number where nothing
    else helps.
    """
    groups: dict[str, list[History]] = {}
    for history in histories:
        key = [history.meta.get("method"), history.meta.get("problem")]
        groups.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(history)
    labelled: dict[str, list[History]] = {}
    for runs in groups.values():
        first = runs[0]
        twins = [other[0] for other in groups.values() if other[0].label == first.label]
        about = first.meta.get("method") or {}
        parts = [
            *_differences(first, twins, "method"),
            *_differences(first, twins, "problem"),
            *(f"{way}={about[way]}" for way in ("up", "down") if about.get(way, "none") != "none"),
        ]
        parts = list(dict.fromkeys(parts))
        label = plain = first.label + (f" ({', '.join(parts)})" if parts else "")
        number = 1
        while label in labelled:
            number += 1
            label = f"{plain} #{number}"
        labelled[label] = runs
    return labelled


_HIDDEN = (
    "effective_step", "class", "name", "data_digest", "partition_digest", "metrics_digest",
    "rows", "d", "data_note",
)  # fmt: skip
"""Entries of provenance that follow from others or do not help a reader."""


def _differences(run: History, twins: list[History], what: str) -> list[str]:
    """List `name=value` of the settings in which a run differs from others of its method."""
    about, *others = [each.meta.get(what) or {} for each in (run, *twins)]
    names = [
        name
        for name in about
        if name not in _HIDDEN and any(other.get(name) != about[name] for other in others)
    ]
    ambiguous = any(
        other.get(name) != about[name] and _short(other.get(name)) == _short(about[name])
        for other in others
        for name in names
    )
    return [f"{name}={about[name] if ambiguous else _short(about[name])}" for name in names]


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)
