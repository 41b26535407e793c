"""The result of a fit: coefficients, standard errors, tests and tables, by statsmodels' names."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from tabulate import tabulate

from fedpage.core.display import html_table, new_figure
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset
from fedpage.inference.design import INTERCEPT, Design

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Family = Literal["logistic", "gaussian", "poisson", "cox"]
Covariance = Literal["model", "HC0", "cluster"]
Format = Literal["text", "markdown", "latex", "csv", "json"]
RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}
"""The meaning of exp(coefficient)."""
_TITLES = {
    "logistic": "Logistic regression", "gaussian": "Linear regression",
    "poisson": "Poisson regression", "cox": "Cox regression, stratified by site",
}  # fmt: skip
_COVARIANCES = {
    "model": "from the Hessian", "HC0": "robust (HC0)", "cluster": "clustered by site",
}  # fmt: skip
_FORMATS: dict[str, str] = {"text": "simple", "markdown": "github", "latex": "latex_booktabs"}
_SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json",
}  # fmt: skip


def check_suffix(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file by its suffix; raise an InputError if it has none."""
    found = _SUFFIXES.get(Path(path).suffix.lower())
    if found is None:
        raise InputError(f"{path}: the suffix must be one of {', '.join(_SUFFIXES)}")
    return found


class WaldTest(NamedTuple):
    """A test that some coefficients are all 0."""

    statistic: float
    """Chi-square, or F for a linear regression."""
    df: int
    """The number of coefficients."""
    pvalue: float


