"""The columns that the run's configuration names: features, label, classes and categories."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedpage.core.errors import InputError, short_repr
from fedpage.data.dataset import Label
from fedpage.data.encoding import CategoryColumn, Encoding, NumberColumn
from fedpage.data.frames import is_number
from fedpage.flower.agreement import Agreement
from fedpage.flower.config import AppConfig
from fedpage.problems import OBJECTIVES
from fedpage.problems.objectives import Softmax

_SPARSE_BELOW = 0.25
"""Rows are stored as sparse ones where they have fewer cells than this share of the features."""


@dataclass(frozen=True)
class Schema:
    """Say what the columns of every site's file are, as far as the run's configuration says it.

    Attributes:
        columns: the feature columns in the order of the model; () takes those of the sites.
        label: the label column of tables.
        classes: the labels, in the order of the class numbers; () for a regression.
        categories: the values of each column that holds categories, by the column's name; () for a
            column whose values the sites agree on.
        ignores_extra: whether columns that are not named may be in a file.
        standardises: whether numbers are standardised with the statistics of all sites.
        references: for a fit with standard errors, the value of a category's column that the others
            are compared with, if it is not the first; None for other runs.
        event: the column of events of a Cox model, or "".
        has_counts: whether the labels are the counts of a Poisson regression.
    """

    columns: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    categories: tuple[tuple[str, tuple[str, ...]], ...]
    ignores_extra: bool
    standardises: bool
    references: tuple[tuple[str, str], ...] | None = None
    event: str = ""
    has_counts: bool = False

    @property
    def shares_statistics(self) -> bool:
        """Whether the run needs statistics that a site's owner must share."""
        return self.standardises or self.has_counts

    @property
    def open_columns(self) -> tuple[str, ...]:
        """The columns whose categories the sites have not agreed on yet."""
        return tuple(name for name, values in self.categories if not values)

    def resolve(self, agreement: Agreement | None) -> Schema:
        """Return the schema with the categories that the sites have agreed on.

        Raises:
            InputError: A reference is not one of its column's categories.
        """
        agreed = dict(agreement.levels) if agreement else {}
        found = tuple((name, values or agreed.get(name, ())) for name, values in self.categories)
        for name, level in self.references or ():
            values = dict(found).get(name, ())
            if values and level not in values:
                raise InputError(
                    f"run config: reference: {name!r} has no category {short_repr(level)}; it has "
                    f"{', '.join(values)}"
                )
        return replace(self, categories=found)

    @property
    def has_numeric_classes(self) -> bool:
        """Whether every class is a number, so that the label column is read as numbers."""
        return all(is_number(text) and math.isfinite(float(text)) for text in self.classes)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes, as numbers if all of them are numbers."""
        if not self.has_numeric_classes:
            return self.classes
        numbers = [float(text) for text in self.classes]
        return tuple(int(value) if value == int(value) else value for value in numbers)

    def encode(
        self, columns: Sequence[str], agreement: Agreement | None = None
    ) -> tuple[NumberColumn | CategoryColumn, ...]:
        """Say how feature columns become features.

        Args:
            columns: the feature columns, in order.
            agreement: what numbers are standardised with; None: they are not.

        Returns:
            The encoding of each column. True and false in a column of numbers are 1 and 0.
        """
        values = dict(self.categories)
        means = agreement.means if agreement else ()
        scales = agreement.scales if agreement else ()
        encoded: list[NumberColumn | CategoryColumn] = []
        references = dict(self.references or ())
        for place, name in enumerate(columns):
            if name in values:  # until the sites agree on them, categories are a feature of zeros
                known = values[name] or ("",)
                first = references.get(name, known[0]) if values[name] else None
                own = None if self.references is None else first
                encoded.append(CategoryColumn(name, known, reference=own))
            else:
                mean, scale = (means[place], scales[place]) if means else (0.0, 1.0)
                encoded.append(NumberColumn(name, mean, scale, is_bool=True))
        return tuple(encoded)

    def make_encoding(self, columns: Sequence[str], agreement: Agreement | None = None) -> Encoding:
        """Return the encoding of feature columns, with which new rows are encoded alike."""
        left_out = (self.event,) if self.event else ()
        return Encoding(
            self.encode(columns, agreement), self.label, left_out=left_out,
            standardised=self.standardises,
        )  # fmt: skip

    def count_features(self, columns: Sequence[str]) -> int:
        """Return the number of features of columns: one a number, one a category's value."""
        return sum(len(column.features) for column in self.encode(columns))

    def is_sparse(self, columns: Sequence[str]) -> bool:
        """Say whether rows are stored as sparse ones: at every site alike, whatever its rows."""
        return len(columns) < _SPARSE_BELOW * self.count_features(columns)


