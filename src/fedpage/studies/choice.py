"""The result of a race between methods: a ranking, a recommendation, and who left and why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpage.core.display import html_table
from fedpage.core.types import AnyMethod
from fedpage.report.summary import format_duration
from fedpage.runs import build
from fedpage.studies.entrants import Entrant, describe_settings
from fedpage.studies.question import Question
from fedpage.studies.statistics import CostSample


@dataclass(frozen=True)
class Finalist:
    """A method that was judged on fresh seeds.

    Attributes:
        entrant: The method's entry in the race.
        method: Its settings.
        judgement: Its costs on the fresh seeds.
        is_tied: Whether the fresh seeds do not tell it from the first.
        p_value: The adjusted p-value of that comparison.
        rounds: The most rounds that it took on a fresh seed.
        note: What limits the result, such as a search that the time budget ended.
    """

    entrant: Entrant
    method: AnyMethod
    judgement: CostSample
    is_tied: bool
    p_value: float
    rounds: int
    note: str = ""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.entrant.name

    @property
    def label(self) -> str:
        """Its name as papers print it."""
        return self.entrant.label

    @property
    def settings(self) -> str:
        """Its hyper-parameters in short."""
        return describe_settings(self.method)

    @property
    def hyper(self) -> str:
        """Its hyper-parameters with all digits, as `hyper` of a Flower app takes them."""
        return " ".join(f"{name}={text}" for name, text in build.hyper_words(self.method).items())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the reader must know: states, assumptions, and what limits the result."""
        return (*self.entrant.notes, *((self.note,) if self.note else ()))


@dataclass(frozen=True)
class Eliminated:
    """A method that left the race before the final.

    Attributes:
        entrant: The method's entry in the race.
        reason: Why it left.
        times: Its cost over that of the first when it left; inf if it had not reached the target.
        best: The best value of the target's column.
    """

    entrant: Entrant
    reason: str
    times: float
    best: float


