"""Data sets: rows of features, labels, whose row each is, and a digest of the content."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpage.core.display import html_table
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import permutation
from fedpage.core.types import Ints, Vector
from fedpage.core.validate import as_number, choice, is_finite

if TYPE_CHECKING:
    from fedpage.data.encoding import Encoding

Label: TypeAlias = str | int | float | bool
"""A class as the user wrote it."""
RowChoice: TypeAlias = slice | Ints | NDArray[np.bool_] | list[int]
"""Rows by a slice, a mask or their numbers."""


class Sparse(NamedTuple):
    """The features of n rows as the arrays of a CSR matrix.

    Attributes:
        indptr: (n+1,) where each row begins in `indices` and `values`.
        indices: (nnz,) columns, from 0 to features - 1.
        values: (nnz,) entries.
        features: the number of columns.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Vector
    features: int

    def take(self, rows: Ints) -> Sparse:
        """Copy some rows, in the order given."""
        return Sparse.from_scipy(self.to_scipy()[rows])

    @classmethod
    def from_scipy(cls, matrix: Any) -> Sparse:
        """Take the arrays of a scipy.sparse CSR matrix, without a copy of its values."""
        return cls(
            matrix.indptr.astype(np.int64, copy=False),
            matrix.indices.astype(np.int32, copy=False),
            matrix.data,
            int(matrix.shape[1]),
        )

    @property
    def is_valid(self) -> bool:
        """Whether `indptr` rises from 0 to the number of values, and all indices are columns."""
        indptr, indices, values, features = self
        is_rising = indptr[0] == 0 and bool((np.diff(indptr) >= 0).all())
        is_inside = indices.min(initial=0) >= 0 and indices.max(initial=0) < max(features, 1)
        return bool(is_rising and is_inside and indptr[-1] == len(indices) == len(values))

    def to_scipy(self) -> Any:
        """Return a scipy.sparse CSR array that shares the memory."""
        from scipy.sparse import csr_array

        shape = (len(self.indptr) - 1, self.features)
        return csr_array((self.values, self.indices, self.indptr), shape=shape)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Hold n rows of p features and n labels, and for each row the client whose row it is.

    `from_arrays`, `from_clients`, `from_frame`, `load` and `from_huggingface` make one from what
    users have.

    Attributes:
        name: the name in records and reports.
        matrix: the features, `Sparse` or a dense array (n, p) of float64 in C order.
        y: (n,) labels or targets. Of two classes -1 and +1, of more the class numbers 0, 1, ...
        classes: the labels as they were given, in the order of the class numbers; None for targets
            of a regression, and for numbers that may be either.
        clients: (n,) ids, text or whole numbers; None where rows have no owner yet.
        columns: the names of the features, or none.
        encoding: how the columns of a table became features; None for arrays.
        note: what a reader of results must know, such as that the data is synthetic.

    Raises:
        InputError: the arrays do not fit together, or hold a NaN or an infinity.
    """

    name: str
    matrix: Sparse | Vector
    y: Vector
    classes: tuple[Label, ...] | None = None
    clients: NDArray[np.generic] | None = None
    columns: tuple[str, ...] = ()
    encoding: Encoding | None = None
    note: str = ""

    def __post_init__(self) -> None:
        matrix, y = self.matrix, self.y
        is_matrix = isinstance(matrix, Sparse) or np.ndim(matrix) == 2
        if not is_matrix or getattr(y, "ndim", 0) != 1:
            found = short_repr(y if is_matrix else matrix)
            raise _error(self, f"matrix must be (n, p) or Sparse, and y a vector, not {found}")
        if isinstance(matrix, Sparse) and not matrix.is_valid:
            raise _error(self, "indptr must rise from 0 to len(values), and indices be in range")
        rows = len(matrix[0]) - 1 if isinstance(matrix, Sparse) else len(matrix)
        if rows != len(y):
            raise _error(self, f"X has {rows} rows but y has {len(y)} labels")
        if rows == 0 or self.features < 1:
            raise _error(self, f"it has no rows or no features ({rows} x {self.features})")
        has_ids = self.clients is None or np.shape(self.clients) == (rows,)
        if not has_ids or np.shape(self.columns) not in ((0,), (self.features,)):
            raise _error(self, f"needs {rows} client ids or None, and {self.features} columns")
        values = matrix.values if isinstance(matrix, Sparse) else matrix
        for what, numbers in (("X", values), ("y", y)):
            if not is_finite(numbers):
                raise _error(self, f"{what} must be finite, without NaN or infinity")

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: ArrayLike,
        name: str = "mine",
        note: str = "",
        *,
        clients: ArrayLike | None = None,
    ) -> Dataset:
        """Make a data set from arrays.

        Args:
            X: (n, p) features. A dense array stays dense, without a copy if it holds float64 in
                C order; a scipy.sparse matrix stays sparse, without a copy if it is a CSR matrix
                of float64 with sorted indices.
            y: (n,) labels or targets. Text, booleans and the numbers 0/1, 1/2 and -1/1 are classes.
                Other numbers are kept: a problem takes them as targets or as classes.
            name: the name in records and reports.
            note: what a reader of results must know.
            clients: (n,) ids that say whose row each is, strings or whole numbers.

        Raises:
            InputError: an argument has a wrong shape, or values that are not finite real numbers,
                or an id is missing.

        >>> Dataset.from_arrays([[1.0, 0.0], [0.0, 2.0]], ["no", "yes"]).classes
        ('no', 'yes')
        """
        try:
            labels = np.asarray(y)
        except ValueError:  # lists of different lengths
            labels = np.empty((0, 0))
        if labels.ndim != 1 and labels.shape != (labels.size, 1):
            raise _error(name, f"y must be a vector, not {short_repr(y)}")
        target, classes = encode_labels(name, labels.ravel())
        ids = None if clients is None else clean_ids(f"data set {short_repr(name)}", clients)
        return cls(name, _features(name, X), target, classes=classes, clients=ids, note=note)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, ArrayLike]],
        *,
        ids: Sequence[Label] | None = None,
        name: str = "mine",
        note: str = "",
    ) -> Dataset:
        """Make a data set from one pair of arrays per client.

        Args:
            clients: for each client (X, y), features (n_i, p) and labels or targets (n_i,).
            ids: the clients' ids; by default 0, 1, ...
            name: the name in records and reports.
            note: what a reader of results must know.

        Raises:
            InputError: a client has no rows, or its rows do not fit the other clients' rows.

        >>> data = Dataset.from_clients([([[1.0]], [0]), ([[2.0], [3.0]], [1, 0])])
        >>> data.clients.tolist()
        [0, 1, 1]
        """
        from scipy.sparse import issparse, vstack

        is_list = isinstance(clients, (list, tuple)) and isinstance(ids, (list, tuple, type(None)))
        if not is_list or not all(isinstance(c, (tuple, list)) and len(c) == 2 for c in clients):
            raise _error(name, "clients must be a list of pairs (X, y), and ids a list")
        names: Sequence[Label] = range(len(clients)) if ids is None else ids
        if not clients or not len(names) == len(set(names)) == len(clients):
            raise _error(name, f"{len(clients)} clients have {len(set(names))} different ids")
        matrices = [X if issparse(X) else np.asarray(X) for X, _ in clients]
        labels = [np.asarray(y).ravel() for _, y in clients]
        sizes = [len(y) for y in labels]
        width = matrices[0].shape[-1] if matrices[0].ndim == 2 else 0
        for client, X, size in zip(names, matrices, sizes, strict=True):
            if X.shape != (size, width) or not size:
                raise _error(
                    name,
                    f"client {client} has X of shape {X.shape} and {size} labels; X must have a "
                    f"row per label, at least one, and {width} columns as the first client",
                )
        return cls.from_arrays(
            (vstack if any(map(issparse, matrices)) else np.concatenate)(matrices),
            np.concatenate(labels),
            name=name,
            note=note,
            clients=np.repeat(np.array(names), sizes),
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        label: str | None = None,
        client: str | None = None,
        standardise: bool = False,
        missing: Literal["error", "drop", "mean"] = "error",
        name: str = "frame",
        drop: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        encoding: Encoding | None = None,
    ) -> Dataset:
        """Make a data set from a table in memory.

        Columns of numbers and booleans are features. Columns of text or categories become one
        feature a category. Columns of dates must be left out.

        Args:
            frame: a frame of pandas, polars, pyarrow or another library with the arrow or
                dataframe protocol; or columns {name: values}; or rows [{name: value}].
            label: the column that holds the labels or targets; needed without `encoding`.
            client: the column that says whose row each is; it is not a feature.
            standardise: whether numbers get mean 0 and standard deviation 1.
            missing: what to do about missing values: "error"; "drop" leaves out the rows; "mean"
                fills in the mean of numbers, and makes one more category of missing categories.
            name: the name in records and reports.
            drop: columns to leave out.
            columns: the columns to use as features; by default all others.
            categorical: columns that are categories although they hold numbers.
            encoding: the encoding of another data set, as `train.encoding`: test rows get the same
                features. It also says which columns are the label and the client ids.

        Returns:
            The data set; its `encoding` encodes new rows.

        Raises:
            InputError: a column is unknown, or a cell cannot be used; the message names it.

        >>> rows = {"age": [30, 50, 41], "smoker": ["no", "yes", "no"], "ill": [0, 1, 1]}
        >>> Dataset.from_frame(rows, label="ill").columns
        ('age', 'smoker=no', 'smoker=yes')
        """
        from fedpage.data.frames import FrameReader
        from fedpage.data.registry import TableOptions
        from fedpage.data.tables import make_dataset

        options = TableOptions(
            label, client, standardise, missing, drop, columns, categorical, encoding
        )
        return make_dataset(FrameReader(frame, name), options, name)

    @property
    def rows(self) -> int:
        """The number of rows, n."""
        return len(self.y)

    @property
    def features(self) -> int:
        """The number of features, p."""
        return self.matrix.features if isinstance(self.matrix, Sparse) else self.matrix.shape[1]

    @property
    def is_dense(self) -> bool:
        """Whether the features are a dense array."""
        return not isinstance(self.matrix, Sparse)

    @property
    def nonzeros(self) -> int:
        """The number of stored entries of X."""
        return len(self.matrix.values) if isinstance(self.matrix, Sparse) else self.matrix.size

    @property
    def binary(self) -> bool:
        """Whether the labels are -1/+1."""
        return bool(np.all(np.abs(self.y) == 1.0))

    @cached_property
    def X(self) -> Any:
        """The features (n, p), dense or as a scipy.sparse CSR array that shares their memory."""
        return self.matrix.to_scipy() if isinstance(self.matrix, Sparse) else self.matrix

    def to_dense(self) -> Vector:
        """Return the features as a dense array (n, p)."""
        return np.asarray(self.X if self.is_dense else self.X.toarray())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content in a canonical little-endian form: shape, labels, features."""
        matrix, n = self.matrix, self.rows
        if isinstance(matrix, Sparse):
            indptr, indices, values, features = matrix
            state = hashlib.sha256(f"fedpage-data-1 {n} {features} {len(values)}".encode())
            parts = [(self.y, "<f8"), (indptr, "<i8"), (indices, "<i4"), (values, "<f8")]
        else:
            state = hashlib.sha256(f"fedpage-dense-1 {n} {self.features}".encode())
            parts = [(self.y, "<f8"), (matrix, "<f8")]
        for array, kind in parts:
            state.update(np.ascontiguousarray(array, dtype=kind).data.cast("B"))
        return state.hexdigest()

    def __getitem__(self, rows: RowChoice) -> Dataset:
        """Return the data set of some rows: a slice, a mask (n,) or row numbers.

        >>> Dataset.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1])[1:].y.tolist()
        [1.0, 1.0]
        """
        try:
            numbers = np.arange(self.rows)[rows]
        except (IndexError, TypeError, ValueError):
            chosen = short_repr(rows)
            raise _error(self, f"it has {self.rows} rows, and not {chosen}") from None
        numbers, matrix = np.atleast_1d(numbers), self.matrix
        return replace(
            self,
            matrix=matrix.take(numbers) if isinstance(matrix, Sparse) else matrix[numbers],
            y=self.y[numbers],
            clients=None if self.clients is None else self.clients[numbers],
        )

    def split(
        self,
        test: float = 0.2,
        seed: int = 0,
        *,
        stratify: bool = True,
        by: Literal["rows", "clients"] = "rows",
    ) -> tuple[Dataset, Dataset]:
        """Divide the data set at random into one to train on and one to test with.

        Args:
            test: the share of rows, or of clients, in the second data set.
            seed: of the random choice.
            stratify: whether every class (or every client, where rows have ids) has this share of
                its rows in the test set, up to rounding, and keeps a row to train on. With ids,
                classes have it at each client as far as its rows suffice. Targets of a regression
                are not stratified.
            by: "rows", or "clients": a client's rows then stay together.

        Returns:
            The training set and the test set, each in the order of the data.

        Raises:
            InputError: a part would have no rows, or `by="clients"` without client ids.
        """
        if not 0.0 < as_number(test) < 1.0:
            raise InputError(f"split: test must be between 0 and 1, not {short_repr(test)}")
        choice("split", "by", by, ("rows", "clients"))
        if by == "rows":
            chosen = self._choose_rows(test, seed, stratify)
        elif self.clients is None:
            raise InputError(f"split: {self.name!r} has no client ids; use by='rows'")
        else:
            ids, owner = np.unique(self.clients, return_inverse=True)
            count = int(test * len(ids) + 0.5)
            chosen = np.isin(owner, permutation(seed, 8, size=len(ids))[:count])
        if chosen.all() or not chosen.any():
            raise InputError(
                f"split: test={test:g} leaves a part of {self.name!r} without rows; choose another "
                "share, or stratify=False if clients have too few rows"
            )
        return self[~chosen], self[chosen]

    def _choose_rows(self, test: float, seed: int, stratify: bool) -> NDArray[np.bool_]:
        """Choose a share of the rows at random within each class and client; return a mask (n,)."""
        client = label = np.zeros(self.rows, dtype=np.int64)
        if stratify and self.clients is not None:
            client = np.unique(self.clients, return_inverse=True)[1].astype(np.int64)
        if stratify and self.classes is not None:
            label = np.unique(self.y, return_inverse=True)[1].astype(np.int64)
        strata, group = np.unique(client * (label.max() + 1) + label, return_inverse=True)
        if self.clients is not None:  # else small clients would all give rows of the same class
            shuffled = permutation(seed, 9, size=len(strata))
            place = np.empty(len(strata), dtype=np.int64)
            place[np.lexsort((shuffled, strata // (label.max() + 1)))] = np.arange(len(strata))
            group = place[group]
        order = permutation(seed, 8, size=self.rows)
        order = order[np.argsort(group[order], kind="stable")]
        sizes = np.bincount(group)
        # the cumulative share is rounded, so that small groups do not all lose or win
        ends = np.floor(test * np.cumsum(sizes) + 0.5).astype(np.int64)
        rank = np.arange(self.rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = np.zeros(self.rows, dtype=bool)
        chosen[order[rank < np.repeat(np.diff(ends, prepend=0), sizes)]] = True
        for member in (client, label):  # each keeps a row to train on
            last = np.empty(int(member.max()) + 1, dtype=np.int64)
            last[member[order]] = order
            left = np.bincount(member, weights=~chosen, minlength=len(last))
            chosen[last[left == 0]] = False
        return chosen

    def __repr__(self) -> str:
        stored = "dense" if self.is_dense else f"{self.nonzeros:,} nonzeros"
        words = [repr(self.name), f"{self.rows:,} x {self.features:,}", stored]
        if self.classes is not None and len(self.classes) > 2:
            words.append(f"{len(self.classes)} classes")
        if self.clients is not None:
            words.append(f"{len(np.unique(self.clients)):,} clients")
        return f"Dataset({', '.join(words)})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"rows": self.rows, "features": self.features}
        if self.classes is not None:
            numbers = np.unique(self.y, return_inverse=True)[1]
            counts = np.bincount(numbers, minlength=len(self.classes)).tolist()
            facts["labels"] = dict(zip(self.classes, counts, strict=True))
        return html_table(repr(self), (), facts.items(), self.note)


def _error(data: Dataset | str, text: str) -> InputError:
    """Make the error about a data set or its name."""
    return InputError(f"data set {short_repr(getattr(data, 'name', data))}: {text}")


def _features(name: str, X: Any) -> Sparse | Vector:
    """Convert a matrix of real numbers; dense stays dense and sparse stays sparse."""
    from scipy.sparse import csr_array, issparse

    try:
        given = X if issparse(X) else np.asarray(X)
        _check_real(given.dtype)
        if given.ndim != 2 or given.shape[1] == 0:
            raise ValueError(f"with at least one column, not of shape {given.shape}")
        if not issparse(X):
            return np.ascontiguousarray(given, dtype=np.float64)
        matrix = csr_array(given.astype(np.float64, copy=False))
    except (TypeError, ValueError) as error:
        raise _error(name, f"X must be a matrix of real numbers ({error})") from None
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # it may share the memory of X, which is the user's
        matrix.sum_duplicates()
    return Sparse.from_scipy(matrix)


def _check_real(kind: np.dtype[Any]) -> None:
    """Refuse types that numpy converts to real numbers without a word."""
    if kind.kind in "cMm":
        raise ValueError("complex numbers" if kind.kind == "c" else "dates or times")


def encode_labels(name: str, y: NDArray[np.generic]) -> tuple[Vector, tuple[Label, ...] | None]:
    """Encode labels (n,) as numbers.

    Args:
        name: the data set's name, for the error message.
        y: text, booleans or numbers.

    Returns:
        Two classes as -1 and +1, more as 0, 1, ... in sorted order, and the classes; numbers other
        than 0/1, 1/2 and -1/1 as they are, and None.

    Raises:
        InputError: the labels are neither text, booleans nor real numbers.

    >>> encode_labels("mine", np.array(["b", "a", "b"]))
    (array([ 1., -1.,  1.]), ('a', 'b'))
    >>> encode_labels("mine", np.array([0.0, 10.0]))
    (array([ 0., 10.]), None)
    """
    if y.dtype.kind == "O":
        missing = [row for row, label in enumerate(y) if label is None or label != label]
        if missing:
            raise _error(name, f"row {missing[0] + 1} has no label")
        for kinds in ((bool, np.bool_), (str,)):
            if all(isinstance(label, kinds) for label in y):
                y = y.astype(kinds[0])
    if y.dtype.kind in "UTb":
        found, number = np.unique(y, return_inverse=True)
        return class_targets(number.astype(np.int64), len(found)), tuple(found.tolist())
    try:
        _check_real(y.dtype)
        target = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _error(name, f"y must be a vector of labels or real numbers ({error})") from None
    found = np.unique(target)  # a NaN is found later
    if found.tolist() in ([0.0, 1.0], [1.0, 2.0], [-1.0, 1.0]):
        classes = tuple(int(label) for label in found.tolist())
        return np.where(target == found[1], 1.0, -1.0), classes
    return target, None


def class_targets(number: Ints, classes: int) -> Vector:
    """Return class numbers (n,) as targets: -1 and +1 for two classes, the numbers for more."""
    if classes == 2:
        return np.where(number == 1, 1.0, -1.0)
    return number.astype(np.float64)


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
    if array.dtype.kind not in "iuU":
        array = array.astype(object)
    cells = array.tolist()
    missing = [at for at, cell in enumerate(cells) if is_missing(cell) or cell == ""]
    if missing:
        raise InputError(
            f"{owner}: {len(missing):,} of {len(cells):,} rows have no id (the first is row "
            f"{missing[0]}); fill in the ids, or remove these rows"
        )
    kinds = {type(cell) for cell in cells}
    if all(issubclass(kind, str) for kind in kinds):
        return array.astype(str)
    if bool not in kinds and all(issubclass(kind, (int, float, np.number)) for kind in kinds):
        numbers = np.array(cells)
        if numbers.dtype.kind in "iu":
            return numbers
        # tables hold whole numbers as floats where some are missing
        if numbers.dtype.kind == "f" and np.all(numbers % 1 == 0) and np.abs(numbers).max() < 2**53:
            return numbers.astype(np.int64)
    raise InputError(
        f"{owner}: ids must be all strings or all whole numbers, and these are of type "
        f"{', '.join(sorted(kind.__name__ for kind in kinds))}"
    )


def is_missing(cell: object) -> bool:
    """Return True for None, NaN and the missing values of pandas."""
    is_nan = isinstance(cell, float) and math.isnan(cell)
    return cell is None or is_nan or type(cell).__name__ in ("NAType", "NaTType")
