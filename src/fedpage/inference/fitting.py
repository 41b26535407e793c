"""Fit exact models over sites by Newton's method, with what statisticians ask for."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
from scipy.linalg import eigh
from scipy.special import gammaln, xlogy

from fedpage.core.errors import InputError
from fedpage.core.files import check_file
from fedpage.core.hessian import unpack
from fedpage.core.types import Vector
from fedpage.core.validate import as_number, check_whole, choice
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, by_id
from fedpage.data.registry import load
from fedpage.engine.round import AnyEngine
from fedpage.engine.simulate import Simulation
from fedpage.inference.design import INTERCEPT, Design, column_sums, make_design, standardise
from fedpage.inference.result import Covariance, Family, FitResult
from fedpage.methods.newton import Newton
from fedpage.problems.cox import CoxModel, Ties
from fedpage.problems.linear import LinearModel

_LOSSES = {"logistic": "logistic", "gaussian": "squares", "poisson": "poisson"}
_SITE = "(site)"
"""The column of the site in a table that is joined of several files."""
_CONVERGED = 1e-14
"""Twice the distance of the log-likelihood to its maximum: no parameter is then further than 1e-7
standard errors away."""
_COLLINEAR = 1e-10
"""The least eigenvalue of the Hessian at 0, in units of its diagonal."""
_NEARLY_SEPARATED = 1e-3
"""The same for a fit that did not end."""
_SEPARATED = 1e-6
"""The least eigenvalue of the Hessian in units of that of the model with the intercept alone."""


class Outcome(NamedTuple):
    """Sums over all rows of all sites of what the covariates have no part in."""

    rows: int
    total: float
    """The sum of b."""
    squares: float
    """The sum of b^2."""
    log_factorials: float
    """The sum of log b!."""
    logs: float
    """The sum of b log b."""


def fit(
    data: Dataset | str | os.PathLike[str] | Any,
    family: Family = "logistic",
    *,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    sites: Partition | None = None,
    time: Any = None,
    event: Any = None,
    ties: Ties = "efron",
    reference: Mapping[str, str] | None = None,
    intercept: bool = True,
    covariance: Covariance = "model",
    max_exchanges: int = 50,
    **options: Any,
) -> FitResult:
    """Fit a generalised linear model or a Cox model over sites, exactly, with standard errors.

    The sites send sums over their rows: of the columns once, then of the loss, its gradient and its
    Hessian in each exchange of Newton's method. The estimates are those of the pooled rows.

    Args:
        data: A data set, the path or frame of a table, or a list of paths, one for each site.
        family: "logistic", "gaussian" (least squares), "poisson" or "cox".
        label: The outcome's column of a table; for "cox" the columns of time and event.
        client: The column of a table that says of which site each row is.
        sites: A partition of the rows. If None, `data.clients` says of which site each row is.
        time: For "cox" with a data set, the time of each row until its event or its censoring.
        event: For "cox" with a data set, whether each row ended with an event.
        ties: For "cox", "efron" or "breslow".
        reference: The level of categorical columns that the others are compared with. By default
            it is the first.
        intercept: Whether the model has an intercept. A Cox model has none.
        covariance: "model", "HC0" (robust), or "cluster" (clustered by site).
        max_exchanges: The most exchanges of Newton's method.
        options: Further options of `fp.load` for a table, such as drop=("id",).

    Returns:
        The result; `print` it.

    Raises:
        InputError: If an argument is wrong, columns are collinear or separate the outcomes, or the
            method does not converge.

    >>> import fedpage as fp
    >>> rows = {"age": [40, 50, 60, 45, 55, 65, 70, 35], "ill": [0, 0, 1, 1, 0, 1, 1, 0],
    ...         "site": ["A", "A", "A", "A", "B", "B", "B", "B"]}
    >>> found = fp.fit(rows, "logistic", label="ill", client="site")
    >>> dict(zip(found.names, found.params.round(3).tolist()))
    {'age': 0.165, 'Intercept': -8.682}
    """
    choice("fit", "family", family, get_args(Family))
    choice("fit", "covariance", covariance, get_args(Covariance))
    check_whole("max_exchanges", max_exchanges, 1)
    if not isinstance(data, Dataset):
        data, time, event = _load(data, family, label, client, time, event, options)
    elif label is not None or client is not None or options:
        raise InputError("fit: label, client and options of load are for tables, not a Dataset")
    if sites is None and data.clients is None:
        raise InputError(
            "fit: nothing says of which site each row is; give client=COLUMN (--client-column), a "
            "file for each site, or sites= a partition"
        )
    partition = by_id(data.clients) if sites is None else sites
    is_cox = family == "cox"
    if is_cox and (time is None or event is None):
        raise InputError('fit: "cox" needs time and event, or label=("time", "event") for a table')
    design = make_design(data, dict(reference or {}), intercept and not is_cox)
    problem, design, outcome = _make_problem(data, family, partition, design, (time, event, ties))
    simulation = Simulation(problem, Newton(), seed=0)
    newton = NewtonFit(simulation, family, design, outcome.rows, outcome)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(max_exchanges):
            simulation.step()
            if newton.is_done():
                floats = (2 * len(design.names) + 5) * problem.N
                found = newton.result(data.classes, problem, covariance, floats)
                known = data.encoding
                return replace(
                    found, label=known.label if known else None,
                    dropped_rows=known.dropped_rows if known else 0,
                )  # fmt: skip
    newton.explain()
    raise InputError(f"fit: {no_maximum(max_exchanges)}")


def no_maximum(exchanges: int) -> str:
    """Return the sentence about a fit that does not end."""
    return (
        f"no maximum of the likelihood after {exchanges} exchanges; look for columns of extreme "
        "values, or leave columns out"
    )


def _load(
    table: Any, family: Family, label: Any, client: str | None, time: Any, event: Any,
    options: Mapping[str, Any],
) -> tuple[Dataset, Any, Any]:  # fmt: skip
    """Load a table as a data set; for a Cox model also its times and events."""
    is_cox = family == "cox"
    if is_cox and (isinstance(label, str) or label is None or len(label) != 2):
        raise InputError('fit: "cox" needs the columns of time and event, label=("time", "event")')
    is_files = isinstance(table, (list, tuple)) and all(
        isinstance(path, (str, os.PathLike)) for path in table
    )
    if is_files and len(table) == 1:
        table, is_files = table[0], False
    if is_files and client is not None and table:
        raise InputError("fit: with several files every file is a site; leave client out")
    if isinstance(table, (str, os.PathLike)) and not is_cox:
        return load(table, label=label, client=client, **options), time, event

    from fedpage.data.frames import FrameReader
    from fedpage.data.registry import TableOptions
    from fedpage.data.tables import Reader, make_dataset, open_table

    chosen = TableOptions(client=_SITE if is_files and table else client, **options)
    reader: Reader
    if is_files and table:
        reader = _open_sites(table, label, chosen)
    elif isinstance(table, (str, os.PathLike)):
        reader = open_table(check_file(table))
    else:
        reader = FrameReader(table, "frame")
    if not is_cox:
        return make_dataset(reader, replace(chosen, label=label), reader.source), time, event
    first, second = label
    rows = 0
    if chosen.missing == "drop":
        reader, rows = _with_outcomes(reader, (first, second))
    data, ends = (
        make_dataset(reader, replace(chosen, label=one, drop=(*chosen.drop, other)), reader.source)
        for one, other in ((first, second), (second, first))
    )
    if data.encoding and rows:
        encoding = replace(data.encoding, dropped_rows=data.encoding.dropped_rows + rows)
        data = replace(data, encoding=encoding)
    return data, outcomes(data), outcomes(ends)


def _open_sites(paths: Sequence[str | os.PathLike[str]], label: Any, chosen: Any) -> Any:
    """Return the reader of the tables of several sites as one.

    Args:
        paths: The files.
        label: The column or columns of the outcome.
        chosen: The options of the table.
    """
    from fedpage.data.frames import SitesReader
    from fedpage.data.tables import open_table

    files = [check_file(path).resolve() for path in paths]
    for place, file in enumerate(files):
        if file in files[:place]:
            raise InputError(f"{paths[place]}: the file is given twice; each site has its own file")
    readers = {str(path): open_table(check_file(path)) for path in paths}
    unused = set(chosen.drop)
    if chosen.columns is not None:
        used = {*chosen.columns, *((label,) if isinstance(label, str) else label or ())}
        unused |= {name for reader in readers.values() for name in reader.names} - used
    return SitesReader(readers, _SITE, unused)


def _with_outcomes(reader: Any, label: tuple[str, str]) -> tuple[Any, int]:
    """Return the reader of the rows that have a time and an event, and how many have not."""
    from fedpage.data.frames import RowsReader, check_names

    check_names(label, reader.names, reader.source)
    table = reader.read(label)
    absent = table.is_missing(label[0]) | table.is_missing(label[1])
    return (RowsReader(reader, ~absent), int(absent.sum())) if absent.any() else (reader, 0)


def outcomes(data: Dataset) -> Vector:
    """Return the labels of a data set as numbers, as they were given; true is 1."""
    if data.classes is None:
        return data.y
    if set(data.classes) <= {False, True}:
        return (data.y > 0).astype(np.float64)
    numbers = np.array([as_number(value) for value in data.classes])
    if np.isnan(numbers).any():
        text = next(value for value in data.classes if math.isnan(as_number(value)))
        name = f", column {data.encoding.label!r}" if data.encoding else ""
        raise InputError(
            f"{data.name}{name}: the outcome must be numbers, not {text!r}; write 1 for yes or an "
            "event and 0 for no"
        )
    codes = (data.y > 0).astype(np.int64) if len(numbers) == 2 else data.y.astype(np.int64)
    return np.asarray(numbers[codes])


def _make_problem(
    data: Dataset, family: Family, partition: Partition, design: Design, survival: Any
) -> tuple[LinearModel | CoxModel, Design, Outcome]:
    """Standardise the columns by the sites' sums, and make the problem and its outcome's sums."""
    matrix = data.matrix if isinstance(data.matrix, np.ndarray) else data.matrix.to_scipy()
    order, ptr = partition.order, partition.ptr
    rows = [order[ptr[i] : ptr[i + 1]] for i in range(partition.N)]
    sums = [column_sums(matrix[own], design) for own in rows]
    n = int(partition.sizes.sum())
    totals = np.sum([one for one, _ in sums], axis=0), np.sum([two for _, two in sums], axis=0)
    design = standardise(design, *totals, n)
    columns = replace(data, matrix=design.columns(data.matrix), columns=design.names, encoding=None)
    if family == "cox":
        time, event, ties = survival
        cox = CoxModel(columns, time, event, partition, ties=ties)
        return cox, design, Outcome(n, 0.0, 0.0, 0.0, 0.0)
    if family == "logistic":
        y = data.y
        if set(np.unique(y).tolist()) != {-1.0, 1.0}:
            raise InputError(_not_two_kinds(data))
        positive = float((y[order] > 0).sum())
        sums_of_b = Outcome(n, positive, positive, 0.0, 0.0)
    else:
        y = outcomes(data)
        b = y[order]
        logs = (float(gammaln(b + 1).sum()), float(xlogy(b, b).sum())) if family == "poisson" else (
            0.0, 0.0,
        )  # fmt: skip
        sums_of_b = Outcome(n, float(b.sum()), float(b @ b), *logs)
        columns = replace(columns, y=y, classes=None)
    model = LinearModel(
        columns, partition, loss=_LOSSES[family], reg="none", intercept=design.intercept,
        weights="size",
    )  # fmt: skip
    return model, design, sums_of_b


def _not_two_kinds(data: Dataset) -> str:
    """Return the sentence about an outcome that a logistic regression cannot have."""
    kinds = data.classes or tuple(np.unique(data.y).tolist())
    shown = ", ".join(f"{kind:g}" if isinstance(kind, float) else str(kind) for kind in kinds[:4])
    name = f", column {data.encoding.label!r}" if data.encoding else ""
    return (
        f"{data.name}{name}: logistic regression needs outcomes of two kinds, such as 0 and 1, not "
        f"{len(kinds):,} ({shown}{', ...' if len(kinds) > 4 else ''})"
    )


class NewtonFit:
    """A fit in progress: what the exchanges of Newton's method say about the columns.

    Args:
        engine: The engine, which runs `Newton` with the weights "size".
        family: The family.
        design: The columns.
        rows: The number of rows at all sites.
        outcome: The sums of the outcomes. If None, they follow from the first exchange, at x = 0.

    Raises:
        InputError: If there are too few rows.
    """

    def __init__(
        self, engine: AnyEngine, family: Family, design: Design, rows: int, outcome: Outcome | None
    ) -> None:
        self.engine, self.family, self.design, self.rows = engine, family, design, rows
        self.outcome = outcome
        self.first: tuple[float, Vector, Vector] | None = None
        """The first exchange's loss, gradient (d,) and triangle of the Hessian."""
        self.constants: tuple[float, ...] = (0.0, 0.0)
        """The sums of log b! and b log b, for counts b whose sums are not in `outcome`."""
        if rows <= len(design.parameters):
            raise InputError(
                f"fit: {rows} rows are too few for {len(design.parameters)} parameters; "
                "leave columns out"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return self.design.parameters

    def is_done(self) -> bool:
        """Look at the newest exchange, and return whether the likelihood is at its maximum.

        Raises:
            InputError: If columns are collinear, or separate the outcomes.
        """
        state = self.engine.state
        if state.t == 0.0:  # before the first exchange
            return False
        if self.first is None:
            if self.family == "cox" and state.f == 0.0:
                raise InputError("fit: no row ended with an event")
            self.first = state.f, state.g, state.H
            self._check_collinear(unpack(state.H))
        elif (null := self._null_hessian(unpack(self.first[2]))) is not None:
            self._check_separated(unpack(state.H), null, state.base)
        scale = 2.0 * state.f if self.family == "gaussian" else 1.0
        return bool(self.rows * state.decrement <= _CONVERGED * scale)

    def sums(self) -> Outcome:
        """Return the sums of the outcomes, by the gradient of the intercept at x = 0 if need be."""
        if self.outcome is not None:
            return self.outcome
        assert self.first is not None
        f, g, _ = self.first
        at_zero = {"logistic": 0.5, "poisson": 1.0}.get(self.family, 0.0)
        total = self.rows * (at_zero - float(g[-1]))
        return Outcome(self.rows, total, 2.0 * self.rows * f, *self.constants)

    def _check_collinear(self, H: Vector) -> None:
        unit = 1.0 / np.sqrt(np.maximum(np.diag(H), 1e-300))
        values, vectors = np.linalg.eigh(unit[:, None] * H * unit)
        if values[0] < _COLLINEAR:
            raise InputError(
                f"fit: the columns {', '.join(self._largest(vectors[:, 0]))} are collinear: one of "
                "them is a sum of the others; leave one out (drop=)"
            )

    def _null_hessian(self, H0: Vector) -> Vector | None:
        """Return the Hessian of the model with the intercept alone, or None if it is not known."""
        mean = self.sums().total / self.rows
        if self.family == "logistic":
            return H0 * 4.0 * mean * (1.0 - mean)
        if self.family == "poisson":
            return H0 * mean
        return H0 if self.family == "cox" else None

    def explain(self) -> None:
        """Raise an InputError that names the columns that probably keep the fit from its end."""
        if (
            self.first is not None
            and (null := self._null_hessian(unpack(self.first[2]))) is not None
        ):
            state = self.engine.state
            self._check_separated(unpack(state.H), null, state.base, _NEARLY_SEPARATED)

    def _check_separated(
        self, H: Vector, null: Vector, x: Vector, least: float = _SEPARATED
    ) -> None:
        """Refuse outcomes that a direction separates: x grows along it without end."""
        values, vectors = eigh(H, null)
        if values[0] < least:
            units = np.sqrt(np.diag(null))
            flat = vectors[:, 0] * units  # where the likelihood is flat
            names = min(self._largest(flat), self._largest(x * units), key=len)
            what = "the outcomes" if self.family == "logistic" else "rows without events"
            raise InputError(
                f"fit: {', '.join(names)} separates {what} exactly, so its estimate is infinite; "
                "leave the column out (drop=), or merge rare levels"
            )

    def _largest(self, direction: Vector) -> list[str]:
        """Return the names of the parameters with the largest entries of a direction."""
        parts = np.abs(direction)
        chosen = [self.names[i] for i in np.argsort(-parts) if parts[i] > 0.3 * parts.max()]
        return [name for name in chosen if name != INTERCEPT][:6] or [INTERCEPT]

    def result(
        self, classes: tuple[Any, ...] | None, problem: LinearModel | CoxModel | None = None,
        covariance: Covariance = "model", floats: int = 0,
    ) -> FitResult:  # fmt: skip
        """Return estimates and covariance in the units of the data.

        Args:
            classes: The two outcomes of a logistic regression.
            problem: The problem, which other covariances than "model" need.
            covariance: "model", "HC0" or "cluster".
            floats: The numbers that all sites sent before the first exchange, in one exchange.
        """
        engine, n, d, family = self.engine, self.rows, len(self.names), self.family
        state, N = engine.state, engine.N
        deviance, null_deviance, llf, llnull = self._likelihoods(n * state.f)
        scale = deviance / (n - d) if family == "gaussian" and deviance is not None else 1.0
        bread = np.linalg.inv(n * unpack(state.H))
        cov, warnings = scale * bread, []
        exchanges = engine.costs.round + (floats > 0)
        if problem is not None and covariance != "model":
            meat, note = self._meat(problem, state.base, covariance, n, d)
            cov = bread @ meat @ bread
            exchanges, floats = exchanges + 1, floats + d * (d + 1) // 2 * N
            warnings += [note] if note else []
        T = self.design.back()
        return FitResult(
            family=family, names=self.names, params=T @ state.base, covariance=covariance,
            nobs=n, sites=N, llf=llf, llnull=llnull, deviance=deviance,
            null_deviance=null_deviance, scale=scale,
            events=int(problem.events.sum()) if isinstance(problem, CoxModel) else None,
            exchanges=exchanges, bytes_up=engine.costs.bytes_up + 8 * floats,
            bytes_down=engine.costs.bytes_down, factors=self.design.factors, design=self.design,
            classes=classes if family == "logistic" else None, warnings=tuple(warnings),
            _cov=T @ cov @ T.T,
        )  # fmt: skip

    def _likelihoods(self, loss: float) -> tuple[float | None, float | None, float, float]:
        """Return the deviance, that of the intercept alone, and both log-likelihoods."""
        n, total, squares, log_factorials, logs = self.sums()
        mean = total / n if n else 0.0
        if self.family == "cox":
            return None, None, -loss, -n * (self.first[0] if self.first else 0.0)
        if self.family == "gaussian":
            rss, tss = 2.0 * loss, squares - (total * mean if self.design.intercept else 0.0)
            half = -0.5 * n
            return (
                rss, tss,
                half * (np.log(2.0 * np.pi * rss / n) + 1.0),
                half * (np.log(2.0 * np.pi * tss / n) + 1.0),
            )  # fmt: skip
        if self.family == "logistic":
            null = -2.0 * float(xlogy(total, mean) + xlogy(n - total, 1.0 - mean))
            return 2.0 * loss, null, -loss, -0.5 * null
        null = 2.0 * float(logs - xlogy(total, mean))
        llnull = float(xlogy(total, mean)) - total - log_factorials
        return 2.0 * (logs - total + loss), null, -loss - log_factorials, llnull

    def _meat(
        self, problem: LinearModel | CoxModel, x: Vector, covariance: Covariance, n: int, d: int
    ) -> tuple[Vector, str]:
        """Return the middle of the sandwich, and a warning."""
        if covariance == "cluster":
            clients = np.arange(problem.N)
            scores = problem.evaluate_clients(clients, x).gradients * (n / problem.N)
            meat = scores.T @ scores
            g = problem.N
            if g < 2:
                raise InputError("fit: a covariance clustered by site needs at least two sites")
            if self.family != "cox":
                meat = meat * (g / (g - 1)) * ((n - 1) / (n - d))
            note = (
                f"The covariance is clustered by {g} sites: with fewer than about 30 it is "
                f"uncertain, so Student's distribution with {g - 1} degrees of freedom is used."
            )
            return meat, note if g < 30 else ""
        if isinstance(problem, CoxModel):
            raise InputError('fit: "cox" has no covariance "HC0"; use "cluster"')
        order = problem.partition.order
        X, y = np.asarray(problem.data.matrix)[order], problem.data.y[order]
        if problem.intercept:
            X = np.column_stack([X, np.ones(len(X))])
        margins = X @ x
        slopes = {
            "logistic": lambda: -y / (1.0 + np.exp(y * margins)),
            "gaussian": lambda: margins - y,
            "poisson": lambda: np.exp(margins) - y,
        }[self.family]()
        scores = X * slopes[:, None]
        return scores.T @ scores, ""
