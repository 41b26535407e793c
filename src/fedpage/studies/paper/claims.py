"""The paper's claims, judged on runs: over paired seeds, with an interval, never on one curve.

The end of a run is the median of its last tenth of records of the gradient norm, a record counting only while
f(x) <= f(x0). Two curves are compared seed by seed on the same coins and clients, as the logarithm of the ratio of
their ends; a bootstrap over seeds gives a 95 % interval of its mean. Differences under 1.5 times are noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import uniforms
from fedpage.runs import toml
from fedpage.runs.history import History
from fedpage.studies.paper.figures import Figure

HOLDS, CHOICES, FAILS, UNDECIDED = (
    "holds",
    "holds under stated choices",
    "does not hold",
    "undecided",
)
NOISE = math.log(1.5)
_KEYS = {
    "name": str, "text": str, "where": str, "kind": str, "figures": list, "curves": list, "choices": dict,
    "column": str, "printed": list, "at": int,
}  # fmt: skip
_KINDS = ("order", "alike", "faster", "below", "steps", "count")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and how it is judged."""

    name: str
    text: str
    where: str
    kind: str
    figures: tuple[str, ...]
    curves: tuple[str, ...]
    choices: Mapping[str, str]
    column: str
    printed: tuple[tuple[float, ...], ...]
    at: int = 0
    """Judge after so many rounds; 0: at the end."""


@dataclass(frozen=True)
class Finding:
    """One comparison in one panel: what was compared, the numbers, and whether it supports the claim."""

    panel: str
    what: str
    verdict: str
    numbers: str


@dataclass(frozen=True)
class Verdict:
    """A claim with its verdict and everything it rests on."""

    claim: Claim
    verdict: str
    findings: tuple[Finding, ...]
    note: str = ""

    @property
    def tally(self) -> str:
        """How many comparisons support, contradict and leave it open."""
        count = {
            kind: sum(f.verdict == kind for f in self.findings)
            for kind in (HOLDS, FAILS, UNDECIDED)
        }
        return f"{count[HOLDS]} of {len(self.findings)} hold, {count[FAILS]} do not, {count[UNDECIDED]} undecided"


def claims() -> list[Claim]:
    """All of them, in the file's order."""
    return parse(files("fedpage.studies.paper").joinpath("claims.toml").read_text(encoding="utf-8"))


def parse(text: str, source: str = "claims.toml") -> list[Claim]:
    """Claims from TOML; unknown keys and kinds are errors, and so are values of a wrong kind."""
    book = toml.loads(text, source)
    toml.known(book, {"claim": list}, source, optional={"claim"})
    found = []
    for number, table in enumerate(book.get("claim", []), start=1):
        where = f"{source}, claim {number}"
        toml.known(table, _KEYS, where, optional={"choices", "column", "printed", "at"})
        if table["kind"] not in _KINDS:
            raise InputError(
                f"{where}: kind must be one of {', '.join(_KINDS)}, not {short_repr(table['kind'])}"
            )
        made = Claim(
            name=table["name"], text=table["text"], where=table["where"], kind=table["kind"],
            figures=tuple(table["figures"]), curves=tuple(table["curves"]), choices=table.get("choices", {}),
            column=table.get("column", ""), at=table.get("at", 0),
            printed=tuple(tuple(row) if isinstance(row, list) else () for row in table.get("printed", ())),
        )  # fmt: skip
        _sound(made, where)
        found.append(made)
    return found


def _sound(claim: Claim, where: str) -> None:
    """Refuse what its judge could not read."""
    words = {"figures": claim.figures, "curves": claim.curves, "choices": claim.choices.values()}
    for key, values in words.items():
        if not all(isinstance(word, str) for word in values):
            raise InputError(f"{where}: {key} must hold words only")
    count = len(claim.curves)
    marks = claim.curves[1::2]
    if claim.kind == "order" and (count < 3 or count % 2 == 0 or not set(marks) <= {">", ">="}):
        raise InputError(f"{where}: curves of an order are names with '>' or '>=' between them")
    least, most = {
        "alike": (2, 2),
        "faster": (1, count),
        "below": (2, count),
        "count": (1, count),
    }.get(claim.kind, (0, count))
    if not least <= count <= most:
        raise InputError(f"{where}: kind {claim.kind!r} needs {least} curves, not {count}")
    if not all(row and all(type(value) in (int, float) for value in row) for row in claim.printed):
        raise InputError(f"{where}: printed must hold lists of numbers")
    if not 0 <= claim.at < 2**31:
        raise InputError(f"{where}: at must be from 0 to {2**31 - 1:,}, not {short_repr(claim.at)}")


