"""The partition by ids, where the data says whose row each is."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.validate import is_word
from fedpage.data.partition import PARTITIONS, Partition, check_min_rows, from_owners


@PARTITIONS.register("by-id")
def by_id(
    ids: Any, *, min_rows: int = 1, small: Literal["error", "drop", "merge"] = "error"
) -> Partition:
    """Make a client of the rows of each id, such as a hospital or a user.

    Args:
        ids: (n,) whose row each is: strings or whole numbers, as an array, a list or a Series.
        min_rows: clients with fewer rows are small.
        small: what is done with small clients. "error": they are refused; "drop": their rows are
            not used; "merge": they become one client, the last one, with the id "(other)".

    Returns:
        The clients in the order of their sorted ids, which are in `Partition.ids`.

    Raises:
        InputError: an id is missing, or is neither a string nor a whole number, or a client has
            fewer than `min_rows` rows.

    >>> clinics = by_id(["Rome", "Bern", "Rome"])
    >>> clinics.ids, clinics.rows(1).tolist()
    (('Bern', 'Rome'), [0, 2])
    """
    names, owner = np.unique(clean_ids("by_id", ids), return_inverse=True)
    check_min_rows("by_id", len(owner), 0, min_rows)
    if not is_word(small, ("error", "drop", "merge")):
        raise InputError(f"by_id: small must be error, drop or merge, not {short_repr(small)}")
    sizes = np.bincount(owner)
    is_small = sizes < min_rows
    kept: list[str | int] = names[~is_small].tolist()
    what = "" if min_rows <= 1 else f", min_rows={min_rows}"
    if is_small.any():
        count, rows = int(is_small.sum()), int(sizes[is_small].sum())
        found = (
            f"by_id: {count} of {len(names)} clients have fewer than min_rows={min_rows} rows "
            f"(such as {short_repr(names[is_small][0].item())} with {sizes[is_small][0]})"
        )
        if small == "error":
            raise InputError(
                f'{found}; lower min_rows, or choose small="drop" or "merge" '
                "(--partition by-id:drop or by-id:merge)"
            )
        if small == "merge" and rows < min_rows:
            raise InputError(f"{found}, and together only {rows}; drop them, or lower min_rows")
        if small == "drop" and not kept:
            raise InputError(f"{found}, so that none is left; lower min_rows")
        number = np.full(len(names), len(kept) if small == "merge" else -1)
        number[~is_small] = np.arange(len(kept))
        owner = number[owner]
        if small == "merge":
            kept.append("(other)")
        done = "dropped" if small == "drop" else "merged"
        what += f": {count} id{'s' * (count > 1)} with {rows} row{'s' * (rows > 1)} {done}"
    return from_owners(owner, len(kept), f"by_id({len(kept)}{what})", tuple(kept))


def clean_ids(owner: str, ids: Any) -> NDArray[Any]:
    """Return ids (n,) as an array of strings or of integers.

    Args:
        owner: what uses the ids, for error messages.
        ids: strings or whole numbers, as an array, a list or a Series.

    Raises:
        InputError: an id is missing, or is neither a string nor a whole number.
    """
    # numpy would turn None and NaN among strings of a list into strings
    array = np.asarray(ids, dtype=object if isinstance(ids, (list, tuple)) else None)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"{owner}: there must be one id for each row, not shape {array.shape}")
    if array.dtype.kind not in "biufUM":
        array = array.astype(object)
    missing = (
        np.array([_is_missing(value) for value in array])
        if array.dtype.kind == "O"
        else (array == "")
        if array.dtype.kind == "U"
        else array != array
    )
    if missing.any():
        raise InputError(
            f"{owner}: {int(missing.sum()):,} of {len(array):,} rows have no id (the first is row "
            f"{int(np.argmax(missing))}); fill in the ids, or remove these rows"
        )
    types = {type(value) for value in array} if array.dtype.kind == "O" else {array.dtype.type}
    if all(issubclass(kind, str) for kind in types):
        return array.astype(str)
    if array.dtype.kind == "O" and all(issubclass(kind, (int, float, np.number)) for kind in types):
        array = np.array(array.tolist())
    if array.dtype.kind in "iu" and bool not in types:
        return array
    if array.dtype.kind == "f" and (array == np.floor(array)).all() and abs(array).max() < 2**53:
        return array.astype(np.int64)  # tables hold whole numbers as floats where some are missing
    names = ", ".join(sorted(kind.__name__ for kind in types))
    raise InputError(
        f"{owner}: ids must be all strings or all whole numbers, and these are of type "
        f"{names}; convert them, as by [str(i) for i in ids]"
    )


def _is_missing(value: object) -> bool:
    """Tell whether an id is None, empty, or a marker such as NaN that is not equal to itself."""
    try:
        return value is None or value == "" or bool(value != value)
    except TypeError:  # pandas.NA has no truth value
        return True
