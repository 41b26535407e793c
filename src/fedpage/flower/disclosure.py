"""What a site checks before it sends a Hessian, from which rows may follow (docs/fit.md).

The rules are a floor and no proof of privacy: enough rows, no rare 0/1 column, few exchanges over
all runs, and in secure aggregation no second sum over other sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedpage.core.files import put
from fedpage.core.messages import triangle_fields
from fedpage.core.types import AnyMethod, Vector
from fedpage.data.encoding import CategoryColumn
from fedpage.flower.config import AppConfig, NodeConfig, build_method
from fedpage.flower.node_data import NodeData
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.private_files import UnsafePath, locked, make_private
from fedpage.flower.secure_aggregation.protocol import find_settings
from fedpage.problems.cox import CoxModel
from fedpage.problems.linear import LinearModel

_LEAST_IN_SUMS = 20
"""The fewest rows of a site whose Hessian is only seen in a sum over sites."""
_LEAST_EVENTS = 10
CLEAR = ""
"""The sum of a Hessian that is sent in clear."""


def sends_hessian(method: AnyMethod, message: str = "") -> bool:
    """Return whether the reply to a message of this name, or to any, has a Hessian."""
    replies = {kind.__name__: reply for kind, reply in method.messages.items()}
    return any(triangle_fields(replies[name]) for name in replies if message in ("", name))


@contextmanager
def guard_hessian(node: NodeConfig, data: NodeData, point: str, total: str) -> Iterator[None]:
    """Refuse to send a Hessian that might reveal rows, and note that it leaves; one at a time.

    Args:
        node: The node's configuration.
        data: Its rows.
        point: A digest of the model at which the Hessian is.
        total: The run and the clients over which it is added up, or `CLEAR`.

    Raises:
        NodeError: A rule forbids it; the node's log says which.
    """
    try:
        make_private(node.state_dir)
        with locked(node.state_dir / ".hessians"):
            _check_point(node, data, point, total)
            yield
            folder = _folder(node, data)
            make_private(folder)
            if not (folder / point).exists():
                put(folder / point, total.encode("utf-8"), private=True)
    except UnsafePath as error:
        raise NodeError(Code.STATE_UNSAFE, str(error)) from None


def _check_point(node: NodeConfig, data: NodeData, point: str, total: str) -> None:
    """Refuse rows, or a model after those at which Hessians were sent before."""
    check_rows(node, data, is_secure=total != CLEAR)
    folder = _folder(node, data)
    known = _read_points(folder)
    sums = {clients for _, clients in _read_sums(node)} - {total.rpartition(" ")[2]}
    is_other = total != CLEAR and sums
    if is_other or set(known.values()) - {CLEAR, total}:
        raise NodeError(
            Code.DISCLOSURE,
            "a sum was given before, in another run or over other sites; the difference could "
            f"reveal one site. If you accept that, remove {node.state_dir}/hessians-*",
        )
    if point not in known and len(known) >= node.most_exchanges:
        raise NodeError(
            Code.DISCLOSURE,
            f"these rows have answered {len(known)} exchanges (most-exchanges). If you accept "
            f"more, raise it, or remove {folder}",
        )


def check_description(node: NodeConfig, config: AppConfig, data: NodeData) -> None:
    """Refuse a run at its start whose Hessians the rows of a site's own file do not allow."""
    if node.data and sends_hessian(build_method(config)):
        check_rows(node, data, is_secure=find_settings(config.aggregation) is not None)


def check_rows(node: NodeConfig, data: NodeData, *, is_secure: bool) -> None:
    """Refuse rows whose Hessians might reveal them, at any model.

    Raises:
        NodeError: A rule forbids it; the node's log says which.
    """
    if node.hessians == "never" or (node.hessians == "secure" and not is_secure):
        raise NodeError(
            Code.NOT_ALLOWED, f'node config: hessians = "{node.hessians}" forbids this reply'
        )
    rows, d = int(data.problem.sizes[0]), data.problem.d
    needed = max(node.least_rows, node.most_exchanges * (d + 3))
    needed = min(node.least_rows, _LEAST_IN_SUMS) if is_secure else needed
    if rows < needed:
        raise NodeError(
            Code.DISCLOSURE,
            f"{rows} rows are too few for a Hessian of {d} parameters: {needed} are needed "
            "(least-rows, most-exchanges); leave columns out, or use secure aggregation",
        )
    _check_cells(node, data)


