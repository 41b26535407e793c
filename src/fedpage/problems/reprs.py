"""Representations of problems: a line of text, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fedpage.core.display import html_card, html_facts
from fedpage.core.types import Ints
from fedpage.data.reprs import describe_sizes, html_sizes

if TYPE_CHECKING:
    from fedpage.problems.linear_model import LinearModel


class Weighted(Protocol):
    """What the problems of this library have in common."""

    @property
    def weights(self) -> str:
        """The clients' weights: "uniform", "size" or "given"."""
        ...

    @property
    def N(self) -> int:
        """The number of clients."""
        ...

    @property
    def d(self) -> int:
        """The number of parameters."""
        ...

    @property
    def sizes(self) -> Ints:
        """(N,) rows of each client."""
        ...

    @property
    def metrics(self) -> Mapping[str, object]:
        """The metrics by name."""
        ...


def repr_problem(problem: Weighted, about: Sequence[str] = (), partition: str = "") -> str:
    """Write a problem in one line.

    Args:
        problem: The problem.
        about: What comes first, such as the data and the regulariser.
        partition: How rows were divided.
    """
    words = [word for word in about if word]
    words.append(_clients(problem.N) + (f" ({partition})" if partition else ""))
    words += [f"d={problem.d:,}", _rows(problem)]
    words += [f"weights {problem.weights}"] if problem.weights != "uniform" else []
    return f"{type(problem).__name__}({', '.join(words)})"


def html_problem(problem: Weighted, facts: Mapping[str, object]) -> str:
    """Show a problem in a notebook: facts, and the sizes of clients where they differ.

    Args:
        problem: The problem.
        facts: What is known of it beside clients, rows, parameters, weights and metrics.
    """
    sizes = problem.sizes
    common = {
        "clients": f"{problem.N:,}",
        "rows": f"{int(sizes.sum()):,} ({describe_sizes(sizes)})",
        "parameters": f"{problem.d:,}",
        "weights of clients": problem.weights,
        "metrics": ", ".join(problem.metrics),
    }
    table = html_facts({**facts, **common})
    return html_card(type(problem).__name__, table, html_sizes(sizes))


def repr_linear(problem: LinearModel) -> str:
    """Write a linear model in one line: data, loss, regulariser, clients, parameters, rows."""
    loss = "" if problem.loss_name else f"{problem.name}"
    return repr_problem(
        problem, [problem.data.name, loss, _regulariser(problem), _intercept(problem)],
        short_partition(problem.partition.name, problem.N),
    )  # fmt: skip


def html_linear(problem: LinearModel) -> str:
    """Show a linear model in a notebook."""
    classes = problem.classes
    known = "" if classes is None else ", ".join(map(str, classes[:10]))
    return html_problem(
        problem,
        {
            "objective": problem.name,
            "regulariser": _regulariser(problem) or "none",
            "intercept": "yes" if _intercept(problem) else "no",
            "data": repr(problem.data),
            "classes": known + (", ..." if classes is not None and len(classes) > 10 else ""),
            "partition": problem.partition.name,
            "held out": "" if problem.held_out is None else repr(problem.held_out),
        },
    )


def short_partition(name: str, N: int) -> str:
    """Leave the number of clients out of a partition's name.

    >>> short_partition("iid(20, seed=0)", 20), short_partition("blocks(20)", 20)
    ('iid, seed=0', 'blocks')
    """
    kind, _, arguments = name.partition("(")
    words = [word for word in arguments.removesuffix(")").split(", ") if word not in ("", str(N))]
    return ", ".join([kind, *words])


def _regulariser(problem: LinearModel) -> str:
    return "" if problem.reg == "none" else f"{problem.reg} alpha={problem.alpha:g}"


def _intercept(problem: LinearModel) -> str:
    return "intercept" if problem.intercept else ""


def _clients(N: int) -> str:
    return f"{N:,} client{'s' * (N != 1)}"


def _rows(problem: Weighted) -> str:
    total = int(problem.sizes.sum())
    return f"{total:,} row{'s' * (total != 1)}"
