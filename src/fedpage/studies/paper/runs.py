"""Running figures: every run in a file of its own, finished ones kept and never run twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError
from fedpage.data.partition import blocks
from fedpage.engine.simulate import simulate
from fedpage.runs.history import History
from fedpage.runs.provenance import describe_method
from fedpage.studies.paper.figures import Figure, Panel, Variant


@dataclass(frozen=True)
class Task:
    """One run of one curve."""

    figure: Figure
    panel: Panel
    variant: Variant
    seed: int

    def path(self, out: Path) -> Path:
        """Its file, named after what is run, so that two figures with the same curve share it."""
        figure, method = self.figure, self.variant.method
        about = json.dumps(describe_method(method), sort_keys=True)
        digest = hashlib.sha256(about.encode()).hexdigest()[:10]
        place = f"{figure.data}-{figure.rows}-{figure.objective}-N{self.panel.clients}-R{figure.rounds}-{figure.record_every}"
        place = "".join(c if c.isalnum() or c in "-." else "_" for c in place)
        return out / "runs" / place / f"{type(method).__name__}-{digest}-seed{self.seed}.jsonl"


@lru_cache(maxsize=3)
def problem(data: str, rows: int, objective: str, clients: int) -> Any:
    """The figure's problem: the first `rows` rows in equal consecutive blocks."""
    from fedpage.runs import build

    loaded = build.load_dataset(data)
    if rows > loaded.rows:
        raise InputError(f"{data} has {loaded.rows:,} rows, the figure needs {rows:,}")
    return build.build_objective(loaded, blocks(rows, clients), objective)


def tasks(figures: Sequence[Figure], seeds: int) -> list[Task]:
    """All runs of the figures; the same seeds, coins and clients for every curve of a panel."""
    return [
        Task(figure, panel, variant, seed)
        for figure in figures
        for panel in figure.panels
        for variant in panel.variants
        for seed in range(seeds)
    ]


def finished(task: Task, out: Path) -> History | None:
    """The run's history, if its file is whole and of this very run."""
    path = task.path(out)
    if not path.is_file():
        return None
    try:
        history = History.load(path)
    except InputError:
        return None
    same = (
        history.meta.get("method") == describe_method(task.variant.method)
        and history.meta.get("seed") == task.seed
        and history.meta.get("rounds") == task.figure.rounds
        and history.meta.get("record_every") == task.figure.record_every
        and history.meta.get("figure_data")
        == [task.figure.data, task.figure.rows, task.figure.objective]
    )
    return history if same and history.ended else None


def _do(task: Task, out: Path) -> None:
    figure = task.figure
    made = problem(figure.data, figure.rows, figure.objective, task.panel.clients)
    history = simulate(
        made,
        task.variant.method,
        rounds=figure.rounds,
        seed=task.seed,
        record_every=figure.record_every,
    )
    history.meta["figure_data"] = [figure.data, figure.rows, figure.objective]
    history.to_jsonl(task.path(out))


def run(todo: Sequence[Task], out: Path, jobs: int, progress: Callable[[int, int], None]) -> int:
    """Run what is not finished yet; returns how many runs that were. A killed process loses the runs in hand only."""
    from joblib import Parallel, delayed

    every = list({task.path(out): task for task in todo}.values())
    left = [task for task in every if finished(task, out) is None]
    done = len(every) - len(left)
    progress(done, len(every))
    for task in left[:1]:  # what cannot work is refused before a worker starts
        problem(task.figure.data, task.figure.rows, task.figure.objective, task.panel.clients)

    def work() -> Iterator[None]:
        if jobs == 1:
            for task in left:
                _do(task, out)
                yield None
        else:
            yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(
                delayed(_do)(t, out) for t in left
            )

    for _ in work():
        done += 1
        progress(done, len(every))
    return len(left)


def histories(figure: Figure, seeds: int, out: Path) -> dict[str, dict[str, list[History]]]:
    """Finished runs by panel key and label, in the figure's order."""
    found: dict[str, dict[str, list[History]]] = {}
    for panel in figure.panels:
        curves = found.setdefault(panel.key, {})
        for variant in panel.variants:
            each = [finished(Task(figure, panel, variant, seed), out) for seed in range(seeds)]
            curves[variant.label] = [history for history in each if history is not None]
    return found