def check_weights(node: NodeConfig, data: NodeData, x: Vector) -> None:
    """Refuse a model x at which a few rows have nearly all the weight in the Hessian.

    Steps of Poisson and Cox models may lead to such models by themselves; they are not checked.
    """
    problem = data.problem
    if not isinstance(problem, LinearModel) or problem._loss.curvature == np.inf:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        t = problem.margins(x, problem.data)
        if (code := problem._loss.code) is not None:
            weights = np.abs(np.vectorize(code.bend, otypes=[float])(t, problem.data.y))
        else:  # of a softmax, the odds against the likeliest class
            weights = np.sort(np.exp(t - t.max(axis=1, keepdims=True)))[:, :-1].sum(axis=1)
        is_spread = weights.sum() >= node.least_cell * weights.max()
    if not is_spread:
        raise NodeError(
            Code.DISCLOSURE,
            f"fewer than {node.least_cell} rows have the weight in this Hessian (least-cell)",
        )


def has_sums(node: NodeConfig, run: str) -> bool:
    """Return whether Hessians of the node were added up in a run, whatever its method is called."""
    return any(own == run for own, _ in _read_sums(node))


def _read_sums(node: NodeConfig) -> list[tuple[str, str]]:
    """Return the run and the clients of each sum of Hessians of any columns."""
    folders = node.state_dir.glob(f"hessians-{node.partition_id}-*")
    totals = {total for folder in folders for total in _read_points(folder).values()} - {CLEAR}
    return [(run, clients) for run, _, clients in (total.rpartition(" ") for total in totals)]


def _folder(node: NodeConfig, data: NodeData) -> Path:
    return node.state_dir / f"hessians-{data.client}-{data.digest[:24]}"


def _read_points(folder: Path) -> dict[str, str]:
    """Return the models at which Hessians of some columns were sent, and in which sums."""
    files = folder.glob("[0-9a-f]*")
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def _check_cells(node: NodeConfig, data: NodeData) -> None:
    """Refuse columns of two values one of which few rows have, alone or with an event."""
    problem = data.problem
    if not isinstance(problem, (LinearModel, CoxModel)):
        return
    rows = problem.data
    kinds = np.unique(rows.y)
    is_class = len(kinds) <= max(2, len(rows.classes or ()))
    outcomes = [rows.y == kind for kind in kinds] if is_class else [np.ones(rows.rows, bool)]
    if isinstance(problem, CoxModel):
        event = problem.events_of(0)
        if event.sum() < _LEAST_EVENTS:
            raise NodeError(
                Code.DISCLOSURE, f"{event.sum()} events are too few: {_LEAST_EVENTS} are needed"
            )
        outcomes = [event, ~event]
    X, place = rows.to_dense(), 0
    names = rows.columns or [f"column {i + 1}" for i in range(X.shape[1])]
    named = [("the outcome", np.ones(rows.rows)), *zip(names, X.T, strict=True)]
    for spec in rows.encoding.columns if rows.encoding else ():
        end = place + len(spec.features)
        if isinstance(spec, CategoryColumn):
            named.append((f"the reference of {spec.name}", X[:, place:end].sum(axis=1)))
        place = end
    for name, column in named:
        if not ((column == column.min()) | (column == column.max())).all():
            continue
        for value in {column.min(), column.max()}:
            cells = [(column == value) & outcome for outcome in outcomes]
            fewest = min((int(cell.sum()) for cell in cells if cell.any()), default=0)
            if 0 < fewest < node.least_cell:
                raise NodeError(
                    Code.DISCLOSURE,
                    f"{name}: {fewest} rows have one of its values (with the same outcome), "
                    f"{node.least_cell} are needed (least-cell); merge rare categories, or leave "
                    "the column out",
                )
