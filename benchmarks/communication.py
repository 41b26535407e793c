"""Compare what all methods of the library need to reach a target: `make communication`.

Every method is first *screened*: few steps, one seed. Those that are not far from the best are
*tuned* by `fedpage.studies.search`, for each target on its own, and the winners *run* on held-out
seeds. Methods run twice: without codecs, tuned for client contacts, and with the codecs that suit
them best, tuned for bytes in all. SecantPAGE is not tuned. Everything that is finished is kept
below --out, so that a benchmark that was killed resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import communication_report as report
import numpy as np
from communication_cases import (
    CASES,
    FEW_CASES,
    NETWORK,
    OURS,
    Case,
    Entrant,
    Terms,
    codec_choices,
    has_torch,
    settings,
    with_settings,
)
from communication_runs import Ladder, Rung, Runs, append_line, read_lines
from communication_screening import Screened, screen_all, selected

from fedpage.core.columns import Cost, Target
from fedpage.core.errors import InputError
from fedpage.methods import METHODS
from fedpage.studies.search import Search
from fedpage.studies.space import Axis, search_space
from fedpage.studies.statistics import CostSample
from fedpage.studies.trials import Question, SearchEnded, Trials

FRESH = 20_000
"""The first seed of the final runs; searches use 0, 1, ..."""


# --- tuning ---------------------------------------------------------------------------------------


def axes_of(
    case: Case, entrant: Entrant, method: Any, problem: Any, only: Sequence[str] | None
) -> dict[str, Axis]:
    """Return the axes of a search: those of the tuner, and codecs.

    The axis of the step begins at the method's step. `only` names the axes beside codecs that are
    searched; None: all.
    """
    axes = search_space(method, problem, fixed=case.terms.fixed)
    if only is not None:
        axes = {name: axis for name, axis in axes.items() if name in only}
    for name, values in codec_choices(entrant).items():
        axes[name] = Axis(name, values, 0, is_ordered=False)
    if "step" in axes:
        step = axes["step"]
        near = [abs(math.log(float(value) / method.effective_step)) for value in step.values]
        axes["step"] = replace(step, start=near.index(min(near)))
    return axes


def tuned(
    case: Case,
    problem: Any,
    entrant: Entrant,
    method: Any,
    place: int,
    out: Path,
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Search the settings of an entrant for a target, or read them from the file.

    Args:
        case: The case.
        problem: Its problem.
        entrant: The entrant.
        method: Where the search starts.
        place: The number of the target.
        out: The directory of all files.
        only: The hyper-parameters to search beside codecs; None: all.
    """
    target, terms = case.targets[place], case.terms
    asked = [terms.limits[place], terms.between[place], terms.search_seeds, terms.runs]
    key = json.dumps([entrant.key, target, *asked, settings(method), only])
    path = out / case.name / "tuned.jsonl"
    for line in read_lines(path):
        if line["key"] == key:
            return {**line, "method": with_settings(entrant, line["settings"])}
    unit = 8 * problem.d if entrant.codecs else 1
    called = getattr(method, "S", None) or problem.N
    question = Question(
        Target(case.column, target), Cost.parse(entrant.cost),
        record_every=max(1, round(terms.between[place] / called)), rounds=1_000_000,
    )  # fmt: skip
    store, limit = out / case.name / "trials.jsonl", terms.limits[place] * unit
    trials = Trials(problem, question, limit, store=store, max_runs=terms.runs)
    axes = axes_of(case, entrant, method, problem, only)
    start = tuple(axis.start for axis in axes.values())
    design = [start]
    if "step" in axes:
        number = list(axes).index("step")
        design = [(*start[:number], start[number] + by, *start[number + 1 :]) for by in (-2, 0, 2)]
    search = Search(trials, method, axes, seeds=terms.search_seeds, design=design)
    with contextlib.suppress(SearchEnded):
        search.run()
    point = start if search.incumbent is None else search.incumbent
    winner = search.method_at(point)
    pairs = zip(axes.values(), point, strict=True)
    found = {
        "key": key,
        "settings": settings(winner),
        "words": ", ".join(f"{axis.name} {_word(axis.values[index])}" for axis, index in pairs),
        "local_optimum": search.is_local_optimum,
        "runs": trials.done + trials.reused,
    }
    append_line(path, found)
    return {**found, "method": winner}


