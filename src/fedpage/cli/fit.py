"""`fedpage fit`: fit an exact model over sites, with standard errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import options
from fedpage.cli.options import Document
from fedpage.core.errors import InputError
from fedpage.inference import fit as run_fit
from fedpage.inference.result import check_suffix
from fedpage.report.figure_file import check_figure_path, write_figure

app = options.make_app()


@options.command(app, "fit")
def fit(
    data: Annotated[
        list[str],
        typer.Argument(help="A table (.csv, .tsv, .parquet), or a table of each site."),
    ],
    label: Annotated[
        str, typer.Option("--label", help="Column of the outcome; for cox the columns time,event.")
    ],
    client_column: Annotated[
        str | None, typer.Option(help="Column that says of which site each row is.")
    ] = None,
    family: Annotated[
        str, typer.Option(help="logistic, gaussian (least squares), poisson or cox.")
    ] = "logistic",
    drop: Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")] = "",
    categorical: Annotated[
        str, typer.Option(help="Columns that are categories although they hold numbers.")
    ] = "",
    missing: Annotated[
        str, typer.Option(help="Missing cells: error, drop the row, or mean to fill them in.")
    ] = "error",
    reference: Annotated[
        list[str] | None,
        typer.Option(help="Level to compare with: COLUMN=LEVEL (default the first); repeatable."),
    ] = None,
    intercept: Annotated[bool, typer.Option(help="Whether the model has an intercept.")] = True,
    ties: Annotated[str, typer.Option(help="For cox: efron or breslow.")] = "efron",
    covariance: Annotated[
        str, typer.Option(help="Standard errors: model, HC0 (robust), or cluster (by site).")
    ] = "model",
    ratios: Annotated[
        bool, typer.Option("--ratios", help="Add odds, rate or hazard ratios.")
    ] = False,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    save: Annotated[
        Path | None, typer.Option(help="Write the table: .txt, .md, .tex, .csv or .json.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw a forest plot into this file: .png, .svg, .pdf.")
    ] = None,
) -> Document:
    """Fit a model over sites exactly, with standard errors and p-values.

    The sites send sums over their rows only; the estimates are those of the pooled rows.
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"--level must be between 0 and 1, not {level:g}")
    pairs = [text.partition("=") for text in reference or ()]
    for column, equals, value in pairs:
        if not (column and equals and value):
            raise InputError(f"--reference {column + equals + value!r}: expected COLUMN=LEVEL")
    labels = _names(label)
    if save:
        check_suffix(save)
    if figure:
        check_figure_path(figure)
    result = run_fit(
        data, family, label=labels if family == "cox" else label, client=client_column,  # type: ignore[arg-type]
        ties=ties, reference={column: value for column, _, value in pairs},  # type: ignore[arg-type]
        intercept=intercept, covariance=covariance, drop=_names(drop),  # type: ignore[arg-type]
        categorical=_names(categorical), missing=missing,
    )  # fmt: skip
    print(result.summary(ratios=ratios, alpha=1.0 - level))
    if save:
        print(f"Table: {result.save(save, ratios=ratios, alpha=1.0 - level)}")
    if figure:
        print(f"Picture: {write_figure(result.plot(1.0 - level), figure)}")
    document = {"coefficients": result.table(ratios, 1.0 - level), **result.facts()}
    return document | {"notes": result.notes(), "warnings": result.warnings}


def _names(text: str) -> tuple[str, ...]:
    """Return the names in a list that is separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