@dataclass(frozen=True, eq=False, repr=False)
class FitResult:
    """A fitted model. Attributes and methods have the names that they have in statsmodels.

    Attributes:
        family: "logistic", "gaussian", "poisson" or "cox".
        names: The names of the parameters; the intercept is the last.
        params: The estimates (d,), in the units of the data.
        covariance: How standard errors were computed.
        nobs: The number of rows.
        sites: The number of sites.
        llf: The log-likelihood, for Cox the partial one.
        llnull: The log-likelihood with the intercept alone; for Cox without covariates.
        deviance: The deviance; None for Cox.
        null_deviance: The deviance with the intercept alone; None for Cox.
        scale: The dispersion: the residual variance of a linear regression, otherwise 1.
        events: The number of events, for Cox.
        exchanges: How often all sites answered.
        bytes_up: The bytes that all sites sent.
        bytes_down: The bytes that were sent to them.
        factors: The parameters of each categorical column with more than two levels.
        design: The columns of the data that the parameters belong to.
        classes: The two outcomes of a logistic regression; the second is the event.
        warnings: Sentences about what limits the result.
        label: The column of the outcome, if it is known.
        dropped_rows: The rows that were left out because a value was missing.
    """

    family: Family
    names: tuple[str, ...]
    params: Vector
    covariance: Covariance
    nobs: int
    sites: int
    llf: float
    llnull: float
    deviance: float | None
    null_deviance: float | None
    scale: float
    events: int | None
    exchanges: int
    bytes_up: int
    bytes_down: int
    factors: Mapping[str, tuple[int, ...]]
    design: Design
    classes: tuple[Any, ...] | None
    warnings: tuple[str, ...] = ()
    label: str | None = None
    dropped_rows: int = 0
    _cov: Vector = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def df_resid(self) -> int:
        """Rows less parameters."""
        return self.nobs - len(self.params)

    @property
    def bse(self) -> Vector:
        """The standard errors, (d,)."""
        return np.sqrt(np.diag(self._cov))

    @property
    def tvalues(self) -> Vector:
        """The estimates divided by their standard errors: z, or t of a linear regression."""
        return self.params / self.bse

    @cached_property
    def pvalues(self) -> Vector:
        """Two-sided p-values, (d,)."""
        return np.asarray(2.0 * self._distribution.sf(np.abs(self.tvalues)))

    @property
    def _t_freedom(self) -> int | None:
        """The degrees of freedom of Student's distribution, or None for the normal one."""
        if self.covariance == "cluster" and self.sites < 30:
            return self.sites - 1
        return self.df_resid if self.family == "gaussian" and self.covariance == "model" else None

    @property
    def _distribution(self) -> Any:
        from scipy import stats

        freedom = self._t_freedom
        return stats.norm if freedom is None else stats.t(freedom)

    def cov_params(self) -> Vector:
        """Return the covariance matrix of the estimates, (d, d)."""
        return self._cov.copy()

    def conf_int(self, alpha: float = 0.05) -> Vector:
        """Return the limits of the intervals of level 1 - alpha, (d, 2).

        Raises:
            InputError: If alpha is not between 0 and 1.
        """
        if not 0.0 < alpha < 1.0:
            raise InputError(f"conf_int: alpha must be between 0 and 1, not {alpha!r}")
        reach = float(self._distribution.ppf(1.0 - alpha / 2.0)) * self.bse
        return np.column_stack([self.params - reach, self.params + reach])

    def ratios(self, alpha: float = 0.05) -> Vector:
        """Return odds, rate or hazard ratios with their intervals, (d, 3).

        Raises:
            InputError: For a linear regression, whose coefficients are differences.
        """
        if self.family not in RATIOS:
            raise InputError("ratios: the coefficients of a linear regression are differences")
        return np.asarray(np.exp(np.column_stack([self.params, self.conf_int(alpha)])))

    @property
    def aic(self) -> float:
        """Akaike's criterion, -2 llf + 2 d; a residual variance is not counted."""
        return -2.0 * self.llf + 2.0 * len(self.params)

    @property
    def bic(self) -> float:
        """The Bayesian criterion, -2 llf + d log n."""
        return -2.0 * self.llf + len(self.params) * math.log(self.nobs)

    def wald_test(self, columns: str | Sequence[str]) -> WaldTest:
        """Test that coefficients are all 0.

        Args:
            columns: The name of a categorical column, or names of parameters.

        Raises:
            InputError: If a name is unknown.
        """
        from scipy import stats

        chosen = self._find(columns)
        part = self.params[chosen]
        statistic = float(part @ np.linalg.solve(self._cov[np.ix_(chosen, chosen)], part))
        q, freedom = len(chosen), self._t_freedom
        if freedom is None:
            return WaldTest(statistic, q, float(stats.chi2.sf(statistic, q)))
        return WaldTest(statistic / q, q, float(stats.f.sf(statistic / q, q, freedom)))

    def _find(self, columns: str | Sequence[str]) -> list[int]:
        """Return the numbers of the parameters of a factor, or of these names."""
        if isinstance(columns, str) and columns in self.factors:
            return list(self.factors[columns])
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name not in self.names:
                known = [*self.names, *self.factors]
                hint = did_you_mean(name, known) or f" they are {', '.join(known)}"
                raise InputError(f"wald_test: there is no parameter {name!r};{hint}")
        return [self.names.index(name) for name in names]

    def lr_test(self) -> WaldTest:
        """Test that no covariate has an effect, by the likelihood ratio; F for a regression."""
        from scipy import stats

        q = len(self.params) - (INTERCEPT in self.names)
        if self.family == "gaussian" and self.deviance is not None and self.null_deviance:
            value = (self.null_deviance - self.deviance) / q / (self.deviance / self.df_resid)
            return WaldTest(value, q, float(stats.f.sf(value, q, self.df_resid)))
        value = 2.0 * (self.llf - self.llnull)
        return WaldTest(value, q, float(stats.chi2.sf(value, q)))

    def predict(self, data: Dataset) -> Vector:
        """Predict each row (n,): a probability, a mean, or for Cox the risk exp(x.b).

        Args:
            data: Rows with the features of the data that the model was fitted to.

        Raises:
            InputError: If the features are others.
        """
        widest = int(self.design.features.max(initial=-1)) + 1
        if not isinstance(data, Dataset) or data.features < widest:
            raise InputError(
                "predict: give a Dataset with the features of the fit, such as "
                "fp.load('new.csv', encoding=data.encoding)"
            )
        matrix = data.matrix if isinstance(data.matrix, np.ndarray) else data.matrix.to_scipy()
        p = len(self.design.names)
        margins = np.asarray(matrix[:, self.design.features] @ self.params[:p])
        margins = margins + (self.params[p] if self.design.intercept else 0.0)
        if self.family == "logistic":
            from scipy.special import expit

            return np.asarray(expit(margins))
        return margins if self.family == "gaussian" else np.exp(margins)

    # --- tables -----------------------------------------------------------------------------------

    def table(self, ratios: bool = False, alpha: float = 0.05) -> list[dict[str, Any]]:
        """Return a row for each parameter: name, estimate, error, statistic, p-value, interval.

        Args:
            ratios: Whether to add the odds, rate or hazard ratio and its interval.
            alpha: The intervals have the level 1 - alpha.
        """
        statistic = "z" if self._t_freedom is None else "t"
        low, high = f"[{alpha / 2:g}", f"{1 - alpha / 2:g}]"
        rows = [
            {
                "": name, "coef": b, "std err": se, statistic: z, f"P>|{statistic}|": p,
                low: ends[0], high: ends[1],
            }
            for name, b, se, z, p, ends in zip(
                self.names, self.params.tolist(), self.bse.tolist(), self.tvalues.tolist(),
                self.pvalues.tolist(), self.conf_int(alpha).tolist(), strict=True,
            )
        ]  # fmt: skip
        if ratios:
            for row, (ratio, *ends) in zip(rows, self.ratios(alpha).tolist(), strict=True):
                row |= {
                    RATIOS[self.family]: ratio,
                    f"ratio {low}": ends[0],
                    f"ratio {high}": ends[1],
                }
        return rows

    def notes(self) -> tuple[str, ...]:
        """Return lines on what the coefficients mean: the event, and the levels left out."""
        event = self.classes[1] if self.classes else None
        if isinstance(event, float):
            event = f"{event:g}"
        compared, left_out = ", ".join(self.design.references), self.dropped_rows
        lines = (
            f"The event is {self.label}={event}." if self.label and self.classes else "",
            f"Levels are compared with {compared}." if compared else "",
            f"{left_out:,} row{'s'[: left_out > 1]} with a missing value "
            f"{'were' if left_out > 1 else 'was'} left out."
            if left_out
            else "",
        )
        return tuple(filter(None, lines))

    def facts(self) -> dict[str, Any]:
        """Return what is said about the fit as a whole, by name."""
        test = self.lr_test()
        name = "F test" if self.family == "gaussian" else "LR test"
        found = {
            "rows": self.nobs, "sites": self.sites, "events": self.events,
            "log-likelihood": self.llf, "null log-likelihood": self.llnull,
            "deviance": self.deviance, "null deviance": self.null_deviance,
            "AIC": self.aic, "BIC": self.bic,
            "dispersion": None if self.family == "cox" else self.scale,
            name: test.statistic, f"{name}, p-value": test.pvalue,
            "standard errors": _COVARIANCES[self.covariance],
            "exchanges": self.exchanges, "bytes up": self.bytes_up, "bytes down": self.bytes_down,
        }  # fmt: skip
        tests = {f"{name}, p-value": self.wald_test(name).pvalue for name in self.factors}
        return {name: value for name, value in (found | tests).items() if value is not None}

    def summary(self, format: Format = "text", *, ratios: bool = False, alpha: float = 0.05) -> str:
        """Return the table of coefficients, and what is said about the fit as a whole.

        Args:
            format: "text", "markdown", "latex", "csv" or "json".
            ratios: Whether to add the odds, rate or hazard ratios.
            alpha: The intervals have the level 1 - alpha.

        Raises:
            InputError: If the format is unknown.
        """
        rows, facts = self.table(ratios, alpha), self.facts()
        if format == "json":
            return json.dumps(
                {"coefficients": rows, **facts, "notes": self.notes(), "warnings": self.warnings},
                indent=2,
            )
        if format == "csv":
            out = io.StringIO()
            writer = csv.DictWriter(out, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return out.getvalue()
        if format not in _FORMATS:
            raise InputError(
                f"summary: format must be one of {', '.join([*_FORMATS, 'csv', 'json'])}, "
                f"not {format!r}"
            )
        style = _FORMATS[format]
        cells = [{key: _number(key, value) for key, value in row.items()} for row in rows]
        head = [[name, _number("", value)] for name, value in facts.items()]
        left, right = head[: (len(head) + 1) // 2], head[(len(head) + 1) // 2 :]
        pairs = [[*a, *b] for a, b in zip(left, [*right, ["", ""]], strict=False)]
        tables = (
            tabulate(pairs, tablefmt="plain" if format == "text" else style, disable_numparse=True),
            tabulate(
                cells, headers="keys", tablefmt=style, disable_numparse=True,
                colalign=("left", *("right",) * (len(rows[0]) - 1)),
            ),
        )  # fmt: skip
        last = ["\n".join(self.notes())] if self.notes() else []
        return "\n\n".join([_TITLES[self.family], *tables, *last, *self.warnings]) + "\n"

    def save(
        self, path: str | os.PathLike[str], *, ratios: bool = False, alpha: float = 0.05
    ) -> Path:
        """Write the summary in the format of the suffix: .txt, .md, .tex, .csv or .json.

        Args:
            path: The file; its directory is made if need be.
            ratios: Whether to add the odds, rate or hazard ratios.
            alpha: The intervals have the level 1 - alpha.

        Raises:
            InputError: If the suffix is another one.
        """
        format = check_suffix(path)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.summary(format, ratios=ratios, alpha=alpha), encoding="utf-8")
        return path

    def plot(self, alpha: float = 0.05) -> Figure:
        """Draw a forest plot: estimates, or ratios on a logarithmic axis, with their intervals."""
        from matplotlib.ticker import LogLocator, NullLocator

        has_ratios = self.family in RATIOS
        shown = [i for i, name in enumerate(self.names) if name != INTERCEPT]
        centre, limits = self.params[shown], self.conf_int(alpha)[shown]
        if has_ratios:
            centre, limits = np.exp(centre), np.exp(limits)
        places = np.arange(len(shown))[::-1]
        figure = new_figure(figsize=(6.4, 1.2 + 0.32 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(1.0 if has_ratios else 0.0, color="0.6", linewidth=1)
        axes.hlines(places, limits[:, 0], limits[:, 1], color="#1f4e79", linewidth=1.5)
        axes.plot(centre, places, "s", color="#1f4e79", markersize=5)
        axes.set_yticks(places, [self.names[i] for i in shown])
        if has_ratios:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        label = RATIOS.get(self.family, "coefficient")
        axes.set_xlabel(f"{label}, {1 - alpha:.0%} interval")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        return figure

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return (
            f"FitResult({self.family}, {self.nobs:,} rows, {self.sites} sites, "
            f"{len(self.params)} parameters)"
        )

    def _repr_html_(self) -> str:
        rows = self.table()
        cells = [[_number(key, value) for key, value in row.items()] for row in rows]
        return html_table(_TITLES[self.family], list(rows[0]), cells, *self.notes(), *self.warnings)


def _number(column: str, value: Any) -> str:
    """Return a number as a table of coefficients prints it."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if column.startswith("P>"):
        return f"{value:.3f}"
    if column in ("z", "t"):
        return f"{value:.3f}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or value == 0.0 else f"{value:.4g}"
