"""Run figures: every run has its own file, and a finished run is never repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.types import Problem
from fedpage.data.partition import blocks
from fedpage.engine.simulate import simulate
from fedpage.runs.history import History
from fedpage.runs.provenance import describe_method
from fedpage.studies.paper.figures import Figure, Panel, Variant
from fedpage.studies.parallel import run_tasks


@dataclass(frozen=True)
class Task:
    """One run of one curve."""

    figure: Figure
    panel: Panel
    variant: Variant
    seed: int

    def path(self, out: Path) -> Path:
        """Return the run's file, named after what is run, so that figures share equal curves."""
        figure, method = self.figure, self.variant.method
        about = json.dumps(describe_method(method), sort_keys=True)
        digest = hashlib.sha256(about.encode()).hexdigest()[:10]
        folder = (
            f"{figure.data}-{figure.rows}-{figure.objective}-N{self.panel.clients}"
            f"-R{figure.rounds}-{figure.record_every}"
        )
        folder = "".join(c if c.isalnum() or c in "-." else "_" for c in folder)
        return out / "runs" / folder / f"{type(method).__name__}-{digest}-seed{self.seed}.jsonl"


@lru_cache(maxsize=3)
def build_problem(data: str, rows: int, objective: str, clients: int) -> Problem:
    """Build a figure's problem: the first rows of a data set in equal consecutive blocks.

    Args:
        data: The data set.
        rows: How many of its rows to use.
        objective: The loss.
        clients: How many blocks.

    Returns:
        The problem.

    Raises:
        InputError: The data set has fewer rows.
    """
    from fedpage.problems import OBJECTIVES
    from fedpage.runs import build

    loaded = build.load_dataset(data)
    if rows > loaded.rows:
        raise InputError(f"{data} has {loaded.rows:,} rows, the figure needs {rows:,}")
    return OBJECTIVES[objective].problem(loaded, blocks(rows, clients))


def list_tasks(figures: Sequence[Figure], seeds: int) -> list[Task]:
    """List all runs of the figures, with the same seeds for every curve.

    Args:
        figures: The figures.
        seeds: Runs of each curve, with seeds 0, 1, ...

    Returns:
        The runs, in the order of figures, panels, curves and seeds.
    """
    return [
        Task(figure, panel, variant, seed)
        for figure in figures
        for panel in figure.panels
        for variant in panel.variants
        for seed in range(seeds)
    ]


def load_finished(task: Task, out: Path) -> History | None:
    """Load a run's history.

    Args:
        task: The run.
        out: The directory of the reproduction.

    Returns:
        The history, or None if the file is missing, cut off, or of another run.
    """
    path = task.path(out)
    if not path.is_file():
        return None
    try:
        history = History.load(path)
    except InputError:
        return None
    figure = task.figure
    expected = {
        "method": describe_method(task.variant.method),
        "seed": task.seed,
        "rounds": figure.rounds,
        "record_every": figure.record_every,
        "figure_data": [figure.data, figure.rows, figure.objective],
    }
    is_same = all(history.meta.get(name) == value for name, value in expected.items())
    return history if is_same and history.ended else None


def _run_task(task: Task, out: Path) -> None:
    figure = task.figure
    problem = build_problem(figure.data, figure.rows, figure.objective, task.panel.clients)
    history = simulate(
        problem,
        task.variant.method,
        rounds=figure.rounds,
        seed=task.seed,
        record_every=figure.record_every,
    )
    history.meta["figure_data"] = [figure.data, figure.rows, figure.objective]
    history.to_jsonl(task.path(out))


def run(tasks: Sequence[Task], out: Path, jobs: int, progress: Callable[[int, int], None]) -> int:
    """Run every task that is not finished yet; a killed process loses its current runs only.

    Args:
        tasks: The runs.
        out: The directory of the reproduction.
        jobs: Processes.
        progress: Called with runs done and runs in all.

    Returns:
        How many runs were made.
    """
    every = list({task.path(out): task for task in tasks}.values())
    left = [task for task in every if load_finished(task, out) is None]
    done = len(every) - len(left)
    progress(done, len(every))
    for task in left[:1]:  # refuse bad input before a worker starts
        figure = task.figure
        build_problem(figure.data, figure.rows, figure.objective, task.panel.clients)

    for _ in run_tasks(_run_task, [(task, out) for task in left], jobs, in_order=False):
        done += 1
        progress(done, len(every))
    return len(left)


def load_histories(figure: Figure, seeds: int, out: Path) -> dict[str, dict[str, list[History]]]:
    """Load the finished runs of a figure.

    Args:
        figure: The figure.
        seeds: Runs of each curve.
        out: The directory of the reproduction.

    Returns:
        Histories by panel key and label, in the figure's order.
    """
    histories: dict[str, dict[str, list[History]]] = {}
    for panel in figure.panels:
        curves = histories.setdefault(panel.key, {})
        for variant in panel.variants:
            loaded = [
                load_finished(Task(figure, panel, variant, seed), out) for seed in range(seeds)
            ]
            curves[variant.label] = [history for history in loaded if history is not None]
    return histories
