"""Run every method with every seed, with progress bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpage.core.columns import RecordEvery
    from fedpage.core.types import AnyMethod, Problem
    from fedpage.runs.history import History
    from fedpage.runs.spec import RunOptions


def sweep(
    problem: Problem,
    methods: Sequence[AnyMethod],
    *,
    rounds: int,
    seeds: Sequence[int],
    record_every: RecordEvery,
    out: Path,
    jobs: int = 1,
    options: RunOptions | None = None,
) -> list[History]:
    """Run every method with every seed, each run in a directory of its own in `out`.

    In one process every method has a bar over its rounds; in several there is one over the runs.
    """
    from fedpage.callbacks.progress import Progress, progress_bars
    from fedpage.runs.spec import RunOptions
    from fedpage.studies.sweep import iterate_sweep

    runs: list[History] = []
    with progress_bars() as bars:
        if jobs == 1:
            tasks = [bars.add_task(method.name, total=rounds * len(seeds)) for method in methods]
        else:
            tasks = [bars.add_task("runs", total=len(methods) * len(seeds))]

        def show_rounds(method: AnyMethod, seed: int) -> list[Progress]:
            return [Progress(bars, tasks[methods.index(method)], offset=seeds.index(seed) * rounds)]

        histories = iterate_sweep(
            problem,
            methods,
            seeds,
            jobs=jobs,
            callbacks=show_rounds if jobs == 1 else None,
            out=out,
            rounds=rounds,
            record_every=record_every,
            options=options or RunOptions(),
        )
        for history in histories:
            runs.append(history)
            if jobs == 1:  # a run that ended early, or had ended before, leaves its bar behind
                method, seed = divmod(len(runs) - 1, len(seeds))
                bars.update(tasks[method], completed=(seed + 1) * rounds)
            else:
                seed, gradient = history.meta["seed"], history.last("grad_norm")
                note = f"{history.label}, seed {seed}: gradient {gradient:.2e}"
                bars.update(tasks[0], completed=len(runs), note=note)
    return runs