@lru_cache(maxsize=16)
def parse_schema(config: AppConfig) -> Schema:
    """Read the columns, classes and categories of a run's configuration.

    Args:
        config: The run's configuration.

    Returns:
        The schema.

    Raises:
        InputError: A list cannot be read, a name occurs twice, or the settings contradict.
    """
    columns = _split("columns", config.columns)
    classes = _split("classes", config.classes)
    categories = _parse_categories(config.categories)
    for name, _ in categories:
        if columns and name not in columns:
            raise InputError(
                f"run config: categories names {short_repr(name)}, which is not a column; write "
                "'stage; smoker=no|yes', with semicolons between columns"
            )
    for name in {config.label, config.event}.intersection(columns):
        raise InputError(f"run config: the label {short_repr(name)} cannot be a feature too")
    if columns and not config.label:
        raise InputError("run config: columns are named, but not the label column; give label")
    if len(classes) == 1:
        raise InputError("run config: classes must be two or more labels such as '0,1'")
    if config.standardise and (config.data or config.has_own_problem):
        raise InputError(
            "run config: standardise is for the sites' own files; leave it out, or set data = ''"
        )
    extra = config.extra_columns == "ignore"
    if extra and not columns:
        raise InputError("run config: extra-columns = 'ignore' needs the names of the columns")
    references = None
    if config.family:
        references = tuple((name, *values) for name, values in _parse_categories(config.reference))
        if any(len(each) != 2 or each[0] not in dict(categories) for each in references):
            raise InputError(
                "run config: reference must name a category of a column of `categories`, as in "
                f"'sex=f; ward=a', not {short_repr(config.reference)}"
            )
    schema = Schema(
        columns, config.label, classes, categories, extra, config.standardise,
        references, config.event, config.family == "poisson",  # type: ignore[arg-type]  # pairs, as was checked
    )  # fmt: skip
    if not config.has_own_problem and not config.data:
        _check_objective(config, schema)
    return schema


def _check_objective(config: AppConfig, schema: Schema) -> None:
    """Refuse an objective that the classes do not suit, over the sites' own files."""
    objective, count = OBJECTIVES[config.objective], len(schema.classes)
    is_softmax = issubclass(objective.model, Softmax)
    if not schema.classes and (is_softmax or is_classification(config)):
        raise InputError(
            f"run config: name the labels for {config.objective}, the negative one first, such as "
            "classes = '0,1'; sites do not send theirs"
        )
    if count > 2 and not is_softmax:
        raise InputError(
            f"run config: {config.objective} takes two classes, not {count}; use softmax, or leave "
            "classes out for a regression"
        )


def is_classification(config: AppConfig) -> bool:
    """Say whether the objective of a configuration takes classes and no numbers."""
    from fedpage.problems.losses import LOSSES

    objective = OBJECTIVES[config.objective]
    if issubclass(objective.model, Softmax) or not isinstance(objective.loss, str):
        return issubclass(objective.model, Softmax)
    return LOSSES[objective.loss].needs_labels


def count_outputs(config: AppConfig, schema: Schema) -> int:
    """Return the number of outputs of a linear model: the classes of a softmax, or else 1."""
    is_softmax = issubclass(OBJECTIVES[config.objective].model, Softmax)
    return len(schema.classes) if is_softmax else 1


def _split(key: str, text: str) -> tuple[str, ...]:
    """Split a list at commas, as a line of a CSV file; a name with a comma has quotes."""
    if not text.strip():
        return ()
    try:
        cells = next(csv.reader([text], skipinitialspace=True))
    except csv.Error as error:
        raise InputError(f"run config: {key} cannot be read ({error})") from None
    names = tuple(cell.strip() for cell in cells)
    if "" in names:
        raise InputError(f"run config: {key} has an empty name; write them as 'a,b,c'")
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise InputError(f"run config: {key} has {short_repr(twice)} twice")
    return names


def _parse_categories(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Read "sex=f|m; ward"; the values are sorted, as those of a table are."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, values = part.partition("=")
        name, cells = name.strip(), [value.strip() for value in values.split("|")]
        cells = cells if equals else []
        if not name or name in found or "" in cells or len(set(cells)) < len(cells):
            raise InputError(
                "run config: categories must be as in 'sex=f|m; ward', each once, not "
                f"{short_repr(part)}"
            )
        found[name] = tuple(sorted(cells))
    return tuple(found.items())
