"""Measure how well pilots predict: `python benchmarks/pilot.py --out pilot.jsonl`.

For each problem, method and target a pilot predicts the rounds, with the defaults of
`fedpage plan`. Runs on fresh seeds with the pilot's step then show what was needed. Each of them is
a trial: the interval holds its rounds or it does not. Prints the tables of docs/planning.md. Needs
a9a, w8a and mushrooms in FEDPAGE_DATA; takes about half an hour on one core. A file of results that
exists is continued.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import fedpage as fp
from fedpage.codecs import IDENTITY
from fedpage.core.types import AnyMethod
from fedpage.studies.extrapolate import first_passages
from fedpage.studies.pilot import FIRST_STEP, Pilot, pilot_methods, run_pilots
from fedpage.theory import reference

METHODS = (
    "FedPAGE", "PAGE", "gradient descent", "SCAFFOLD", "SAGA", "ZeroSARAH", "SecantPAGE",
)  # fmt: skip
TARGETS = {"grad_norm": (1e-2, 1e-3), "gap": (1e-3,)}
PILOT_SEED, FIRST_SEED, SEEDS = 3_000, 40_000, 3
MOST = 20
"""A run ends after this many times the pilot's rounds, or three times the interval's upper end."""
S, K = 10, 10
L2 = {"mushrooms": 0.001, "census": 0.01, "a9a": 0.01, "w8a": 0.01}
"""The weight of the regulariser by data set."""


def problems() -> Iterator[tuple[str, fp.LinearModel]]:
    for objective in ("robust", "logistic-l2"):
        for name, alpha in L2.items():
            data = fp.load(name)
            l2 = alpha if objective == "logistic-l2" else None
            made = fp.OBJECTIVES[objective].problem(data, data.rows // 10, alpha=l2)
            yield f"{name} {objective}", made


def longest(pilot_rounds: int, high: float) -> int:
    return math.ceil(min(MOST * pilot_rounds, 3 * high))


def needed(problem, method: AnyMethod, pilot: Pilot, measure, target, f_star, seed) -> dict:
    """Run to the target; return the rounds and bytes that it took, inf if it was not reached."""
    goal = {"grad_norm": target} if measure == "grad_norm" else {"loss": f_star + target}
    history = fp.simulate(
        problem, method, rounds=longest(pilot.rounds, pilot.forecast.high), seed=seed,
        record_every=max(1, pilot.rounds // 40), stop=fp.Stop(**goal),
    )  # fmt: skip
    values = history["grad_norm"] if measure == "grad_norm" else history["loss"] - f_star
    values = np.where(history.progress() & (values > 0), values, math.inf)
    values[history["loss"] - f_star <= 0] = 1e-300
    rounds = float(first_passages(history["round"], values, np.array([target]))[0])
    paid = math.inf
    if math.isfinite(rounds):
        paid = float(np.interp(rounds, history["round"], history["bytes"]))
    return {"rounds": rounds, "bytes": paid}


def evaluate(name, problem, label, method, measure, target, f_star, first_step) -> dict:
    pilot = run_pilots(
        problem, {label: method}, target=target, measure=measure, f_star=f_star,
        first_step=first_step, seed=PILOT_SEED,
    )[label]  # fmt: skip
    found = pilot.forecast
    row = {
        "problem": name, "method": label, "measure": measure, "target": target, "kind": found.kind,
        "rounds": found.rounds, "low": found.low, "high": found.high, "reason": found.reason,
        "pilot_rounds": pilot.rounds, "step": pilot.step, "bytes": pilot.cost("bytes"),
        "needed": [],
    }  # fmt: skip
    if found.kind != "none":
        seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
        row["needed"] = [
            needed(problem, pilot.method, pilot, measure, target, f_star, seed) for seed in seeds
        ]
    return row


def key(row: dict) -> tuple:
    return row["problem"], row["method"], row["measure"], row["target"]


def measure_all(out: Path) -> list[dict]:
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {key(row) for row in rows}
    for name, problem in problems():
        f_star, first_step = reference(problem).loss, FIRST_STEP / problem.smoothness().whole
        methods = pilot_methods(METHODS, problem.N, S, K, IDENTITY)
        for label, method in methods.items():
            for measure, targets in TARGETS.items():
                if measure == "gap" and not problem.convex:
                    continue
                for target in targets:
                    if (name, label, measure, target) in done:
                        continue
                    asked = (name, problem, label, method, measure, target, f_star, first_step)
                    rows.append(evaluate(*asked))
                    with out.open("a") as stream:
                        stream.write(json.dumps(rows[-1]) + "\n")
                    print(*key(rows[-1]), rows[-1]["kind"], rows[-1]["reason"], flush=True)
    return rows


def trials(rows: list[dict]) -> list[tuple[float, bool, bool]]:
    """Return of each run: predicted over needed rounds, and whether the intervals hold it."""
    found = []
    for row in rows:
        for each in row["needed"]:
            rounds, paid = each["rounds"], each["bytes"]
            cut = longest(row["pilot_rounds"], row["high"])  # a run that ended there needs more
            held = row["low"] <= min(rounds, cut) <= row["high"]
            _, low, high = row["bytes"]
            ratio = row["rounds"] / rounds if math.isfinite(rounds) else 0.0
            found.append((ratio, held, low <= paid <= high))
    return found


def share(flags: list[bool]) -> str:
    return f"{statistics.mean(flags):.0%}" if flags else "-"


def summary(title: str, rows: list[dict]) -> str:
    given = [row for row in rows if row["kind"] != "none"]
    measured = trials([row for row in given if row["kind"] == "measured"])
    predicted = trials([row for row in given if row["kind"] == "predicted"])
    cells = [title, f"{len(given)} of {len(rows)}", share([held for _, held, _ in measured])]
    cells.append(share([held for _, held, _ in predicted]))
    if predicted:
        ratios = [ratio for ratio, _, _ in predicted]
        errors = sorted(math.inf if r == 0 else max(r, 1 / r) for r in ratios)
        cells += [f"{statistics.median(ratios):.2f}", f"{errors[int(0.9 * len(errors))]:.1f}"]
    else:
        cells += ["-", "-"]
    cells.append(share([held for _, _, held in measured + predicted]))
    return "| " + " | ".join(cells) + " |"


HEADING = """\
| | numbers given | measured: holds | predicted: holds | ratio | 9 in 10 | bytes: holds |
|---|---|---|---|---|---|---|"""


def report(rows: list[dict]) -> None:
    print(HEADING)
    for name in dict.fromkeys(row["problem"] for row in rows):
        print(summary(name, [row for row in rows if row["problem"] == name]))
    print(summary("all", rows))
    print("\n" + HEADING)
    for label in METHODS:
        mine = [row for row in rows if row["method"] == label]
        if mine:
            print(summary(label, mine))
    for measure in TARGETS:
        print(summary(measure, [row for row in rows if row["measure"] == measure]))
    print("\n" + HEADING)
    for low, high in ((0, 1), (1, 2), (2, 4), (4, 16)):
        far = [
            row for row in rows
            if row["kind"] != "none" and low < row["rounds"] / row["pilot_rounds"] <= high
        ]  # fmt: skip
        print(summary(f"{low} to {high} times the pilot", far))
    reasons: dict[str, int] = {}
    for row in rows:
        if row["kind"] == "none":
            words = "".join(c for c in row["reason"] if not c.isdigit())
            reasons[words] = reasons.get(words, 0) + 1
    print(*(f"{count} {words}" for words, count in reasons.items()), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("pilot.jsonl"))
    parser.add_argument("--report-only", action="store_true")
    given = parser.parse_args()
    if given.report_only:
        report([json.loads(line) for line in given.out.read_text().splitlines()])
    else:
        report(measure_all(given.out))
