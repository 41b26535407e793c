"""Compare what methods send to reach a gradient norm of 1e-2, 1e-3, 1e-4: `make communication`.

The problems are the paper's two objectives on a9a and w8a, with its clients and minibatches. The
step sizes of each method are searched by `fedpage.studies.tune` with the same budget of
communication. The winners then run on fresh seeds. Trials and runs are files below --out. Finished
runs are not repeated, so a benchmark that was killed resumes. communication_report.py makes the
tables and the plot of docs/benchmarks.md from those files.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import communication_report as report

import fedpage as fp
from fedpage.engine.simulate import describe_simulation
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig
from fedpage.studies.tune import tune

FRESH = 20_000
"""The first seed of the final runs; the tuner uses 0, 1, ... and 10,000, 10,001, ..."""


@dataclass(frozen=True)
class Case:
    """A problem, as options of the command line."""

    data: str
    clients: int
    objective: str

    @property
    def name(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in f"{self.data}-{self.objective}")

    def problem(self) -> Any:
        return build.build_problem(
            ProblemConfig(data=self.data, clients=self.clients, objective=self.objective)
        )


CASES = tuple(
    Case(data, clients, objective)
    for data, clients in (("a9a", 3250), ("w8a", 4800))
    for objective in ("robust", "logistic-nonconvex")
)


@dataclass(frozen=True)
class Terms:
    """Terms that are equal for all methods; budgets count vectors of d numbers, up and down."""

    multiples: tuple[float, ...] = (1 / 256, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
    """Effective steps to search, in units of 1/L, where L is the smoothness of f."""
    rho: tuple[float, ...] = (0.01, 1.0)
    """K eta_l/eta_g, for FedPAGE with local steps."""
    eta_g: tuple[float, ...] = (1.0, 4.0)
    """Global steps of FedAvg, FedProx and SCAFFOLD, at the same effective step."""
    search: int = 240_000
    """Vectors that a run of the search may send."""
    search_seeds: int = 3
    run: int = 1_200_000
    """Vectors that a final run may send."""
    seeds: int = 5
    tuned_for: tuple[tuple[float, tuple[float, ...]], ...] = ((1e-2, (1e-2,)), (1e-3, (1e-3, 1e-4)))
    """Pairs: the target of a search, and the targets on which its winner is compared."""
    between: int = 1_000
    """Vectors between two records of a final run; 2.5 times as many in a search."""


def vectors_per_round(method: Any, N: int, M: int) -> float:
    """Return the vectors sent in an average round, up and down."""
    if isinstance(method, fp.FedPAGE):
        p = method.S / N
        return p * N * 2 + (1 - p) * method.S * 3
    if isinstance(method, fp.SLocalSVRG):  # a refresh, local steps with h, then without h
        sampled = 1 / min(1.0, method.K / M)
        return N * (2 + 3 + (sampled - 1) * 2) / (1 + sampled)
    if isinstance(method, fp.VRLSGD | fp.Scaffnew):
        return 2 * N
    if isinstance(method, fp.SCAFFOLD):
        return method.S * (3 if method.option == "II" else 4)
    return 2 * method.S


def grid(method: Any, problem: Any, terms: Terms) -> dict[str, list[float]]:
    """Return the values to search: equal steps for all methods, and two of rho or eta_g."""
    L = problem.smoothness().whole
    values = {"step": [float(f"{multiple / L:.3g}") for multiple in terms.multiples]}
    if isinstance(method, fp.FedPAGE):
        return values if method.K == 1 else values | {"rho": list(terms.rho)}
    return values | {"eta_g": list(terms.eta_g)} if hasattr(method, "eta_g") else values


def search(
    case: Case, problem: Any, name: str, target: float, terms: Terms, out: Path
) -> dict[str, Any]:
    """Search the best steps for a target; return them with the command line of the same search."""
    base = build.build_default_method(build.find_method(name), {}, problem)
    values = grid(base, problem, terms)
    each = vectors_per_round(base, problem.N, build.median_rows(problem))
    rounds, record_every = math.ceil(terms.search / each), max(1, round(2.5 * terms.between / each))
    folder = out / "tuning" / case.name / name
    found = tune(
        problem, base, target=target, cost="bytes", grid=values, rounds=rounds,
        record_every=record_every, seeds=terms.search_seeds, fresh=1,
        store=folder / "trials.jsonl",
    )  # fmt: skip
    words = [
        "fedpage", "tune", name, "--data", case.data, "--clients", case.clients,
        "--objective", case.objective, "--target", f"{target:g}", "--cost", "bytes",
        "--rounds", rounds, "--record-every", record_every, "--seeds", terms.search_seeds,
        "--fresh", 1, "--out", folder,
    ]  # fmt: skip
    for key, numbers in values.items():
        words += ["--search", f"{key}={','.join(f'{number:g}' for number in numbers)}"]
    return {
        "method": found.method,
        "reached": math.isfinite(found.scores[0][1].cost),
        "edge": found.method.effective_step in (min(values["step"]), max(values["step"])),
        "command": shlex.join(map(str, words)),
        "runs": found.runs,
    }


def final(
    problem: Any, method: Any, seed: int, least: float, terms: Terms, path: Path
) -> tuple[fp.History, bool]:
    """Load or run a final run; return it, and whether it is new."""
    stop = fp.Stop(grad_norm=least, bytes=8 * problem.d * terms.run)
    record_every = max(
        1, round(terms.between / vectors_per_round(method, problem.N, build.median_rows(problem)))
    )
    options: dict[str, Any] = {
        "rounds": terms.run,
        "seed": seed,
        "record_every": record_every,
        "stop": stop,
    }
    if path.is_file():
        try:
            stored = fp.History.load(path)
        except fp.InputError:
            stored = fp.History()
        same = json.loads(json.dumps(describe_simulation(problem, method, **options)))
        if stored.meta == same and stored.ended:
            return stored, False
    history = fp.simulate(problem, method, **options)
    history.to_jsonl(path)
    return history, True


def evaluate(
    case: Case, names: Sequence[str], terms: Terms, out: Path
) -> tuple[list[report.Line], int]:
    """Return the lines of the case's table, and the number of new runs."""
    problem, lines, done = case.problem(), [], 0
    for name in names:
        costs: dict[float, report.Cost] = {}
        chosen: dict[float, dict[str, Any]] = {}
        for aim, targets in terms.tuned_for:
            began = time.perf_counter()
            found = chosen[aim] = search(case, problem, name, aim, terms, out)
            histories, new = [], found["runs"]
            for seed in range(FRESH, FRESH + terms.seeds):
                path = out / "runs" / case.name / f"{name}-{aim:g}-seed{seed}.jsonl"
                history, fresh = final(problem, found["method"], seed, min(targets), terms, path)
                histories.append(history)
                new += fresh
            costs |= {target: report.cost(histories, target) for target in targets}
            done += new
            spent = time.perf_counter() - began
            print(
                f"{case.name} {name} for {aim:g}: step {found['method'].effective_step:g}, "
                f"{new} runs, {spent:.0f} s",
                flush=True,
            )
        lines.append(report.Line(name, chosen[aim]["method"].name, costs, chosen))
    return lines, done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("communication-runs"),
        help="the directory of trials and runs; an earlier benchmark there resumes",
    )
    out = parser.parse_args().out
    missing = {
        case.data
        for case in CASES
        if fp.data.registry.find(fp.data.registry.REGISTRY[case.data]) is None
    }
    if missing:
        raise SystemExit(
            f"missing data: {', '.join(missing)}; `fedpage data fetch {' '.join(missing)}`"
        )
    began, terms, tables = time.perf_counter(), Terms(), {}
    for case in CASES:
        tables[case], _ = evaluate(case, list(fp.METHODS), terms, out)
    text = "\n\n".join(
        report.table(report.title(case), lines, terms) for case, lines in tables.items()
    )
    text += f"\n\n{report.steps(tables)}"
    (out / "tables.md").write_text(text + "\n", encoding="utf-8")
    (out / "tuned.json").write_text(
        json.dumps(report.tuned(tables), indent=1) + "\n", encoding="utf-8"
    )
    report.draw(tables, terms, report.IMAGE)
    seconds = time.perf_counter() - began
    print(f"\n{text}\n\n{report.versions()}; {seconds:.0f} seconds\n{report.IMAGE}")


if __name__ == "__main__":
    sys.exit(main())