def end_of(history: History, at: int = 0) -> float:
    """log of the median gradient norm over the last tenth of records (up to round `at`, if given).

    inf where most of them are no progress, or the run diverged.
    """
    upto = len(history) if at == 0 else int((history["round"] <= at).sum())
    last = slice(upto - max(1, upto // 10), upto)
    norms = history["grad_norm"][last]
    good = history.progress()[last] & np.isfinite(norms)
    if history.diverged or good.sum() * 2 < len(norms):
        return math.inf
    return math.log(max(float(np.median(norms[good])), 1e-300))


def interval(
    values: Sequence[float], seed: int = 0, draws: int = 4000
) -> tuple[float, float, float]:
    """Mean and 95 % bootstrap interval (percentiles of resampled means)."""
    data = np.asarray(values, dtype=np.float64)
    picks = (
        (uniforms(seed, 30, size=draws * len(data)) * len(data))
        .astype(np.int64)
        .reshape(draws, len(data))
    )
    low, high = np.quantile(data[picks].mean(axis=1), (0.025, 0.975))
    return float(data.mean()), float(low), float(high)


def log_ratio(worse: Sequence[History], better: Sequence[History], at: int = 0) -> list[float]:
    """log(end of the one / end of the other), seed by seed; 20 stands for a run that diverged alone."""
    ratios = []
    for one, two in zip(worse, better, strict=True):
        a, b = end_of(one, at), end_of(two, at)
        ratios.append(
            0.0 if math.isinf(a) and math.isinf(b) else float(np.clip(a - b, -20.0, 20.0))
        )
    return ratios


def _compare(
    panel: str,
    better: str,
    worse: str,
    strict: bool,
    curves: Mapping[str, list[History]],
    at: int = 0,
) -> Finding:
    ratios = log_ratio(curves[worse], curves[better], at)
    mean, low, high = interval(ratios)
    wins = sum(r > 0 for r in ratios)
    if strict:
        verdict = HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED
    else:
        verdict = HOLDS if low > -NOISE else FAILS if high < -NOISE else UNDECIDED
    sign = ">" if strict else ">="
    numbers = f"{worse} ends {_times(mean, low, high)}, {wins} of {len(ratios)} seeds"
    return Finding(panel, f"{better} {sign} {worse}", verdict, numbers)


def _times(mean: float, low: float, high: float) -> str:
    return f"{math.exp(mean):.2f}x as high [{math.exp(low):.2f}, {math.exp(high):.2f}]"


Runs = Mapping[str, Mapping[str, Mapping[str, list[History]]]]
"""Histories by figure, panel and label."""


def judge(
    claim: Claim,
    figures: Mapping[str, Figure],
    runs: Runs,
    tuned: Mapping[str, list[dict[str, Any]]],
) -> Verdict:
    """The verdict on a claim from finished runs (and, for tuned steps, from the search's results)."""
    present = [name for name in claim.figures if name in runs]
    if not present:
        return Verdict(claim, UNDECIDED, (), "none of its figures has been run")
    judges = {
        "order": _order, "alike": _alike, "faster": _faster, "below": _below, "count": _count,
    }  # fmt: skip
    if claim.kind == "steps":
        findings, note = _steps(claim, present, tuned)
        return Verdict(claim, overall(findings), tuple(findings), note)
    findings = [
        f for name in present for f in judges[claim.kind](claim, figures[name], runs[name], {})
    ]
    verdict, note = overall(findings), ""
    if claim.choices:
        other = [
            f
            for name in present
            for f in judges[claim.kind](claim, figures[name], runs[name], claim.choices)
        ]
        second = overall(other)
        names = ", ".join(claim.choices.values())
        note = f"With {names} instead: {second} ({Verdict(claim, second, tuple(other)).tally})."
        if verdict == HOLDS and second != HOLDS:
            verdict = CHOICES
        if verdict != HOLDS and second == HOLDS:
            verdict = CHOICES
    missing = [name for name in claim.figures if name not in runs]
    if missing:
        note = f"{note} Not run: {', '.join(missing)}.".strip()
    return Verdict(claim, verdict, tuple(findings), note)


def overall(findings: Sequence[Finding]) -> str:
    """Holds if every comparison does; does not hold if one is contradicted; undecided otherwise."""
    if not findings:
        return UNDECIDED
    kinds = {finding.verdict for finding in findings}
    return FAILS if FAILS in kinds else HOLDS if kinds == {HOLDS} else UNDECIDED


def _complete(curves: Mapping[str, list[History]], labels: Sequence[str]) -> bool:
    return all(curves.get(label) for label in labels)


def _order(claim: Claim, figure: Figure, runs: Any, choices: Mapping[str, str]) -> list[Finding]:
    labels = [choices.get(word, word) for word in claim.curves]
    findings = []
    for panel in figure.panels:
        curves = runs[panel.key]
        for i in range(0, len(labels) - 2, 2):
            better, mark, worse = labels[i : i + 3]
            if _complete(curves, (better, worse)):
                findings.append(
                    _compare(
                        f"{figure.name}, {panel.title}",
                        better,
                        worse,
                        mark == ">",
                        curves,
                        claim.at,
                    )
                )
    return findings


def _alike(claim: Claim, figure: Figure, runs: Any, choices: Mapping[str, str]) -> list[Finding]:
    one, two = claim.curves
    findings = []
    for panel in figure.panels:
        if not _complete(runs[panel.key], (one, two)):
            continue
        mean, low, high = interval(log_ratio(runs[panel.key][two], runs[panel.key][one]))
        verdict = (
            HOLDS
            if low > -NOISE and high < NOISE
            else FAILS
            if low > NOISE or high < -NOISE
            else UNDECIDED
        )
        numbers = f"{two} ends {_times(mean, low, high)}"
        findings.append(
            Finding(f"{figure.name}, {panel.title}", f"{one} = {two}", verdict, numbers)
        )
    return findings


def _faster(claim: Claim, figure: Figure, runs: Any, choices: Mapping[str, str]) -> list[Finding]:
    findings = []
    panels = sorted(
        (p for p in figure.panels if p.step is not None), key=lambda p: -float(p.step or 0)
    )
    for label in claim.curves:
        for larger, smaller in itertools.pairwise(panels):
            if (
                larger.clients != smaller.clients
                or not runs[larger.key].get(label)
                or not runs[smaller.key].get(label)
            ):
                continue
            mean, low, high = interval(log_ratio(runs[smaller.key][label], runs[larger.key][label]))
            verdict = HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED
            numbers = f"step {smaller.step:g} ends {_times(mean, low, high)}"
            findings.append(
                Finding(
                    figure.name,
                    f"{label}: step {larger.step:g} > {smaller.step:g}",
                    verdict,
                    numbers,
                )
            )
    return findings


def _below(claim: Claim, figure: Figure, runs: Any, choices: Mapping[str, str]) -> list[Finding]:
    *lower, upper = claim.curves
    return [
        _compare(f"{figure.name}, {panel.title}", label, upper, True, runs[panel.key])
        for panel in figure.panels
        for label in lower
        if _complete(runs[panel.key], (label, upper))
    ]


def _steps(
    claim: Claim, figures: Sequence[str], tuned: Mapping[str, list[dict[str, Any]]]
) -> tuple[list[Finding], str]:
    findings, exact = [], 0
    for name in figures:
        panels: dict[str, list[dict[str, Any]]] = {}
        for row in tuned.get(name, []):
            panels.setdefault(row["panel"], []).append(row)
        for number, (panel, rows) in enumerate(panels.items()):
            chosen = [row["eta_g"] for row in rows]
            near = [
                row["within_tenth"] for row in rows
            ]  # an eta_g within a tenth of the best is as good as the best
            if not near[0] or not near[-1]:  # the target was not reached at all
                verdict = UNDECIDED
            else:
                separate, larger = min(near[-1]) > max(near[0]), max(near[-1]) > max(near[0])
                verdict = HOLDS if separate else UNDECIDED if larger else FAILS
            printed = (
                claim.printed[number]
                if name.endswith("a9a") and number < len(claim.printed)
                else None
            )
            exact += printed is not None and list(printed) == chosen
            theirs = f"; the paper: {'/'.join(f'{v:g}' for v in printed)}" if printed else ""
            numbers = (
                f"{'/'.join(f'{v:g}' for v in chosen)}{theirs}; within a tenth of the best: "
                + " | ".join(",".join(f"{v:g}" for v in values) for values in near)
            )
            findings.append(Finding(f"{name}, {panel}", "eta_g rises with K", verdict, numbers))
    note = f"{exact} of the paper's three triples were found again exactly."
    return (
        findings,
        note
        if findings
        else "the search has not been run: `fedpage reproduce local-steps/a9a --tune`",
    )


def _walk_work(history: History) -> float:
    """Gradients of single rows per contact in rounds of local steps; a full round costs each client its M rows once."""
    about = history.meta["problem"]
    full = history.last("full_rounds")
    return float(
        (history.last("gradients") - full * about["rows"])
        / (history.last("clients") - full * about["N"])
    )


def _all_work(history: History) -> float:
    """Gradients of single rows per contact, full rounds included."""
    return history.last("gradients") / history.last("clients")


def _count(claim: Claim, figure: Figure, runs: Any, choices: Mapping[str, str]) -> list[Finding]:
    findings = []
    for panel in figure.panels:
        curves = runs[panel.key]
        if not _complete(curves, claim.curves):
            continue
        first = claim.curves[0]
        method = next(v.method for v in panel.variants if v.label == first)
        where = f"{figure.name}, {panel.title}"
        if claim.column == "clients":
            per_round = [h.last("clients") / h.last("round") for h in curves[first]]
            mean, low, high = interval(per_round)
            expected = method.S + (1 - method.S / panel.clients) * method.S
            verdict = HOLDS if expected < 2 * method.S and low <= expected * 1.05 else FAILS
            numbers = f"{mean:.2f} a round [{low:.2f}, {high:.2f}], expected {expected:.2f}, 2S = {2 * method.S}"
            findings.append(Finding(where, f"{first}: clients a round < 2S", verdict, numbers))
        else:
            measure = (
                _all_work if choices else _walk_work
            )  # the paper does not say which contacts it means
            work = {
                label: float(np.mean([measure(h) for h in curves[label]])) for label in claim.curves
            }
            ratio = max(work.values()) / min(work.values())
            verdict = HOLDS if ratio <= 1.5 else FAILS
            numbers = ", ".join(f"{label} {value:.1f}" for label, value in work.items())
            findings.append(Finding(where, "gradients per contact alike", verdict, numbers))
    return findings