@dataclass(frozen=True)
class Choice:
    """Which method with which settings reaches a target at the least cost on a problem.

    Attributes:
        question: The target, and what was minimised.
        ranking: The finalists by their median cost on fresh seeds, best first.
        eliminated: Methods that left the race, the best first.
        left_out: Methods that did not enter, with the reason, by name.
        seeds: Seeds of the race; each is paired over all methods.
        fresh: The fresh seeds.
        runs: Runs made.
        seconds: Time taken.
        cut: What the time budget cut, or "" if the race ended by itself. The result is then a
            function of the problem and the arguments alone.
    """

    question: Question
    ranking: tuple[Finalist, ...]
    eliminated: tuple[Eliminated, ...]
    left_out: Mapping[str, str]
    seeds: int
    fresh: tuple[int, ...]
    runs: int
    seconds: float
    cut: str = ""

    @property
    def goal(self) -> str:
        """The question, such as "total bytes, up and down, to gradient norm 0.01"."""
        return f"{self.question.cost.column.label} to {self.question.target.title}"

    @property
    def title(self) -> str:
        """The question and the number of fresh seeds."""
        return f"{self.goal}: median and its interval over {len(self.fresh)} fresh seeds"

    @property
    def first(self) -> Finalist:
        """The finalist with the least median cost."""
        return self.ranking[0]

    @property
    def tied(self) -> tuple[Finalist, ...]:
        """The finalists that the fresh seeds do not tell apart from the first, which is one."""
        return tuple(finalist for finalist in self.ranking if finalist.is_tied)

    @property
    def recommended(self) -> Finalist:
        """The first of the tied finalists that asks the least of the clients.

        A method without client states is preferred to one with them, and one that does not need
        all clients in every round to one that does. The median decides among equals. A method that
        does not reach the target in the median is recommended only if none does.
        """
        reaches = [f for f in self.tied if math.isfinite(f.judgement.median)] or self.tied
        return min(reaches, key=lambda finalist: len(finalist.entrant.notes))

    @property
    def method(self) -> AnyMethod:
        """The recommended method with its settings."""
        return self.recommended.method

    @property
    def reason(self) -> str:
        """Why the method is recommended, in sentences."""
        chosen, unit = self.recommended, self.question.cost.column.unit
        text = chosen.judgement.text(unit)
        parts = [f"{chosen.label} ({chosen.settings}), with {text}."]
        others = [finalist for finalist in self.tied if finalist is not chosen]
        if others:
            names = _join([finalist.label for finalist in others])
            parts.append(
                f"{names} {'is' if len(others) == 1 else 'are'} tied with it: "
                f"{len(self.fresh)} fresh seeds do not tell them apart."
            )
        if chosen is not self.first:
            is_lower = self.first.judgement.median < chosen.judgement.median
            parts.append(
                f"{self.first.label} has the {'lower' if is_lower else 'same'} median, but asks "
                f"more: {_join(self.first.entrant.notes)}."
            )
        parts += self._lead(chosen)
        parts.append(_describe_needs(chosen))
        stateless = [finalist for finalist in self.ranking if finalist.entrant.is_stateless]
        if stateless and not chosen.entrant.is_stateless:
            other = stateless[0]
            parts.append(f"Without client states: {other.label}, {other.judgement.text(unit)}.")
        return " ".join(parts)

    def _lead(self, chosen: Finalist) -> list[str]:
        """Compare with the best method that is not tied."""
        behind = [finalist for finalist in self.ranking if not finalist.is_tied]
        if not behind:
            return []
        other, mine = behind[0], chosen.judgement.median
        if not math.isfinite(other.judgement.median):
            return [f"{other.label}, the next, does not reach the target in the median."]
        times = other.judgement.median / mine if mine > 0 else math.inf
        digits = f"{times:.2g}" if times >= 1.05 else f"{times:.3f}"
        return [f"{other.label}, the next, needs {digits} times as much."]

    @property
    def effort(self) -> str:
        """How much was run, in a sentence."""
        count = len(self.ranking) + len(self.eliminated)
        text = f"{count} methods, {self.runs:,} runs, {format_duration(self.seconds)}."
        return f"{text} {self.cut}" if self.cut else text

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Arrange the ranking as headings and cells."""
        unit = self.question.cost.column.unit
        head = ["method", self.question.cost.column.label, "", "settings", "remarks"]
        rows = [
            [
                finalist.label,
                finalist.judgement.text(unit),
                "tied" if finalist.is_tied and len(self.tied) > 1 else "",
                finalist.settings,
                "; ".join(finalist.remarks),
            ]
            for finalist in self.ranking
        ]
        return head, rows

    def departures(self) -> list[str]:
        """Say who left the race and why, a line for each reason, with costs over the first's."""
        found: dict[str, list[str]] = defaultdict(list)
        for one in self.eliminated:
            times = f" ({one.times:.1f}x)" if math.isfinite(one.times) else ""
            found[one.reason].append(f"{one.entrant.label}{times}")
        return [
            f"{reason[0].upper()}{reason[1:]}: {', '.join(labels)}."
            for reason, labels in found.items()
        ]

    def __repr__(self) -> str:
        chosen = self.recommended
        cost = chosen.judgement.text(self.question.cost.column.unit)
        text = f"{chosen.label} ({chosen.settings}) for {self.goal}: {cost}"
        return f"Choice({text}; {len(self.ranking)} finalists; print it for the table)"

    def _repr_html_(self) -> str:
        head, rows = self.rows()
        notes = [*self.departures(), self.effort, f"Recommended: {self.reason}"]
        return html_table(self.title, head, rows, *notes)

    def __str__(self) -> str:
        from tabulate import tabulate

        lines = tabulate(self.rows()[1], tablefmt="plain", disable_numparse=True)
        return "\n".join(
            [self.title, lines, *self.departures(), self.effort, f"Recommended: {self.reason}"]
        )


def _describe_needs(finalist: Finalist) -> str:
    """Say what a method asks of its users."""
    entrant = finalist.entrant
    state = "no state" if entrant.is_stateless else "a state"
    needs = (
        f"The clients of {finalist.label} keep {state}, and the server needs only the mean of "
        "their replies"
    )
    tuned = "" if build.hyper_words(finalist.method) else ", with the defaults and without tuning"
    text = f"{needs}{tuned}."
    return f"{text} It assumes: {entrant.entry.assumes}." if entrant.entry.assumes else text


def _join(words: Sequence[str]) -> str:
    """Write words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
