"""Evaluate claims about the figures of studies, over paired seeds and with an interval.

The end of a run is the median gradient norm over its last tenth of records; only records with
f(x) <= f(x0) count. Two curves are compared seed by seed, on the same coins and clients, by the
logarithm of the ratio of their ends, whose mean has a 95 % interval by Student's t
(`fedpage.studies.statistics`). If a run diverged there is no ratio, and the rank-sum test decides.
Differences of less than 1.5 times count as noise. There is no verdict from fewer than five seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from fedpage.core.errors import InputError
from fedpage.report.numbers import format_beside, format_p
from fedpage.report.plots import FigureRuns, PanelRuns
from fedpage.runs.config import setting
from fedpage.runs.history import History
from fedpage.studies.statistics import ALPHA, MIN_SEEDS, Pair, t_interval


class Verdict(StrEnum):
    """Whether measurements support a claim."""

    HOLDS = "holds"
    WITHIN = "holds within tolerance"
    """The measured number contradicts the claim by less than the tolerance that the row shows."""
    CHOICES = "holds under stated choices"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


HOLDS, WITHIN, CHOICES, FAILS, UNDECIDED = Verdict

TOLERANCE = 1.5
"""Ends of runs that differ by less than this factor count as equal."""
NOISE = math.log(TOLERANCE)
COUNT_TOLERANCE = 1.05
"""Tolerance of counted clients, whose number per round is random."""

Rule = Literal[">", ">=", "="]
_RULES: dict[Rule, tuple[float, float, str]] = {
    ">": (0.0, math.inf, "more than 1x, with its interval"),
    ">=": (
        -NOISE, math.inf,
        f"at least 1x; interval above {1 / TOLERANCE:.3f}x (tolerance {TOLERANCE:g}x)",
    ),
    "=": (
        -NOISE, NOISE,
        f"interval within {1 / TOLERANCE:.3f}x to {TOLERANCE:.2f}x (tolerance {TOLERANCE:g}x)",
    ),
}  # fmt: skip
"""The limits of log(end of the worse / end of the better), and the text of what is needed."""


@dataclass(frozen=True)
class Claim:
    """A sentence about the runs of a study, and how it is checked.

    Attributes:
        text: The sentence.
        kind: How it is checked: "order" compares the ends of curves, "faster" compares a larger
            step with a smaller one, "count" clients or gradients, and "steps" tuned step sizes.
        curves: Labels of the curves. In an order they alternate with ">=" (at least as good, within
            the tolerance), ">" or "<" (better, worse), and "=" (alike).
        name: A short name.
        where: Its source, such as the section of a paper.
        figures: Names of the figures that it is about; none for all.
        choices: Curves that stand for another reading of the sentence.
        column: What a "count" counts.
        printed: The step sizes that the paper prints.
        at: Compare after this many rounds; 0 compares at the end.
    """

    text: str
    kind: Literal["order", "faster", "steps", "count"]
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
        is_order = count >= 3 and count % 2 == 1 and marks <= {">", ">=", "<", "="}
        if self.kind == "order" and not is_order:
            raise InputError("curves of an order are names with '>=', '>', '<' or '=' between them")
        if not self.curves:
            raise InputError(f"kind {self.kind!r} needs at least one curve")


@dataclass(frozen=True)
class Finding:
    """One comparison of a claim.

    Attributes:
        panel: The figure and the panel.
        comparison: What was compared.
        verdict: Whether the comparison supports the claim.
        measured: The measured numbers.
        needed: The numbers that support the claim, with the tolerance.
        seeds: The number of seeds; 0 if the comparison is not one of seeds. With fewer than
            `MIN_SEEDS` the verdict is undecided, whatever was measured.
    """

    panel: str
    comparison: str
    verdict: Verdict
    measured: str
    needed: str = ""
    seeds: int = 0

    def __post_init__(self) -> None:
        if 0 < self.seeds < MIN_SEEDS:
            object.__setattr__(self, "verdict", UNDECIDED)
            object.__setattr__(self, "needed", f"{MIN_SEEDS} seeds, not {self.seeds}")


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with its verdict, its comparisons and a note."""

    claim: Claim
    verdict: Verdict
    findings: tuple[Finding, ...]
    note: str = ""

    @property
    def counts(self) -> str:
        """How many comparisons hold, hold within tolerance, fail and stay undecided."""
        found = [finding.verdict for finding in self.findings]
        within = f", {found.count(WITHIN)} within tolerance" if WITHIN in found else ""
        return (
            f"{found.count(HOLDS)} of {len(found)} hold{within}, {found.count(FAILS)} do not, "
            f"{found.count(UNDECIDED)} undecided"
        )


