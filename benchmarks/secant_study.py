"""Measure SecantPAGE and its variants: `python benchmarks/secant_study.py --out secant.jsonl`.

Every variant runs on every problem and seed until the gradient norm is 1e-4 or the budget of client
contacts is used up. Prints the tables of docs/secantpage-study.md: contacts and megabytes to each
target, median and worst seed. Needs a9a, w8a and mushrooms in FEDPAGE_DATA. A file of results that
exists is continued, so a study that was killed resumes.

    python benchmarks/secant_study.py --out secant.jsonl --seeds 100:110
    python benchmarks/secant_study.py --out secant.jsonl --seeds 0:3 --variants ridge-3,S-5
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import fedpage as fp

TARGETS = (1e-2, 1e-3, 1e-4)
CLIENTS = {"a9a": 3250, "w8a": 4974, "mushrooms": 812}
"""Clients of 10 consecutive rows."""
BUDGETS = {"a9a": 60_000, "w8a": 120_000, "mushrooms": 50_000}
"""The most client contacts of a run."""
PROBLEMS = tuple(
    f"{data} {objective}"
    for data in CLIENTS
    for objective in ("robust", "nonconvex", "l2")
    if (data, objective) != ("mushrooms", "l2")
)
L2 = 0.001
"""The weight of the l2 regulariser. The nonconvex one has the library's default, 0.1."""
ROUNDS_BETWEEN_RECORDS = 5

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "casts": {"up": "float16", "down": "float32"},
    "natural": {"up": "natural", "down": "float32"},
    "metric-none": {"metric": "none"},
    "window-30": {"metric": "window"},
    "window-100": {"metric": "window", "window": 100},
    "damping-1/8": {"damping": 0.125},
    "damping-1/2": {"damping": 0.5},
    "ridge-0.3": {"ridge": 0.3},
    "ridge-3": {"ridge": 3.0},
    "beta-0.98": {"beta": 0.98},
    "S-5": {"S": 5},
    "S-20": {"S": 20},
}
"""Arguments of SecantPAGE."""


@cache
def problem(name: str) -> fp.LinearModel:
    data, objective = name.split()
    rows = fp.load(data)
    if objective == "robust":
        return fp.RobustRegression(rows, CLIENTS[data])
    if objective == "l2":
        return fp.LogisticRegression(rows, CLIENTS[data], reg="l2", alpha=L2)
    return fp.LogisticRegression(rows, CLIENTS[data], reg="nonconvex")


def run(name: str, variant: str, seed: int) -> dict[str, Any]:
    """Run to 1e-4 or to the budget; return contacts and bytes at each target, inf if not reached.

    Costs are those of the first record at the target; nothing is interpolated.
    """
    budget = BUDGETS[name.split()[0]]
    history = fp.simulate(
        problem(name), fp.SecantPAGE(**VARIANTS[variant]), rounds=budget, seed=seed,
        record_every=ROUNDS_BETWEEN_RECORDS,
        stop=fp.Stop(TARGETS[-1], budgets={"clients": budget}),
    )  # fmt: skip
    costs = {
        cost: [history.cost_to(target, cost) for target in TARGETS]
        for cost in ("clients", "bytes_up", "bytes")
    }
    return {"problem": name, "variant": variant, "seed": seed, **costs}


def finished(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["problem"], row["variant"], row["seed"]): row for row in rows}


def cell(values: Iterable[float], unit: float) -> str:
    """Return median/worst in a unit; "-" where the target was not reached."""
    numbers = sorted(values)

    def text(value: float) -> str:
        return f"{value / unit:.3g}" if math.isfinite(value) else "-"

    return f"{text(statistics.median(numbers))}/{text(numbers[-1])}"


def table(rows: list[dict[str, Any]], variants: list[str], cost: str, unit: float) -> str:
    """Return a Markdown table: a problem a row, a variant a column, three targets a cell."""
    lines = ["| | " + " | ".join(variants) + " |", "|---" * (len(variants) + 1) + "|"]
    for name in PROBLEMS:
        cells = []
        for variant in variants:
            of = [r[cost] for r in rows if (r["problem"], r["variant"]) == (name, variant)]
            cells.append(", ".join(cell(at, unit) for at in zip(*of, strict=True)))
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("secant-study.jsonl"))
    parser.add_argument("--seeds", default="100:110", metavar="FIRST:END")
    parser.add_argument("--variants", default="default,casts")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    args = parser.parse_args(arguments)
    seeds = range(*map(int, args.seeds.split(":")))
    variants, names = args.variants.split(","), args.problems.split(",")
    done = finished(args.out)
    for variant in variants:
        for name in names:
            for seed in seeds:
                key = (name, variant, seed)
                if key not in done:
                    done[key] = run(*key)
                    with args.out.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
    rows = [row for key, row in done.items() if key[1] in variants and key[2] in seeds]
    print(f"thousands of client contacts to {TARGETS}, median/worst of seeds {args.seeds}\n")
    print(table(rows, variants, "clients", 1e3))
    print("\nMB, up and down\n")
    print(table(rows, variants, "bytes", 1e6))


if __name__ == "__main__":
    main()
