"""Name the problem of runs in a line, for titles of pictures and pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

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
    parts = []
    if problem.get("objective"):
        parts.append(str(problem["objective"]))
    if problem.get("regulariser"):
        alpha = problem.get("alpha")
        weight = "" if alpha is None else f" ({alpha:g})"
        parts.append(f"{problem['regulariser']} regulariser{weight}")
    if problem.get("data"):
        parts.append(f"on {problem['data']}" if parts else str(problem["data"]))
    N = problem.get("N")
    if problem.get("partition"):
        parts.append(shorten_partition(str(problem["partition"])))
    if N is not None:
        parts.append(f"N = {N:,}")
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
    problems = [run.meta.get("problem", {}) for run in runs]
    first = problems[0] if problems else {}
    return describe_problem(
        {
            name: value
            for name, value in first.items()
            if all(problem.get(name) == value for problem in problems)
        }
    )