def _word(value: object) -> str:
    return (
        "default" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
    )


# --- final runs -----------------------------------------------------------------------------------


def evaluate(
    case: Case, runs: Runs, entrant: Entrant, method: Any, place: int, terms: Terms, words: str
) -> report.Found:
    """Run a method on the held-out seeds."""
    target = case.targets[place]
    unit = 8 * runs.problem.d if entrant.codecs else 1
    rungs = [Rung(target, terms.limits[place] * unit)]
    found = [
        runs.measure(method, seed, Ladder(case.column, rungs, entrant.cost), terms.between[place])
        for seed in range(FRESH, FRESH + terms.seeds)
    ]
    costs = {
        name: CostSample(tuple(run["costs"][f"{target:g}"][name] for run in found))
        for name in report.SCALES
    }
    return report.Found(words, costs, float(np.median([run["best"] for run in found])))


class Evaluation:
    """A case with its files: the screening, the searches and the final runs."""

    def __init__(self, case: Case, out: Path, names: Sequence[str] | None) -> None:
        self.case, self.out, self.terms = case, out, case.terms
        self.names = case.methods if names is None else names
        self.runs = Runs(out / case.name / "runs.jsonl", case.problem())
        self.lines: dict[Entrant, dict[float, report.Found]] = {}
        self.screened: list[Screened] = []
        self.winners: dict[tuple[str, int], Any] = {}
        """Tuned methods without codecs, by name and number of the target."""

    def screen(self) -> None:
        """Screen all methods."""
        began = time.process_time()
        self.screened = screen_all(self.case, self.runs, self.names, self.terms)
        say(f"{self.case.name}: {len(self.screened)} screened", began)

    def compare(self, place: int) -> None:
        """Tune what the screening left for a target, and run the winners on held-out seeds."""
        target, problem = self.case.targets[place], self.runs.problem
        for entrant, method in selected(self.case, self.runs, self.screened, place):
            began = time.process_time()
            known = self.winners.get((entrant.name, place)) if entrant.codecs else None
            if known is not None:
                codecs = {key: getattr(method, key) for key in codec_choices(entrant)}
                method = replace(known, **codecs)
            elif not self.is_reached(entrant, place):
                method = self.winners.get((entrant.name, place - 1), method)
            only = None if known is None else ("step",)  # the rest has been tuned without codecs
            found = tuned(self.case, problem, entrant, method, place, self.out, only)
            if not entrant.codecs:
                self.winners[entrant.name, place] = found["method"]
            words = found["words"] + ("" if found["local_optimum"] else " (search cut)")
            self._evaluate(entrant, found["method"], place, words)
            text = f"{self.case.name} {entrant.key} for {target:g}: {words}, {found['runs']} runs"
            say(text + self._result(entrant, target), began)

    def is_reached(self, entrant: Entrant, place: int) -> bool:
        """Say whether an entrant reached a target in the screening."""
        found = {each.entrant: each.contacts[place] for each in self.screened}
        return math.isfinite(found.get(entrant, math.inf))

    def run_ours(self, place: int) -> None:
        """Run our method with its defaults; with codecs, only these are searched."""
        target = self.case.targets[place]
        for entrant in (Entrant(OURS, False), Entrant(OURS, True)):
            began = time.process_time()
            first = {key: values[0] for key, values in codec_choices(entrant).items()}
            method, words = METHODS[OURS](**first), "defaults"
            if first:
                problem = self.runs.problem
                found = tuned(self.case, problem, entrant, method, place, self.out, only=())
                method, words = found["method"], found["words"]
            self._evaluate(entrant, method, place, words)
            text = f"{self.case.name} {entrant.key} for {target:g}: {words}"
            say(text + self._result(entrant, target), began)

    def _result(self, entrant: Entrant, target: float) -> str:
        each = self.lines[entrant][target].costs[entrant.cost]
        return f" -> {each.median:.4g} (worst {each.worst:.4g}, {each.reached} reached)"

    def _evaluate(self, entrant: Entrant, method: Any, place: int, words: str) -> None:
        found = evaluate(self.case, self.runs, entrant, method, place, self.terms, words)
        self.lines.setdefault(entrant, {})[self.case.targets[place]] = found

    def table_lines(self, codecs: bool) -> list[report.Line]:
        """Return the lines of the table without codecs, or with."""
        return [
            report.Line(entrant.title, entrant.name == OURS and not self.case.is_ours_tuned, found)
            for entrant, found in self.lines.items()
            if entrant.codecs == codecs
        ]


