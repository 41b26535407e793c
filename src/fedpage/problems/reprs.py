"""Write problems in a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fedpage.core.types import Ints

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


def repr_linear(problem: LinearModel) -> str:
    """Write a linear model in one line: data, loss, regulariser, clients, parameters, rows."""
    loss = "" if problem.loss_name else f"{problem.name}"
    return repr_problem(
        problem, [problem.data.name, loss, _regulariser(problem), _intercept(problem)],
        short_partition(problem.partition.name, problem.N),
    )  # fmt: skip


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
