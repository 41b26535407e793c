"""Write the report of a tuning as an HTML page."""

from __future__ import annotations

from pathlib import Path

from fedpage.core.columns import list_axes
from fedpage.methods.registry import describe_method
from fedpage.report.page import Page
from fedpage.report.plots import FigureRuns, PanelRuns
from fedpage.report.tables import Table
from fedpage.report.titles import by_method
from fedpage.studies.tuning import Tuning


def write_page(
    found: Tuning, path: Path, title: str, command: str = "", picture: Path | None = None
) -> Path:
    """Write a page with the ranking, the eliminated methods, and the runs of the evaluation.

    Args:
        found: The tuning.
        path: The HTML file.
        title: The page's title.
        command: The command that runs the recommended method.
        picture: A picture of the search to show before the curves.

    Returns:
        The path.
    """
    question, runs = found.question, found.histories()
    note = f"{found.title[0].upper()}{found.title[1:]}."
    if len(found.ranking) > 1:
        note += (
            " Methods that the seeds do not tell apart from the first are tied (rank-sum tests of "
            "all pairs, Holm's correction, 5 %)."
        )
    tables = [Table.of_texts(*found.rows(), note)]
    lines = [line.rstrip(".").partition(": ")[::2] for line in found.eliminations()]
    if lines:
        tables.append(Table.of_texts(["eliminated", "methods"], lines, found.effort))
    axes = list_axes(run.columns for run in runs)
    axes = axes if question.cost.is_estimated else (question.cost.name, *axes)
    settings = {
        "problem": runs[0].meta.get("problem", {}),
        "target": str(question.target),
        "cost": question.cost.name,
        "seeds": list(range(found.seeds)),
        "held-out seeds": list(found.held_out_seeds),
        "methods": [describe_method(each.method) for each in found.ranking],
        "costs on held-out seeds": {
            each.label: list(each.sample.costs) for each in found.ranking if each.sample
        },
        "left out": dict(found.left_out),
        "versions": runs[0].meta.get("versions", {}),
    }
    curves = PanelRuns("", by_method(runs))
    last = f"Recommended: {found.reason}" if len(found.ranking) > 1 else found.advice
    page = Page(
        title=title,
        figures=[FigureRuns("runs", "The evaluation on held-out seeds", "", 1, (curves,))],
        settings=settings,
        columns=list(dict.fromkeys([question.target.column, "grad_norm", "loss"])),
        axes=list(dict.fromkeys(axes)),
        tables=tables,
        note=last,
        picture=picture,
        command=command,
        command_note="To run the recommended method:",
        target=question.target,
        runs=runs,
    )
    return page.write(path)
