"""Run every method with every seed, with progress bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpage.cli.output import progress_bars

if TYPE_CHECKING:
    from fedpage.runs.history import History


def sweep(
    problem: Any,
    methods: Sequence[Any],
    rounds: int,
    seeds: int,
    jobs: int,
    out: Path,
    **options: Any,
) -> list[History]:
    """Run every method with the seeds 0, 1, ..., each run in a directory of its own in `out`."""
    from fedpage.studies.sweep import sweep as run_all

    with progress_bars() as bars:
        task = bars.add_task("runs", total=len(methods) * seeds)

        def progress(done: int, _all: int, run: History) -> None:
            seed, gradient = run.meta["seed"], run.last("grad_norm")
            bars.update(
                task, completed=done, note=f"{run.label}, seed {seed}: gradient {gradient:.2e}"
            )

        return run_all(
            problem, methods, rounds=rounds, seeds=seeds, jobs=jobs, progress=progress, out=out,
            **options,
        )  # fmt: skip
