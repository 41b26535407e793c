"""Compare what methods send to reach a gradient norm of 1e-2, 1e-3, 1e-4: `make communication`.

The problems are the paper's two objectives on a9a and w8a, with its clients and minibatches. The
step sizes of each method are searched by `fedpage.studies.tune` with the same budget of bytes. The
winners then run on fresh seeds. Trials and runs are files below --out. Finished runs are not
repeated, so a benchmark that was killed resumes. communication_report.py makes the tables and the
plot of docs/benchmarks.md from those files.

--methods and --cases choose others, such as --methods fedpage:up=natural,saga --cases a9a-robust.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import communication_report as report
import numpy as np

import fedpage as fp
from fedpage.core.types import dtype_of
from fedpage.engine.simulate import describe_simulation
from fedpage.methods.marina import PPMARINA, full_probability
from fedpage.methods.prox import ProximalSteps
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig
from fedpage.studies.tune import tune

FRESH = 20_000
"""The first seed of the final runs; the tuner uses 0, 1, ... and 10,000, 10,001, ..."""

METHODS = (
    "fedpage", "page", "fedavg", "fedprox", "scaffold", "vrl-sgd", "s-local-svrg", "fedpage-full",
    "scaffold-full", "fedavg-full",
)  # fmt: skip
"""The methods of the paper."""

PILOT = 200
"""Rounds of the run that measures what a method sends in a round."""


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
    """Terms that are equal for all methods.

    Budgets count bytes, up and down, in units of 8 d: a vector of d numbers without a codec.
    """

    multiples: tuple[float, ...] = (1 / 256, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
    """Effective steps to search, in units of 1/L, where L is the smoothness of f."""
    rho: tuple[float, ...] = (0.01, 1.0)
    """K eta_l/eta_g, for FedPAGE with local steps."""
    eta_g: tuple[float, ...] = (1.0, 4.0)
    """Global steps of methods that have eta_g and eta_l, at the same effective step."""
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


@dataclass(frozen=True)
class Traffic:
    """Bytes of a method, up and down: of its first round, and of a later one on average."""

    first: float
    later: float

    def rounds(self, budget: float) -> int:
        """Return the rounds that send a budget of bytes, on average."""
        return 1 + max(0, math.ceil((budget - self.first) / self.later))

    def between(self, budget: float) -> int:
        """Return the rounds between records that are a budget of bytes apart."""
        return max(1, round(budget / self.later))


def traffic(problem: Any, method: Any) -> Traffic:
    """Measure the bytes of a method's rounds in a short run with a small step.

    Where full rounds come with a known probability, they are weighted with it and not with their
    share of the short run.
    """
    pilot = method.with_step(1e-3 / problem.smoothness().whole)
    history = fp.simulate(problem, pilot, rounds=PILOT, seed=0, record_every=1)
    sent, called = np.diff(history["bytes"]), np.diff(history["clients"])
    p = probability_of_full_rounds(method, problem)
    sampled = sent[1:][called[1:] < problem.N]
    if p is None or not len(sampled):
        return Traffic(float(sent[0]), float(sent[1:].mean()))
    full = sent[called == problem.N].mean()
    return Traffic(float(sent[0]), float(p * full + (1 - p) * sampled.mean()))


def probability_of_full_rounds(method: Any, problem: Any) -> float | None:
    """Return the probability with which a round calls all clients; None: no coin decides that."""
    if isinstance(method, ProximalSteps):
        return method.full_probability(problem.N)
    if not isinstance(method, fp.FedPAGE | PPMARINA):
        return None
    if method.p is not None:
        return method.p
    S = problem.N if method.S is None else method.S
    if isinstance(method, fp.FedPAGE):
        return float(S / problem.N)
    return full_probability(S, problem.N, method.up, problem.d, dtype_of(problem))


def grid(method: Any, problem: Any, terms: Terms) -> dict[str, list[float]]:
    """Return the values to search: equal steps for all methods, and two of rho or eta_g."""
    L = problem.smoothness().whole
    values = {"step": [float(f"{multiple / L:.3g}") for multiple in terms.multiples]}
    if isinstance(method, fp.FedPAGE):
        return values if method.K == 1 else values | {"rho": list(terms.rho)}
    if {"eta_g", "eta_l"} <= {field.name for field in fields(method)}:
        return values | {"eta_g": list(terms.eta_g)}
    return values


def as_path(name: str) -> str:
    """Return a method's name as a part of a file name."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name)


def build_method(name: str, problem: Any) -> Any:
    """Return a method on the paper's terms, such as "fedavg" or "fedpage:up=natural"."""
    kind, settings = build.split_settings(name)
    entry = build.find_method(kind)
    return build.build_default_method(entry, build.parse_hyper_parameters(entry, settings), problem)


