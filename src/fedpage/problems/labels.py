"""Labels of a classification: which classes a problem has, and each row's class."""

from __future__ import annotations

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Ints, Vector
from fedpage.data.dataset import Dataset, Label

Classes = tuple[Label, ...]
_MOST_CLASSES = 10_000
"""More different labels than that are taken for the targets of a regression."""


def class_numbers(
    owner: str, data: Dataset, classes: Classes | None = None
) -> tuple[Ints, Classes]:
    """Turn the labels of a data set into class numbers.

    Args:
        owner: the problem's name, for error messages.
        data: the rows.
        classes: the classes of the training rows, for held-out rows; None: those of the data.

    Returns:
        (n,) class numbers, and the classes in their order: sorted, as the user wrote them.

    Raises:
        InputError: the labels are not classes, or one of them is not among `classes`.
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
    present = set(np.unique(numbers).tolist())
    unknown = [
        label for number, label in enumerate(own) if number in present and label not in position
    ]
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
    if len(found) > 2 and (len(found) > _MOST_CLASSES or bool((found != np.round(found)).any())):
        raise InputError(
            f"{owner}: the labels of {data.name!r} have {len(found):,} different values, which are "
            "no classes; use a regression such as squares or huber"
        )
    whole = bool((found == np.round(found)).all())
    return tuple(int(v) if whole else float(v) for v in found), numbers.astype(np.int64)


def targets(owner: str, data: Dataset) -> Vector:
    """Return the targets (n,) of a regression; two classes are -1 and +1.

    Raises:
        InputError: the labels are more than two texts, whose class numbers mean nothing.
    """
    if data.classes is not None and len(data.classes) > 2 and isinstance(data.classes[0], str):
        raise InputError(
            f"{owner}: the labels of {data.name!r} are {len(data.classes)} classes such as "
            f"{data.classes[0]!r}, and not numbers; use softmax"
        )
    return data.y


def counts(owner: str, data: Dataset) -> Vector:
    """Return the targets (n,) as counts; the classes 0 and 1, kept as -1 and +1, are numbers again.

    Raises:
        InputError: a target is negative, or the labels are no numbers.
    """
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


def two_classes(
    owner: str, data: Dataset, classes: Classes | None = None
) -> tuple[Vector, Classes]:
    """Return the labels (n,) as -1 and +1, the second class positive, and the two classes.

    Raises:
        InputError: there are not two classes.
    """
    numbers, found = class_numbers(owner, data, classes)
    if len(found) == 1:
        raise InputError(
            f"{owner}: the labels of {data.name!r} are all {found[0]!r}, which is a single class"
        )
    if len(found) > 2:
        raise InputError(
            f"{owner}: the labels of {data.name!r} must be of two kinds, such as 0 and 1; "
            f"they have {len(found)} values; use softmax"
        )
    return np.where(numbers == 1, 1.0, -1.0), found
