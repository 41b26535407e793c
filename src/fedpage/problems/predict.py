"""Prepare rows for a linear model: features for kernels and predictions, and labels."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Ints, Vector
from fedpage.core.validate import is_finite
from fedpage.data.dataset import Dataset, Label, Sparse
from fedpage.problems.losses import SOFTMAX, Loss

Classes: TypeAlias = tuple[Label, ...]
Indices: TypeAlias = NDArray[np.uint32]
KernelRows: TypeAlias = tuple[Indices, Indices, Vector | None] | tuple[None, None, Vector]
"""(ptr, idx, val) as the kernels take them; see `kernels.py`."""
_MOST_CLASSES = 10_000
"""More different labels than that are taken for the targets of a regression."""


# --- features -------------------------------------------------------------------------------------


def kernel_rows(matrix: Sparse | Vector, order: Ints | None = None) -> KernelRows:
    """Return rows as the kernels take them, sharing the memory where the order is kept.

    Args:
        matrix: The features of n rows.
        order: The wanted rows in their order. If None, use all rows.
    """
    count = len(matrix.indptr) - 1 if isinstance(matrix, Sparse) else len(matrix)
    if order is not None:
        if not np.array_equal(order, np.arange(len(order))):
            return kernel_rows(matrix.take(order) if isinstance(matrix, Sparse) else matrix[order])
        count = len(order)
    if not isinstance(matrix, Sparse):
        return None, None, matrix[:count]
    end = int(matrix.indptr[count])
    values = matrix.values[:end]
    return (
        matrix.indptr[: count + 1].astype(np.uint32),
        np.ascontiguousarray(matrix.indices[:end], dtype=np.int32).view(np.uint32),
        None if bool((values == 1.0).all()) else np.ascontiguousarray(values),
    )


def features(owner: str, training: Dataset, X: Any) -> Any:
    """Return new rows as a matrix (n, p), dense or sparse.

    Args:
        owner: The problem's name, for error messages.
        training: The rows that the model is trained on, with p features.
        X: An array or sparse matrix (n, p), a Dataset, or a table of the columns that the training
            rows were made from.

    Raises:
        InputError: If the rows do not have the features of the training rows.
    """
    from scipy.sparse import csr_array, issparse

    p = training.features
    if isinstance(X, Dataset):
        check_encoding(owner, training, X)
        matrix = X.X
        if X.features < p and not X.is_dense:  # the last features do not occur in a sparse file
            matrix = csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(X.rows, p))
    elif training.encoding is not None and not issparse(X) and not isinstance(X, np.ndarray):
        matrix = training.encoding.transform(X)
    else:
        try:
            matrix = X if issparse(X) else np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{owner}: the rows to predict must be numbers (n, {p}), not {short_repr(X)}"
            ) from None
        if not is_finite(np.asarray(matrix.data if issparse(matrix) else matrix)):
            raise InputError(
                f"{owner}: the rows to predict must be finite, without NaN or infinity"
            )
    if matrix.ndim != 2 or matrix.shape[1] != p:
        raise InputError(
            f"{owner}: the rows to predict must have {p} columns as the training data has, "
            f"not the shape {matrix.shape}"
        )
    return matrix


def check_encoding(owner: str, training: Dataset, data: Dataset) -> None:
    """Check that a data set made from a table has the features of the training data.

    Args:
        owner: The problem's name, for the error message.
        training: The rows that the model is trained on.
        data: Rows to predict or to evaluate.

    Raises:
        InputError: If the tables were encoded differently, so that features mean different things.
    """
    if training.encoding is None or data.encoding is None:
        return
    column = training.encoding.find_difference(data.encoding)
    if column:
        raise InputError(
            f"{owner}: column {column!r} of {data.name!r} and of {training.name!r} are encoded "
            f"differently; load {data.name!r} with encoding=data.encoding of the training data, or "
            "divide one table by data.split"
        )


# --- labels ---------------------------------------------------------------------------------------


def encode_labels(
    owner: str, loss: Loss, data: Dataset, classes: Classes | None = None
) -> tuple[Vector, Classes | None]:
    """Turn the labels of a data set into the targets of a loss.

    Args:
        owner: The problem's name, for error messages.
        loss: The loss.
        data: The rows.
        classes: The classes of the training rows, for other rows. If None, use those of the data.

    Returns:
        Targets (n,), and the classes, or None for a regression. Targets are class numbers for a
        softmax, -1 and +1 (the second class) for other losses of labels, and else numbers.

    Raises:
        InputError: If the labels do not suit the loss.
    """
    if not loss.needs_labels:
        return (_counts if loss.needs_counts else _targets)(owner, data), None
    numbers, found = class_numbers(owner, data, classes)
    if len(found) == 1:
        raise InputError(
            f"{owner}: the labels of {data.name!r} are all {found[0]!r}, which is a single class"
        )
    if loss is SOFTMAX:
        return numbers.astype(np.float64), found
    if len(found) > 2:
        raise InputError(
            f"{owner}: the labels of {data.name!r} must be of two kinds, such as 0 and 1; "
            f"they have {len(found)} values; use softmax"
        )
    return np.where(numbers == 1, 1.0, -1.0), found


def class_numbers(
    owner: str, data: Dataset, classes: Classes | None = None
) -> tuple[Ints, Classes]:
    """Turn the labels of a data set into class numbers.

    Args:
        owner: The problem's name, for error messages.
        data: The rows.
        classes: The classes of the training rows, for other rows. If None, use those of the data.

    Returns:
        Class numbers (n,), and the classes in their order: sorted, as the user wrote them.

    Raises:
        InputError: If the labels are not classes, or one of them is not among `classes`.
    """
    own = data.classes
    if own is None:
        own, numbers = _number_values(owner, data)
    elif len(own) == 2:
        numbers = (data.y > 0).astype(np.int64)
    else:
        numbers = data.y.astype(np.int64)
    if classes is None or own == classes:
        return numbers, own
    position = {label: number for number, label in enumerate(classes)}
    present = [own[number] for number in np.unique(numbers).tolist()]
    unknown = [label for label in present if label not in position]
    if unknown:
        raise InputError(
            f"{owner}: {data.name!r} has the label {unknown[0]!r}, which the training rows do not "
            f"have; they have {', '.join(map(repr, classes[:10]))}"
        )
    return np.array([position.get(label, 0) for label in own], dtype=np.int64)[numbers], classes


def _number_values(owner: str, data: Dataset) -> tuple[Classes, Ints]:
    """Take numbers as classes; -1 and 1 are two classes even where only one of them occurs."""
    if data.binary:
        return (-1, 1), (data.y > 0).astype(np.int64)
    found, numbers = np.unique(data.y, return_inverse=True)
    is_whole = bool((found == np.round(found)).all())
    if len(found) > 2 and (len(found) > _MOST_CLASSES or not is_whole):
        raise InputError(
            f"{owner}: the labels of {data.name!r} have {len(found):,} different values, which are "
            "not classes; use a regression such as squares or huber"
        )
    return tuple(int(v) if is_whole else float(v) for v in found), numbers.astype(np.int64)


def _targets(owner: str, data: Dataset) -> Vector:
    """Return the targets (n,) of a regression; two classes are -1 and +1."""
    if data.classes is not None and len(data.classes) > 2 and isinstance(data.classes[0], str):
        raise InputError(
            f"{owner}: the labels of {data.name!r} are {len(data.classes)} classes such as "
            f"{data.classes[0]!r}, and not numbers; use softmax"
        )
    return data.y


def _counts(owner: str, data: Dataset) -> Vector:
    """Return the targets (n,) as counts; classes 0 and 1, stored as -1 and +1, become numbers."""
    target = data.y
    if data.classes is not None:
        if any(isinstance(label, str) for label in data.classes):
            raise InputError(
                f"{owner}: the labels of {data.name!r} must be counts, not classes such as "
                f"{data.classes[0]!r}"
            )
        target = np.array(data.classes, dtype=np.float64)[class_numbers(owner, data)[0]]
    if float(target.min()) < 0:
        raise InputError(
            f"{owner}: the targets of {data.name!r} must be counts of at least 0; "
            f"the smallest is {target.min():g}"
        )
    return target