Check = Callable[[Claim, FigureRuns, Mapping[str, str]], Iterable[Finding]]
"""Makes the comparisons of a claim in a figure, with these choices."""


def evaluate(
    claim: Claim, figures: Mapping[str, FigureRuns], check_steps: Check | None = None
) -> CheckedClaim:
    """Check a claim on finished runs.

    Args:
        claim: The claim.
        figures: The figures with their runs, by name.
        check_steps: Checks claims about tuned "steps", if there was a search for them.

    Returns:
        The claim with its verdict and comparisons.
    """
    present = [figures[name] for name in claim.figures or figures if name in figures]
    if not present:
        return CheckedClaim(claim, UNDECIDED, (), "none of its figures has been run")
    check = _KINDS.get(claim.kind, check_steps or (lambda *_: ()))

    def find(choices: Mapping[str, str]) -> tuple[Finding, ...]:
        return tuple(found for figure in present for found in check(claim, figure, choices))

    findings = find({})
    if claim.kind == "steps" and not findings:
        note = "the search has not been run: `fedpage reproduce local-steps/a9a --tune`"
        return CheckedClaim(claim, UNDECIDED, (), note)
    verdict, notes = combine(findings), []
    few = [finding.seeds for finding in findings if 0 < finding.seeds < MIN_SEEDS]
    if few:
        notes.append(f"Undecided: {min(few)} of {MIN_SEEDS} seeds; add --seeds {MIN_SEEDS}.")
    if claim.choices:
        other = find(claim.choices)
        second = combine(other)
        counts = CheckedClaim(claim, second, other).counts
        notes.append(f"With {', '.join(claim.choices.values())} instead: {second} ({counts}).")
        if (verdict in (HOLDS, WITHIN)) != (second in (HOLDS, WITHIN)):
            verdict = CHOICES
        elif WITHIN in (verdict, second) and HOLDS in (verdict, second):
            verdict = WITHIN
    missing = [name for name in claim.figures if name not in figures]
    if missing:
        notes.append(f"Not run: {', '.join(missing)}.")
    return CheckedClaim(claim, verdict, findings, " ".join(notes))


def combine(findings: Sequence[Finding]) -> Verdict:
    """Combine verdicts: one failure decides, then one open comparison, then one tolerance."""
    verdicts = {finding.verdict for finding in findings}
    return next((kind for kind in (FAILS, UNDECIDED, WITHIN, HOLDS) if kind in verdicts), UNDECIDED)


# --- the ends of curves ---------------------------------------------------------------------------


