"""What a site checks before it sends a Hessian, from which rows may follow (docs/fit.md).

The rules are a floor and no proof of privacy: enough rows, no rare 0/1 column, few exchanges over
all runs, and in secure aggregation no second sum at the same model over other sites.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpage.core.files import put
from fedpage.core.messages import triangle_fields
from fedpage.core.types import AnyMethod
from fedpage.flower.config import AppConfig, NodeConfig, build_method
from fedpage.flower.node_data import NodeData
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.private_files import UnsafePath, make_private
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


def check_hessian(node: NodeConfig, data: NodeData, point: str, total: str) -> None:
    """Refuse to send a Hessian that might reveal rows.

    Args:
        node: The node's configuration.
        data: Its rows.
        point: A digest of the model at which the Hessian is.
        total: The run and the clients over which it is added up, or `CLEAR`.

    Raises:
        NodeError: A rule forbids it; the node's log says which.
    """
    check_rows(node, data, is_secure=total != CLEAR)
    known = _read_points(node, data)
    if point in known and known[point] not in (CLEAR, total):
        raise NodeError(
            Code.DISCLOSURE,
            "a sum at this model was given before, in another run or over other sites; the "
            f"difference could reveal one site. If you accept that, remove {_folder(node, data)}",
        )
    if point not in known and len(known) >= node.most_exchanges:
        raise NodeError(
            Code.DISCLOSURE,
            f"these rows have answered {len(known)} exchanges (most-exchanges). If you accept "
            f"more, raise it, or remove {_folder(node, data)}",
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


def remember_hessian(node: NodeConfig, data: NodeData, point: str, total: str) -> None:
    """Note that a Hessian leaves the node, before it does."""
    folder = _folder(node, data)
    try:
        make_private(node.state_dir)
        make_private(folder)
    except UnsafePath as error:
        raise NodeError(Code.STATE_UNSAFE, str(error)) from None
    if point not in _read_points(node, data):
        put(folder / point, total.encode("utf-8"), private=True)


def _folder(node: NodeConfig, data: NodeData) -> Path:
    return node.state_dir / f"hessians-{data.client}-{data.digest[:24]}"


def _read_points(node: NodeConfig, data: NodeData) -> dict[str, str]:
    """Return the models at which Hessians of these rows were sent, and in which sums."""
    files = _folder(node, data).glob("[0-9a-f]*")
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def _check_cells(node: NodeConfig, data: NodeData) -> None:
    """Refuse columns of two values one of which few rows have, alone or with an event."""
    problem = data.problem
    if not isinstance(problem, (LinearModel, CoxModel)):
        return
    rows = problem.data
    event: NDArray[np.bool_] | None = None
    if isinstance(problem, CoxModel):
        event = problem.events_of(0)
        if event.sum() < _LEAST_EVENTS:
            raise NodeError(
                Code.DISCLOSURE, f"{event.sum()} events are too few: {_LEAST_EVENTS} are needed"
            )
    elif set(np.unique(rows.y).tolist()) <= {-1.0, 1.0}:
        event = rows.y > 0
    X = rows.to_dense()
    for place in range(X.shape[1]):
        column = X[:, place]
        if not ((column == column.min()) | (column == column.max())).all():
            continue
        for value in {column.min(), column.max()}:
            own = column == value
            cells = [own] if event is None else [own & event, own & ~event]
            fewest = min((int(cell.sum()) for cell in cells if cell.any()), default=0)
            if 0 < fewest < node.least_cell:
                name = rows.columns[place] if rows.columns else f"column {place + 1}"
                raise NodeError(
                    Code.DISCLOSURE,
                    f"{name}: {fewest} rows have one of its values (with the same outcome), "
                    f"{node.least_cell} are needed (least-cell); merge rare categories, or leave "
                    "the column out",
                )
