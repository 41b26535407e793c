"""Compare what all methods of the library need to reach a target: `make communication`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from communication_cases import CASES, Case, Entrant, bases, entrants
from communication_runs import Ladder, Rung, Runs

from fedpage.core.errors import InputError
from fedpage.report.methods import codecs_of


@dataclass(frozen=True)
class Terms:
    """Terms that are equal for all methods."""

    steps: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
    """Effective steps of the screening, in units of 1/L, where L is the smoothness of f."""
    screening: tuple[float, ...] = (30_000, 60_000, 120_000)
    """Contacts to each target that a run of the screening may cost."""
    between: tuple[int, ...] = (100, 200, 400)
    """Contacts between two records of a run for each target; costs in between are interpolated."""


def step_unit(problem: Any) -> float:
    """Return 1/L, or 1 where L is not known."""
    try:
        return 1 / float(problem.smoothness().whole)
    except InputError:
        return 1.0


def screen(case: Case, runs: Runs, found: Sequence[Entrant], terms: Terms) -> dict[str, Any]:
    """Try every entrant at few steps on one seed, without codecs where it converges without."""
    unit = step_unit(runs.problem)
    results = {}
    for entrant in found:
        rungs = [Rung(*pair) for pair in zip(case.targets, terms.screening, strict=True)]
        began = time.process_time()
        tried = [
            (method, runs.measure(method, 0, Ladder(case.column, rungs, "clients"), 200))
            for base in bases(entrant)
            for method in (base.with_step(float(f"{step * unit:.3g}")) for step in terms.steps)
        ]
        results[entrant.key] = tried
        texts = []
        for target in case.targets:
            cost, step = min(
                (run["costs"][f"{target:g}"]["clients"], method.effective_step / unit)
                for method, run in tried
            )
            texts.append(f"{cost:7.0f} @{step:6.3g}")
        best = min(run["best"] for _, run in tried)
        spent = time.process_time() - began
        print(
            f"{case.name} {entrant.key:20s} {' '.join(texts)} best {best:.2e} ({spent:.1f} s)",
            flush=True,
        )
    return results


def main() -> None:
    known = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("communication-runs"))
    parser.add_argument("--cases", default=",".join(known))
    given = parser.parse_args()
    for name in given.cases.split(","):
        case = known[name]
        runs = Runs(given.out / case.name / "runs.jsonl", case.problem())
        plain = [
            entrant
            for entrant in entrants()
            if not entrant.codecs or codecs_of(entrant.entry) in ("contractive", "any")
        ]
        screen(case, runs, plain, Terms())


if __name__ == "__main__":
    sys.exit(main())