def final_log_norm(history: History, at: int = 0) -> float:
    """Compute the logarithm of the median gradient norm over the last tenth of records.

    Args:
        history: The run.
        at: Ignore records after this round; 0 uses all.

    Returns:
        The logarithm; inf if the run diverged or most of these records have f(x) > f(x0).
    """
    upto = len(history) if at == 0 else int((history["round"] <= at).sum())
    last = slice(upto - max(1, upto // 10), upto)
    norms = history["grad_norm"][last]
    good = history.progress()[last] & np.isfinite(norms)
    if history.diverged or good.sum() * 2 < len(norms):
        return math.inf
    return math.log(max(float(np.median(norms[good])), 1e-300))


Curve = tuple[str, Sequence[History]]
"""A name and its runs."""


def _compare(
    panel: str, comparison: str, rule: Rule, worse: Curve, better: Curve, at: int = 0
) -> Finding:
    """Compare whether the first curve ends higher than the second, or alike, seed by seed."""
    first, second = (tuple(final_log_norm(run, at) for run in runs) for _, runs in (worse, better))
    pair = Pair(worse[0], better[0], first, second, scale="difference")
    if pair.differences is None:
        return _compare_diverged(panel, comparison, rule, pair)
    mean, low, high = t_interval(pair.differences)
    least, most, needed = _RULES[rule]
    verdict = UNDECIDED
    if low > least and high < most:
        verdict = WITHIN if rule == ">=" and mean < 0 else HOLDS
    elif high < least or low > most:
        verdict = FAILS
    ends, *interval = (
        format_beside(math.exp(min(value, 700.0)), 1.0, TOLERANCE, 1 / TOLERANCE)
        for value in (mean, low, high)
    )
    wins = "" if rule == "=" else f", {pair.wins[1]} of {pair.seeds} seeds"
    measured = f"{pair.first} ends {ends}x as high [{', '.join(interval)}]{wins}"
    return Finding(panel, comparison, verdict, measured, needed, pair.seeds)


def _compare_diverged(panel: str, comparison: str, rule: Rule, pair: Pair) -> Finding:
    """Compare curves of which a run diverged: it is worse than any number."""
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


def _order(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> Iterator[Finding]:
    words = [choices.get(word, word) for word in claim.curves]
    for panel in figure.panels:
        for better, mark, worse in zip(words[:-2:2], words[1::2], words[2::2], strict=True):
            rule: Any = mark
            if mark == "<":
                better, rule, worse = worse, ">", better
            if panel.curves.get(better) and panel.curves.get(worse):
                where, comparison = f"{figure.name}, {panel.title}", f"{better} {rule} {worse}"
                ends = (worse, panel.curves[worse]), (better, panel.curves[better])
                yield _compare(where, comparison, rule, *ends, claim.at)


def _faster(claim: Claim, figure: FigureRuns, _choices: Mapping[str, str]) -> Iterator[Finding]:
    def others(panel: PanelRuns) -> dict[str, Any]:
        return {name: value for name, value in panel.values.items() if name != "step"}

    panels = [panel for panel in figure.panels if "step" in panel.values]
    panels.sort(key=lambda panel: (str(others(panel)), -float(panel.values["step"])))
    for label, (larger, smaller) in itertools.product(claim.curves, itertools.pairwise(panels)):
        fast, slow = larger.curves.get(label), smaller.curves.get(label)
        if others(larger) == others(smaller) and fast and slow:
            large, small = (f"{panel.values['step']:g}" for panel in (larger, smaller))
            ends = (f"step {small}", slow), (f"step {large}", fast)
            comparison = f"{label}: step {large} > {small}"
            yield _compare(figure.name, comparison, ">", *ends)


# --- counts ---------------------------------------------------------------------------------------


def _count(claim: Claim, figure: FigureRuns, choices: Mapping[str, str]) -> Iterator[Finding]:
    for panel in figure.panels:
        curves = {label: panel.curves.get(label, ()) for label in claim.curves}
        where, first = f"{figure.name}, {panel.title}", claim.curves[0]
        if not all(curves.values()):
            continue
        if claim.column == "clients":
            yield _count_clients(where, first, curves[first])
        else:  # with choices over all calls, because the paper does not define which calls count
            yield _count_gradients(where, curves, all_rounds=bool(choices))


def _count_gradients(
    where: str, curves: Mapping[str, Sequence[History]], *, all_rounds: bool
) -> Finding:
    """Compare row gradients per call, over all rounds or those with local steps.

    A full round costs each client one gradient of each of its rows, which is then subtracted.
    """
    work = {}
    for label, runs in curves.items():
        per_call = []
        for run in runs:
            about, full = run.meta["problem"], 0.0 if all_rounds else run.last("full_rounds")
            calls = run.last("clients") - full * about["N"]
            per_call.append((run.last("gradients") - full * about["rows"]) / calls)
        work[label] = float(np.mean(per_call))
    ratio = max(work.values()) / min(work.values())
    measured = ", ".join(f"{label} {value:.1f}" for label, value in work.items())
    return Finding(
        where,
        "row gradients per call are alike",
        HOLDS if ratio <= TOLERANCE else FAILS,
        f"{measured}; largest/smallest {format_beside(ratio, TOLERANCE)}x",
        f"at most {TOLERANCE:g}x (tolerance {TOLERANCE:g}x)",
        min(map(len, curves.values())),
    )


def _count_clients(where: str, label: str, runs: Sequence[History]) -> Finding:
    """Compare clients per round with 2S; the expectation is S + (1 - S/N) S < 2S."""
    about = runs[0].meta
    S, N = about["method"]["S"], about["problem"]["N"]
    expected = S + (1 - S / N) * S
    per_round = [history.last("clients") / history.last("round") for history in runs]
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


_KINDS: dict[str, Check] = {"order": _order, "faster": _faster, "count": _count}