def say(text: str, began: float) -> None:
    """Print a line with the time of day and the seconds of processor time."""
    spent = time.process_time() - began
    print(f"{time.strftime('%H:%M:%S')} {text} ({spent:.1f} s)", flush=True)


def write_report(evaluations: Sequence[Evaluation], out: Path) -> str:
    """Write the tables, the results as CSV and the pictures below a directory."""
    parts, results = [], {}
    for each in evaluations:
        plain, coded = each.table_lines(False), each.table_lines(True)
        results[each.case.name] = {"no": plain, "yes": coded}
        targets = each.case.targets
        parts += [f"### {each.case.title}", "Without codecs, tuned for contacts:"]
        parts.append(report.table(report.distinct(plain), targets, "clients"))
        if each.case.has_codecs:
            parts.append("With codecs, tuned for bytes in all:")
            parts.append(report.table(report.distinct(coded), targets, "bytes"))
    screened = {
        each.case.name: {
            found.entrant.title + (", codecs" if found.entrant.codecs else ""): found.contacts
            for found in each.screened
        }
        for each in evaluations
    }
    parts += ["### Screening", report.screening_table(screened)]
    parts.append("### Chosen settings")
    for each in evaluations:
        parts.append(f"**{each.case.title}**")
        lines = [
            replace(line, title=line.title + (", codecs" if codecs else ""))
            for codecs in (False, True)
            for line in each.table_lines(codecs)
        ]
        parts.append(report.settings_table(lines, each.case.targets))
    text = "\n\n".join(parts)
    (out / "tables.md").write_text(text + "\n", encoding="utf-8")
    (out / "communication.csv").write_text(report.as_csv(results), encoding="utf-8")
    for codecs, cost, label, name in (
        (False, "clients", "client contacts, without codecs", "communication.png"),
        (True, "bytes", "MB up and down, with codecs", "communication-bytes.png"),
    ):
        panels = {
            each.case.title: (report.distinct(each.table_lines(codecs)), each.case.targets)
            for each in evaluations
            if each.case.has_codecs or not codecs
        }
        if panels:
            report.draw(panels, cost, label, out / name)
    return text


def main() -> None:
    known = {case.name: case for case in (*CASES, *FEW_CASES)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("communication-runs"),
        help="the directory of all files; an earlier benchmark there resumes",
    )
    parser.add_argument(
        "--cases",
        help=f"of {', '.join(known)}, or few: those of few sites; default: all others that can run",
    )
    parser.add_argument("--methods", help="names with commas between; default: all")
    parser.add_argument(
        "--targets", type=int, default=3, help="how many of the targets; default: 3"
    )
    parser.add_argument("--no-ours", action="store_true", help=f"leave {OURS} out")
    given = parser.parse_args()
    names = given.methods and given.methods.split(",")
    try:
        groups = {None: CASES, "few": FEW_CASES}
        chosen = [case.name for case in groups.get(given.cases, ())] or given.cases.split(",")
        for name in chosen:
            if name not in known:
                raise InputError(f"unknown case {name!r}; known are {', '.join(known)}")
        for name in names or ():
            METHODS[name]
        if given.cases is None and NETWORK in chosen and not has_torch():
            print(f"{NETWORK} is left out: it needs torch and scikit-learn", flush=True)
            chosen.remove(NETWORK)
        evaluations = [Evaluation(known[name], given.out, names) for name in chosen]
    except InputError as error:
        raise SystemExit(f"communication.py: {error}") from None
    for place in range(given.targets):
        for each in evaluations:
            if place >= len(each.case.targets):
                continue
            if not each.screened:
                each.screen()
            each.compare(place)
            if not given.no_ours and not each.case.is_ours_tuned:
                each.run_ours(place)
    print(write_report(evaluations, given.out))
    print(f"\n{report.versions()}\n{given.out}")


if __name__ == "__main__":
    sys.exit(main())
