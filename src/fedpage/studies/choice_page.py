"""Write the report of a choice as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpage.core.columns import list_axes
from fedpage.core.types import Problem
from fedpage.engine.stopping import Stop
from fedpage.methods.registry import describe_method
from fedpage.report import page
from fedpage.report.plots import FigureRuns, PanelRuns
from fedpage.report.tables import Table
from fedpage.report.titles import by_method
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions
from fedpage.studies.choice import Choice
from fedpage.studies.sweep import sweep

CURVES = 5
"""The fresh seeds whose runs the page draws."""


def run_finalists(problem: Problem, choice: Choice) -> list[History]:
    """Run the finalists again on some of the fresh seeds, for their curves.

    Args:
        problem: The problem.
        choice: The choice.

    Returns:
        The histories in the order finalists x seeds; each ends at the target, or where a run of
        the judgement would have ended.
    """
    question = choice.question
    stop = Stop(question.target)
    if not question.cost.is_estimated:  # no budget has estimated seconds
        stop = replace(stop, budgets={question.cost.name: question.limit})
    return sweep(
        problem,
        [finalist.method for finalist in choice.ranking],
        rounds=question.rounds,
        seeds=choice.fresh[:CURVES],
        record_every=question.record_every,
        stop=stop,
        options=RunOptions(devices=question.devices),
    )


def write_page(
    choice: Choice, runs: Sequence[History], path: Path, title: str, command: str = ""
) -> Path:
    """Write a page with the recommendation, the ranking, who left the race, and curves.

    Args:
        choice: The choice.
        runs: Runs of the finalists, as `run_finalists` makes them.
        path: The HTML file.
        title: The page's title.
        command: The command to run the recommended method.

    Returns:
        The path.
    """
    question = choice.question
    head, rows = choice.rows()
    departures = [line.rstrip(".").partition(": ")[::2] for line in choice.departures()]
    tables = [
        Table.of_texts(
            head,
            rows,
            f"{choice.title[0].upper()}{choice.title[1:]}. Methods that the seeds do not tell "
            "apart from the first are tied (rank-sum tests of all pairs, Holm's correction, 5 %).",
        )
    ]
    if departures:
        tables.append(Table.of_texts(["left the race", "methods"], departures, choice.effort))
    axes = list_axes(run.columns for run in runs)
    axes = axes if question.cost.name not in axes else (question.cost.name, *axes)
    values = [question.target.column, "grad_norm", "loss"]
    about = runs[0].meta
    settings = {
        "problem": about.get("problem", {}),
        "target": str(question.target),
        "cost": question.cost.name,
        "seeds": list(range(choice.seeds)),
        "fresh seeds": list(choice.fresh),
        "methods": [describe_method(finalist.method) for finalist in choice.ranking],
        "costs on fresh seeds": {
            finalist.label: list(finalist.judgement.costs) for finalist in choice.ranking
        },
        "left out": dict(choice.left_out),
        "versions": about.get("versions", {}),
    }
    curves = FigureRuns(
        "runs", "The finalists on fresh seeds", "", 1, (PanelRuns("", by_method(list(runs))),)
    )
    return page.write(
        path,
        title=title,
        figures=[curves],
        settings=settings,
        columns=list(dict.fromkeys(values)),
        axes=list(dict.fromkeys(axes)),
        tables=tables,
        note=f"Recommended: {choice.reason}",
        command=command,
        command_note="To run the recommended method:",
        target=question.target,
        runs=runs,
    )
