"""Judge claims about the figures of studies, over paired seeds and with an interval.

The end of a run is the median gradient norm over its last tenth of records; only records with
f(x) <= f(x0) count. Two curves are compared seed by seed, on the same coins and clients, by the
logarithm of the ratio of their ends, whose mean has a 95 % interval by Student's t
(`fedpage.studies.statistics`). Where a run diverged there is no ratio, and the rank-sum test
decides. Differences of less than 1.5 times count as noise. There is no verdict from fewer than five
seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypedDict

import numpy as np

from fedpage.core.errors import InputError
from fedpage.report.plots import FigureRuns, PanelRuns
from fedpage.runs.config import setting
from fedpage.runs.history import History
from fedpage.studies.statistics import ALPHA, MIN_SEEDS, Pair, format_beside, format_p, t_interval


class Judgement(StrEnum):
    """Whether measurements support a claim."""

    HOLDS = "holds"
    WITHIN = "holds within tolerance"
    """The measured number contradicts the claim by less than the tolerance that the row shows."""
    CHOICES = "holds under stated choices"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


HOLDS, WITHIN, CHOICES, FAILS, UNDECIDED = Judgement

TOLERANCE = 1.5
"""Ends of runs that differ by less than this factor count as equal."""
NOISE = math.log(TOLERANCE)
COUNT_TOLERANCE = 1.05
"""Tolerance of counted clients, whose number per round is random."""


@dataclass(frozen=True)
class Panel(PanelRuns):
    """A plot of a study.

    Attributes:
        values: What tells it from the other panels, such as {"clients": 3250, "step": 0.1}.
    """

    values: Mapping[str, Any] = field(default_factory=dict)


class TunedCurve(TypedDict):
    """What a search for step sizes found for one curve of a panel."""

    panel: str
    label: str
    K: int
    eta_g: float
    rho: float | None
    rounds_on_held_out_seeds: list[float | None]
    within_tenth: list[float]
    """Every eta_g whose cost is at most 1.1 times the least."""


@dataclass(frozen=True)
class Claim:
    """A sentence about the runs of a study and how to judge it.

    Attributes:
        name: A short name.
        text: The sentence.
        where: Who says it, such as the section of a paper.
        kind: How to judge it: "order", "alike", "faster", "below", "steps" or "count".
        figures: Names of the figures that it is about; none for all.
        curves: Labels of the compared curves; an order has ">" or ">=" between them.
        choices: Curves that stand for another reading of the sentence.
        column: What a "count" counts.
        printed: The step sizes that the paper prints.
        at: Judge after this many rounds; 0 judges at the end.
    """

    text: str
    kind: Literal["order", "alike", "faster", "below", "steps", "count"]
    curves: tuple[str, ...]
    name: str = ""
    where: str = ""
    figures: tuple[str, ...] = ()
    choices: dict[str, str] = field(default_factory=dict)
    column: str = ""
    printed: tuple[tuple[float, ...], ...] = ()
    at: int = setting(0, at_least=0, at_most=2**31 - 1)

    def __post_init__(self) -> None:
        count, marks = len(self.curves), set(self.curves[1::2])
        if self.kind == "order" and (count < 3 or count % 2 == 0 or not marks <= {">", ">="}):
            raise InputError("curves of an order are names with '>' or '>=' between them")
        least = {"alike": 2, "faster": 1, "below": 2, "count": 1}.get(self.kind, 0)
        if count < least or (self.kind == "alike" and count > least):
            raise InputError(f"kind {self.kind!r} needs {least} curves, not {count}")
        if not all(self.printed):
            raise InputError("printed must hold lists of numbers, none of them empty")


@dataclass(frozen=True)
class Finding:
    """One comparison in one panel.

    Attributes:
        panel: The figure and the panel.
        comparison: What was compared.
        verdict: Whether the comparison supports the claim.
        measured: The measured numbers.
        needed: The numbers that support the claim, with the tolerance.
        seeds: The number of seeds; 0 where the comparison is not one of seeds. With fewer than
            `MIN_SEEDS` the verdict is undecided, whatever was measured.
    """

    panel: str
    comparison: str
    verdict: Judgement
    measured: str
    needed: str = ""
    seeds: int = 0

    def __post_init__(self) -> None:
        if 0 < self.seeds < MIN_SEEDS:
            object.__setattr__(self, "verdict", UNDECIDED)
            object.__setattr__(self, "needed", f"{MIN_SEEDS} seeds, not {self.seeds}")


@dataclass(frozen=True)
class Verdict:
    """A claim with its verdict, its comparisons and a note."""

    claim: Claim
    verdict: Judgement
    findings: tuple[Finding, ...]
    note: str = ""

    @property
    def counts(self) -> str:
        """How many comparisons hold, hold within tolerance, fail and stay undecided."""
        count = {
            kind: sum(finding.verdict == kind for finding in self.findings)
            for kind in (HOLDS, WITHIN, FAILS, UNDECIDED)
        }
        within = f", {count[WITHIN]} within tolerance" if count[WITHIN] else ""
        return (
            f"{count[HOLDS]} of {len(self.findings)} hold{within}, {count[FAILS]} do not, "
            f"{count[UNDECIDED]} undecided"
        )


def final_log_norm(history: History, at: int = 0) -> float:
    """Compute the logarithm of the median gradient norm over the last tenth of records.

    Args:
        history: The run.
        at: Ignore records after this round; 0 uses all.

    Returns:
        The logarithm; inf where the run diverged or most of these records have f(x) > f(x0).
    """
    upto = len(history) if at == 0 else int((history["round"] <= at).sum())
    last = slice(upto - max(1, upto // 10), upto)
    norms = history["grad_norm"][last]
    good = history.progress()[last] & np.isfinite(norms)
    if history.diverged or good.sum() * 2 < len(norms):
        return math.inf
    return math.log(max(float(np.median(norms[good])), 1e-300))


Curves = Mapping[str, Sequence[History]]
"""Histories by label."""


def _pair_ends(
    worse: str, better: str, runs: tuple[Sequence[History], Sequence[History]], at: int = 0
) -> Pair:
    """Pair the logarithms of the ends of two curves, seed by seed."""
    first, second = (tuple(final_log_norm(run, at) for run in group) for group in runs)
    return Pair(worse, better, first, second, scale="difference")


Rule = Literal[">", ">=", "="]
_NEEDED: dict[Rule, str] = {
    ">": "more than 1x, with its interval",
    ">=": f"at least 1x; interval above {1 / TOLERANCE:.3f}x (tolerance {TOLERANCE:g}x)",
    "=": f"interval within {1 / TOLERANCE:.3f}x to {TOLERANCE:.2f}x (tolerance {TOLERANCE:g}x)",
}


def _compare(panel: str, comparison: str, rule: Rule, pair: Pair) -> Finding:
    """Judge whether the first curve of a pair ends higher than, or alike to, the second."""
    if pair.differences is None:
        return _compare_diverged(panel, comparison, rule, pair)
    mean, low, high = t_interval(pair.differences)
    if rule == ">":
        verdict = HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED
    elif rule == ">=":
        verdict = (HOLDS if mean >= 0 else WITHIN) if low > -NOISE else UNDECIDED
        verdict = FAILS if high < -NOISE else verdict
    elif low > -NOISE and high < NOISE:
        verdict = HOLDS
    else:
        verdict = FAILS if low > NOISE or high < -NOISE else UNDECIDED
    ends, *interval = (
        format_beside(math.exp(min(value, 700.0)), 1.0, TOLERANCE, 1 / TOLERANCE)
        for value in (mean, low, high)
    )
    wins = "" if rule == "=" else f", {pair.wins[1]} of {pair.seeds} seeds"
    measured = f"{pair.first} ends {ends}x as high [{', '.join(interval)}]{wins}"
    return Finding(panel, comparison, verdict, measured, _NEEDED[rule], pair.seeds)


def _compare_diverged(panel: str, comparison: str, rule: Rule, pair: Pair) -> Finding:
    """Judge curves of which a run diverged: it is worse than any number."""
    verdict = UNDECIDED
    if pair.is_different:
        verdict = HOLDS if pair.better == pair.second and rule != "=" else FAILS
    lost = [sum(map(math.isinf, ends)) for ends in (pair.a, pair.b)]
    higher, lower = reversed(pair.wins)
    measured = (
        f"{pair.first} diverged on {lost[0]} of {pair.seeds} seeds, {pair.second} on {lost[1]}; "
        f"{pair.first} ends higher on {higher}, lower on {lower} ({format_p(pair.p_value)})"
    )
    needed = f"rank-sum test with p < {ALPHA:g}, because a diverged run has no ratio"
    return Finding(panel, comparison, verdict, measured, needed, pair.seeds)


def judge(
    claim: Claim,
    figures: Mapping[str, FigureRuns],
    tuned: Mapping[str, list[TunedCurve]] | None = None,
) -> Verdict:
    """Judge a claim on finished runs.

    Args:
        claim: The claim.
        figures: The figures with their runs, by name.
        tuned: Results of the search for step sizes, by figure; only claims about "steps" use it.

    Returns:
        The verdict with its comparisons.
    """
    present = [name for name in claim.figures or figures if name in figures]
    if not present:
        return Verdict(claim, UNDECIDED, (), "none of its figures has been run")
    if claim.kind == "steps":
        findings, note = _judge_steps(claim, present, tuned or {})
        return Verdict(claim, combine(findings), tuple(findings), note)
    judge_figure = _JUDGES[claim.kind]
    findings = [f for name in present for f in judge_figure(claim, figures[name], {})]
    verdict, note = combine(findings), ""
    if claim.choices:
        other = [f for name in present for f in judge_figure(claim, figures[name], claim.choices)]
        second = combine(other)
        names = ", ".join(claim.choices.values())
        note = f"With {names} instead: {second} ({Verdict(claim, second, tuple(other)).counts})."
        if (verdict in (HOLDS, WITHIN)) != (second in (HOLDS, WITHIN)):
            verdict = CHOICES
        elif WITHIN in (verdict, second) and HOLDS in (verdict, second):
            verdict = WITHIN
    few = [finding.seeds for finding in findings if 0 < finding.seeds < MIN_SEEDS]
    if few:
        note = (
            f"Undecided: {min(few)} of {MIN_SEEDS} seeds; add --seeds {MIN_SEEDS}. {note}".strip()
        )
    missing = [name for name in claim.figures if name not in figures]
    if missing:
        note = f"{note} Not run: {', '.join(missing)}.".strip()
    return Verdict(claim, verdict, tuple(findings), note)


def combine(findings: Sequence[Finding]) -> Judgement:
    """Combine verdicts: one failure decides, then one open comparison, then one tolerance.

    Args:
        findings: The comparisons.

    Returns:
        The verdict over all of them.
    """
    verdicts = {finding.verdict for finding in findings}
    if not verdicts:
        return UNDECIDED
    return next(kind for kind in (FAILS, UNDECIDED, WITHIN, HOLDS) if kind in verdicts)


def _has_runs(curves: Curves, labels: Sequence[str]) -> bool:
    return all(curves.get(label) for label in labels)


def _judge_order(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> list[Finding]:
    labels = [choices.get(word, word) for word in claim.curves]
    findings = []
    for panel in figure.panels:
        curves, where = panel.curves, f"{figure.name}, {panel.title}"
        for i in range(0, len(labels) - 2, 2):
            better, mark, worse = labels[i : i + 3]
            if _has_runs(curves, (better, worse)):
                pair = _pair_ends(worse, better, (curves[worse], curves[better]), claim.at)
                rule: Rule = ">" if mark == ">" else ">="
                findings.append(_compare(where, f"{better} {mark} {worse}", rule, pair))
    return findings


def _judge_alike(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> list[Finding]:
    one, two = claim.curves
    findings = []
    for panel in figure.panels:
        curves = panel.curves
        if not _has_runs(curves, (one, two)):
            continue
        pair = _pair_ends(two, one, (curves[two], curves[one]))
        where = f"{figure.name}, {panel.title}"
        findings.append(_compare(where, f"{one} = {two}", "=", pair))
    return findings


def _judge_faster(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> list[Finding]:
    findings = []
    for label in claim.curves:
        for larger, smaller in itertools.pairwise(_by_step(figure.panels)):
            fast, slow = larger.curves.get(label), smaller.curves.get(label)
            if _other_values(larger) != _other_values(smaller) or not fast or not slow:
                continue
            large, small = larger.values["step"], smaller.values["step"]
            pair = _pair_ends(f"step {small:g}", f"step {large:g}", (slow, fast))
            comparison = f"{label}: step {large:g} > {small:g}"
            findings.append(_compare(figure.name, comparison, ">", pair))
    return findings


def _by_step(panels: Sequence[PanelRuns]) -> list[Panel]:
    """Return the panels of a step, the largest step first."""
    found = [panel for panel in panels if isinstance(panel, Panel) and "step" in panel.values]
    return sorted(
        found, key=lambda panel: (str(_other_values(panel)), -float(panel.values["step"]))
    )


def _other_values(panel: Panel) -> dict[str, Any]:
    """Return what tells a panel from others beside its step."""
    return {name: value for name, value in panel.values.items() if name != "step"}


def _judge_below(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> list[Finding]:
    *lower, upper = claim.curves
    findings = []
    for panel, label in itertools.product(figure.panels, lower):
        curves, where = panel.curves, f"{figure.name}, {panel.title}"
        if _has_runs(curves, (label, upper)):
            pair = _pair_ends(upper, label, (curves[upper], curves[label]))
            findings.append(_compare(where, f"{label} > {upper}", ">", pair))
    return findings


def _judge_steps(
    claim: Claim, figures: Sequence[str], tuned: Mapping[str, list[TunedCurve]]
) -> tuple[list[Finding], str]:
    findings, exact = [], 0
    for name in figures:
        panels: dict[str, list[TunedCurve]] = {}
        for row in tuned.get(name, []):
            panels.setdefault(row["panel"], []).append(row)
        for number, (panel, rows) in enumerate(panels.items()):
            chosen = [row["eta_g"] for row in rows]
            near = [row["within_tenth"] for row in rows]
            if not near[0] or not near[-1]:  # the target was not reached
                verdict = UNDECIDED
            else:
                separate, larger = min(near[-1]) > max(near[0]), max(near[-1]) > max(near[0])
                verdict = HOLDS if separate else UNDECIDED if larger else FAILS
            is_printed = name.endswith("a9a") and number < len(claim.printed)
            printed = claim.printed[number] if is_printed else None
            exact += printed is not None and list(printed) == chosen
            theirs = f"; the paper: {'/'.join(f'{v:g}' for v in printed)}" if printed else ""
            measured = f"{'/'.join(f'{v:g}' for v in chosen)}{theirs}; within a tenth of the best: "
            measured += " | ".join(",".join(f"{v:g}" for v in values) for values in near)
            needed = "every eta_g within a tenth of the best is larger for the largest K"
            where = f"{name}, {panel}"
            findings.append(Finding(where, "eta_g rises with K", verdict, measured, needed))
    if not findings:
        return [], "the search has not been run: `fedpage reproduce local-steps/a9a --tune`"
    return findings, f"{exact} of the paper's three triples were found again exactly."


def _work_in_local_rounds(history: History) -> float:
    """Compute row gradients per call in rounds of local steps.

    A full round costs each client one gradient of each of its rows, which is subtracted.
    """
    about = history.meta["problem"]
    full = history.last("full_rounds")
    gradients = history.last("gradients") - full * about["rows"]
    return float(gradients / (history.last("clients") - full * about["N"]))


def _work_in_all_rounds(history: History) -> float:
    """Compute row gradients per call, full rounds included."""
    return history.last("gradients") / history.last("clients")


def _judge_count(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> list[Finding]:
    findings = []
    for panel in figure.panels:
        curves = panel.curves
        if not _has_runs(curves, claim.curves):
            continue
        where = f"{figure.name}, {panel.title}"
        if claim.column == "clients":
            findings.append(_count_clients(where, claim.curves[0], curves))
            continue
        # the paper does not say which calls it means
        measure = _work_in_all_rounds if choices else _work_in_local_rounds
        work = {
            label: float(np.mean([measure(run) for run in curves[label]])) for label in claim.curves
        }
        ratio = max(work.values()) / min(work.values())
        measured = ", ".join(f"{label} {value:.1f}" for label, value in work.items())
        findings.append(
            Finding(
                where,
                "row gradients per call are alike",
                HOLDS if ratio <= TOLERANCE else FAILS,
                f"{measured}; largest/smallest {format_beside(ratio, TOLERANCE)}x",
                f"at most {TOLERANCE:g}x (tolerance {TOLERANCE:g}x)",
                min(len(curves[label]) for label in claim.curves),
            )
        )
    return findings


def _count_clients(where: str, label: str, curves: Curves) -> Finding:
    """Compare clients per round with 2S; the expectation is S + (1 - S/N) S < 2S."""
    about = curves[label][0].meta
    S, N = about["method"]["S"], about["problem"]["N"]
    expected = S + (1 - S / N) * S
    per_round = [history.last("clients") / history.last("round") for history in curves[label]]
    mean, low, high = t_interval(per_round)
    limit = COUNT_TOLERANCE * expected
    verdict = HOLDS if mean < 2 * S else WITHIN if low <= limit else FAILS
    return Finding(
        where,
        f"{label}: clients per round < 2S",
        verdict,
        f"{format_beside(mean, 2 * S)} [{format_beside(low, limit)}, {format_beside(high)}], "
        f"expected {expected:.2f}",
        f"less than 2S = {2 * S}; interval from {limit:.2f} or less "
        f"(tolerance {COUNT_TOLERANCE:g}x of the expected number)",
        len(per_round),
    )


_JUDGES: dict[str, Callable[[Claim, FigureRuns, Mapping[str, str]], list[Finding]]] = {
    "order": _judge_order,
    "alike": _judge_alike,
    "faster": _judge_faster,
    "below": _judge_below,
    "count": _judge_count,
}