def search(
    case: Case, problem: Any, name: str, sent: Traffic, target: float, terms: Terms, out: Path
) -> dict[str, Any]:
    """Search the best steps for a target; return them with the command line of the same search."""
    base = build_method(name, problem)
    values, vector = grid(base, problem, terms), 8 * problem.d
    rounds = sent.rounds(terms.search * vector)
    record_every = sent.between(2.5 * terms.between * vector)
    folder = out / "tuning" / case.name / as_path(name)
    found = tune(
        problem, base, target=target, cost="bytes", grid=values, rounds=rounds,
        record_every=record_every, seeds=terms.search_seeds, fresh=1,
        store=folder / "trials.jsonl",
    )  # fmt: skip
    kind, settings = build.split_settings(name)
    words = [
        "fedpage", "tune", kind, "--data", case.data, "--clients", case.clients,
        "--objective", case.objective, "--target", f"{target:g}", "--cost", "bytes",
        "--rounds", rounds, "--record-every", record_every, "--seeds", terms.search_seeds,
        "--fresh", 1, "--out", folder,
    ]  # fmt: skip
    for key, value in settings.items():
        words += [f"--{key.replace('_', '-')}", value]
    for key, numbers in values.items():
        words += ["--search", f"{key}={','.join(f'{number:g}' for number in numbers)}"]
    return {
        "method": found.method,
        "reached": math.isfinite(found.scores[0][1].cost),
        "edge": any(edge.name == "step" for edge in found.edges),
        "command": shlex.join(map(str, words)),
        "runs": found.runs,
    }


def final(
    problem: Any, method: Any, sent: Traffic, seed: int, least: float, terms: Terms, path: Path
) -> tuple[fp.History, bool]:
    """Load or run a final run; return it, and whether it is new."""
    vector = 8 * problem.d
    stop = fp.Stop(grad_norm=least, bytes=vector * terms.run)
    record_every = sent.between(vector * terms.between)
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
        sent = traffic(problem, build_method(name, problem))
        costs: dict[float, report.Cost] = {}
        chosen: dict[float, dict[str, Any]] = {}
        for aim, targets in terms.tuned_for:
            began = time.perf_counter()
            found = chosen[aim] = search(case, problem, name, sent, aim, terms, out)
            histories, new = [], found["runs"]
            for seed in range(FRESH, FRESH + terms.seeds):
                path = out / "runs" / case.name / f"{as_path(name)}-{aim:g}-seed{seed}.jsonl"
                history, fresh = final(
                    problem, found["method"], sent, seed, min(targets), terms, path
                )
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
        title = report.label(chosen[aim]["method"], build.split_settings(name)[1])
        lines.append(report.Line(name, title, costs, chosen))
    return lines, done


def main() -> None:
    known, terms = {case.name: case for case in CASES}, Terms()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("communication-runs"),
        help="the directory of trials and runs; an earlier benchmark there resumes",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=METHODS,
        help="names with hyper-parameters, such as fedpage,cofig:up=natural; default: the paper's",
    )
    parser.add_argument(
        "--cases", default=",".join(known), help=f"problems, of {', '.join(known)}; default: all"
    )
    parser.add_argument(
        "--steps",
        default=",".join(str(Fraction(multiple)) for multiple in terms.multiples),
        help="effective steps to search, in units of 1/L; default: %(default)s",
    )
    parser.add_argument("--search-seeds", type=int, default=terms.search_seeds)
    parser.add_argument("--seeds", type=int, default=terms.seeds, help="seeds of the final runs")
    given = parser.parse_args()
    names, out = [name for word in given.methods for name in word.split(",")], given.out
    unknown = [name for name in given.cases.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"unknown case {unknown[0]!r}; known are {', '.join(known)}")
    for name in names:
        kind, settings = build.split_settings(name)
        build.parse_hyper_parameters(build.find_method(kind), settings)
    cases = [known[name] for name in given.cases.split(",")]
    missing = {
        case.data
        for case in cases
        if fp.data.registry.find(fp.data.registry.libsvm_file(case.data)) is None
    }
    if missing:
        raise SystemExit(
            f"missing data: {', '.join(missing)}; `fedpage data fetch {' '.join(missing)}`"
        )
    terms = replace(
        terms,
        multiples=tuple(float(Fraction(text)) for text in given.steps.split(",")),
        search_seeds=given.search_seeds,
        seeds=given.seeds,
    )
    began, tables = time.perf_counter(), {}
    for case in cases:
        tables[case], _ = evaluate(case, names, terms, out)
    default = names == list(METHODS) and cases == list(CASES)
    table = report.table if default else report.short_table
    text = "\n\n".join(table(report.title(case), lines, terms) for case, lines in tables.items())
    text += f"\n\n{report.steps(tables)}"
    (out / "tables.md").write_text(text + "\n", encoding="utf-8")
    (out / "tuned.json").write_text(
        json.dumps(report.tuned(tables), indent=1, default=str) + "\n", encoding="utf-8"
    )
    image = report.IMAGE if default else out / "communication.png"
    report.draw(tables, terms, image)
    seconds = time.perf_counter() - began
    print(f"\n{text}\n\n{report.versions()}; {seconds:.0f} seconds\n{image}")


if __name__ == "__main__":
    sys.exit(main())
