"""The result of a tuning: the ranking, the recommendation, and their texts and page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from fedpage.core.columns import describe_column
from fedpage.core.types import HyperParameter
from fedpage.methods.schedules import effective_step
from fedpage.report.diagrams import format_setting
from fedpage.report.summary import format_cost, format_duration
from fedpage.report.tables import Table
from fedpage.runs.history import History
from fedpage.studies.candidates import Candidate
from fedpage.studies.space import Tunable
from fedpage.studies.trials import HELD_OUT_SEED, Question, Trials

_RECORDS = 5
"""The least number of records until the target, for a cost between records to be reported."""


@dataclass(frozen=True)
class Tuning:
    """The result of `tune` or `choose`.

    Attributes:
        trials: The trials; they count the runs, and hold those of the evaluation.
        ranking: The methods by their median cost on the held-out seeds, the best first. `tune` has
            one.
        eliminated: The methods that were eliminated before, the best first.
        left_out: The methods that did not take part, with the reason, by name.
        seeds: The number of seeds of the search; each is paired over all candidates.
        held_out: The number of held-out seeds.
        codecs: Whether codecs were searched.
        seconds: The time taken.
        cut: A sentence about what the time budget cut, or "" if the search ended by itself. The
            result then depends on the arguments alone.
    """

    trials: Trials = field(compare=False, repr=False)
    ranking: tuple[Candidate, ...]
    eliminated: tuple[Candidate, ...]
    left_out: Mapping[str, str]
    seeds: int
    held_out: int
    codecs: bool
    seconds: float
    cut: str

    @property
    def question(self) -> Question:
        """The target, and the cost that was minimised."""
        return self.trials.question

    @property
    def held_out_seeds(self) -> tuple[int, ...]:
        """The held-out seeds."""
        return tuple(range(HELD_OUT_SEED, HELD_OUT_SEED + self.held_out))

    @property
    def runs(self) -> int:
        """The number of new runs."""
        return self.trials.done

    @property
    def reused(self) -> int:
        """The number of runs that were taken from the store."""
        return self.trials.reused

    @property
    def first(self) -> Candidate:
        """The method with the least median cost."""
        return self.ranking[0]

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The first, and the methods that the held-out seeds do not tell apart from it."""
        return tuple(each for each in self.ranking if each.is_tied)

    @property
    def recommended(self) -> Candidate:
        """The first of the tied methods that asks the least of the clients.

        A method without client states is preferred to one with them, and one that does not need
        all clients in every round to one that does. The median decides among equals. A method that
        does not reach the target in the median is recommended only if none does.
        """
        reaching = [each for each in self.tied if each.is_reached] or self.tied
        return min(reaching, key=lambda each: len(each.demands))

    @property
    def method(self) -> Tunable:
        """The recommended method with its settings."""
        return self.recommended.method

    @property
    def name(self) -> str:
        """The recommended method's name, as papers print it."""
        return self.recommended.label

    @property
    def goal(self) -> str:
        """The question, such as "rounds to gradient norm 0.01"."""
        cost = self.question.cost
        short = "rounds" if cost.name == "round" else cost.name
        return f"{short} to {self.question.target.title}"

    @property
    def title(self) -> str:
        """The question and the number of held-out seeds."""
        return f"{self.goal}: median and its interval over {self.held_out} held-out seeds"

    @property
    def points(self) -> list[tuple[dict[str, float | str], float]]:
        """The recommended method's tried values, and their cost over that of the best settings."""
        chosen = self.recommended
        return [
            ({name: coordinate(method, name) for name in chosen.searched}, score.ratio)
            for method, score in chosen.scores
        ]

    def histories(self) -> list[History]:
        """Return the runs of the evaluation, in the order methods x held-out seeds.

        If there was no evaluation, it is one run of each method on the first held-out seed.
        """
        return [
            self.trials.history(each.method, seed)
            for each in self.ranking
            for seed in self.held_out_seeds or (HELD_OUT_SEED,)
        ]

    # --- texts ------------------------------------------------------------------------------------

    def table(self) -> Table:
        """Return the ranking as a table."""
        cost, column = self.question.cost.column, self.question.target.column
        at_end = f"{describe_column(column).label} at the end"
        head = ("method", cost.label, "", "end at target", at_end, "settings", "remarks")
        rows = [
            (
                each.label,
                each.describe(cost.unit),
                "tied" if each.is_tied and len(self.tied) > 1 else "",
                f"{each.at_end}/{self.held_out}",
                f"{each.value:.3g}",
                each.settings,
                "; ".join(filter(None, (*each.demands, each.note))),
            )
            for each in self.ranking
        ]
        return replace(Table.of_texts(head, rows), caption=self.title, notes=tuple(self.notes))

    def candidates(self, most: int = 8) -> Table:
        """Return a table of the best settings that were tried for the recommended method."""
        chosen, unit = self.recommended, self.question.cost.column.unit
        shown = chosen.scores[:most]
        names = [
            name
            for name in (each.name for each in fields(chosen.method))
            if name in chosen.changes or len({str(getattr(m, name)) for m, _ in shown}) > 1
        ]
        label = describe_column(self.question.target.column).label
        head = (*names, self.goal.partition(" ")[0], f"best {label}", "over winner", "seeds")
        rows = []
        for method, score in shown:
            paid = format_cost(score.cost, unit) if math.isfinite(score.cost) else "not reached"
            ratio = f"{score.ratio:.2f}" if math.isfinite(score.ratio) else "-"
            values = (format_setting(name, getattr(method, name)) for name in names)
            rows.append((*values, paid, f"{score.best:.3g}", ratio, str(score.seeds)))
        caption = f"{self.goal}: medians over the seeds of the search"
        return replace(Table.of_texts(head, rows), caption=caption, align="r" * len(head))

    @property
    def notes(self) -> list[str]:
        """Lines on the settings or the eliminations, the search, the evaluation, and the advice."""
        if len(self.ranking) > 1:
            return [*self.eliminations(), self.effort, f"Recommended: {self.reason}"]
        chosen, lines = self.recommended, self.eliminations()
        defaults = {each.name: each.default for each in fields(chosen.method)}
        for title, is_given in (("Chosen", False), ("Given", True)):
            words = [
                f"{name} = {text} (default {format_setting(name, defaults[name])})"
                for name, text in chosen.changes.items()
                if (name in chosen.given) == is_given
            ]
            lines += [f"{title}: {', '.join(words)}"] if words else []
        lines.append(f"Searched: {', '.join(chosen.searched)}. {self.effort}")
        if chosen.sample is not None:
            seeds, level = chosen.sample.seeds, chosen.sample.level
            label = describe_column(self.question.target.column).label
            lines.append(
                f"On {seeds} held-out seeds: {chosen.describe(self.question.cost.column.unit)} "
                f"({level:.0%} interval of the median). {chosen.at_end} of {seeds} runs end at the "
                f"target, with {label} {chosen.value:.3g} in the median."
            )
        return [*lines, self.advice]

    def eliminations(self) -> list[str]:
        """Return a line for each reason of elimination, with costs over the first's."""
        found: dict[str, list[str]] = defaultdict(list)
        for one in self.eliminated:
            times = f" ({one.times:.1f}x)" if math.isfinite(one.times) else ""
            found[one.eliminated].append(f"{one.label}{times}")
        return [f"{why[0].upper()}{why[1:]}: {', '.join(names)}." for why, names in found.items()]

    @property
    def effort(self) -> str:
        """The number of runs, the time, the codecs and what was cut, in sentences."""
        every = [*self.ranking, *self.eliminated]
        methods = f"{len(every)} methods, " if len(every) > 1 else ""
        reused = f" and {self.reused:,} from the store" if self.reused else ""
        parts = [f"{methods}{self.runs:,} runs{reused}, {format_duration(self.seconds)}."]
        if self.codecs:
            parts.append("Codecs were searched too, because they change this cost.")
            without = [each.label for each in every if not each.has_codecs]
            if 0 < len(without) < len(every):
                verb = "has" if len(without) == 1 else "have"
                parts.append(f"{join(without)} {verb} no codec in at least one direction.")
        return " ".join(filter(None, (*parts, self.cut)))

    @property
    def reason(self) -> str:
        """The recommendation with its reasons, in sentences."""
        chosen, first, unit = self.recommended, self.first, self.question.cost.column.unit
        own = math.nan if chosen.sample is None else chosen.sample.median
        parts = [f"{chosen.label} ({chosen.settings}), with {chosen.describe(unit)}."]
        if chosen.sample is not None:
            parts.append(f"{chosen.at_end} of {self.held_out} runs end at the target.")
        others = [each.label for each in self.tied if each is not chosen]
        if others:
            parts.append(
                f"{join(others)} {'is' if len(others) == 1 else 'are'} tied with it: "
                f"{self.held_out} held-out seeds do not tell them apart."
            )
        if chosen is not first and first.sample is not None:
            median = "lower" if first.sample.median < own else "same"
            asks = join(first.demands)
            parts.append(f"{first.label} has the {median} median, but asks more: {asks}.")
        behind = next((each for each in self.ranking if not each.is_tied), None)
        if behind is not None and behind.sample is not None:
            times = behind.sample.median / own if own > 0 else math.inf
            needs = f"needs {times:{'.2g' if times >= 1.05 else '.3f'}} times as much"
            needs = needs if behind.is_reached else "does not reach the target in the median"
            parts.append(f"{behind.label}, the next, {needs}.")
        tuned = "" if chosen.changes else ", with the defaults and without tuning"
        parts.append(
            f"The clients of {chosen.label} keep {'no' if chosen.is_stateless else 'a'} state, "
            f"and the server needs only the mean of their replies{tuned}."
        )
        if chosen.entry.assumes:
            parts.append(f"It assumes: {chosen.entry.assumes}.")
        stateless = [each for each in self.ranking if each.is_stateless]
        if stateless and not chosen.is_stateless:
            parts.append(
                f"Without client states: {stateless[0].label}, {stateless[0].describe(unit)}."
            )
        return " ".join(parts)

    @property
    def advice(self) -> str:
        """Whether the cost of the recommended method can be reported, and what to do if not."""
        chosen, every = self.recommended, self.question.record_every
        easier = "raise the limit (more rounds), or choose an easier target."
        if chosen.edges:
            ends = ", ".join(f"{name} = {coordinate(chosen.method, name)}" for name in chosen.edges)
            return (
                f"The winner is at an end of the fixed grid ({ends}): a better value may be "
                "outside. Let the grid grow, or give more values."
            )
        if chosen.sample is None:
            return f"No candidate reached the target within the limit: {easier}"
        if not chosen.is_local_optimum:
            return (
                "The search ended before a local optimum, so better values may be next to the "
                "winner. Give it more time or more runs."
            )
        if not chosen.is_reached:
            return f"The winner does not reach the target reliably: {easier}"
        if every > 1 and chosen.rounds < _RECORDS * every:
            less = max(1, chosen.rounds // 10)
            return (
                f"The winner needs at most {chosen.rounds} rounds, and one in {every} was "
                "recorded, so its cost is a guess between records: search again with "
                f"--record-every {less} (record_every={less})."
            )
        return "The winner is a local optimum: no neighbour on any axis is better."

    def __repr__(self) -> str:
        chosen = self.recommended
        cost = chosen.describe(self.question.cost.column.unit)
        text = f"{chosen.label} ({chosen.settings}) for {self.goal}: {cost}"
        return f"Tuning({text}; {self.runs} runs; print it for the table)"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __str__(self) -> str:
        return self.table().to_text()


def join(words: Sequence[str]) -> str:
    """Write words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def coordinate(method: Tunable, name: str) -> float | str:
    """Return a method's value of a searched hyper-parameter.

    Args:
        method: The method.
        name: A field of the method, "step" or "rho".

    Returns:
        The value to four digits, inf for None, or the text of a value that is not a number.
    """
    value: HyperParameter
    if name == "step":
        value = effective_step(method)
    elif name == "rho":
        value = method.K * method.local_step / method.eta_g
    else:
        value = getattr(method, name)
    if value is None:
        return math.inf
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(f"{value:.4g}") if is_number else str(value)


def write_page(
    found: Tuning, path: Path, title: str, command: str = "", picture: Path | None = None
) -> Path:
    """Write a page with the ranking, the eliminated methods, and the runs of the evaluation.

    Args:
        found: The tuning.
        path: The HTML file.
        title: The page's title.
        command: The command that runs the recommended method.
        picture: A picture of the search to show before the curves.

    Returns:
        The path.
    """
    from fedpage.report.page import write_runs

    question, runs = found.question, found.histories()
    note = f"{found.title[0].upper()}{found.title[1:]}."
    if len(found.ranking) > 1:
        note += (
            " Methods that the seeds do not tell apart from the first are tied (rank-sum tests of "
            "all pairs, Holm's correction, 5 %)."
        )
    tables = [replace(found.table(), caption="", notes=(note,))]
    lines = [line.rstrip(".").partition(": ")[::2] for line in found.eliminations()]
    if lines:
        tables.append(Table.of_texts(["eliminated", "methods"], lines, found.effort))
    cost = question.cost
    return write_runs(
        runs,
        path,
        title=title,
        target=question.target,
        cost="bytes" if cost.counts("seconds") else cost,
        command=command,
        command_note="To run the recommended method:",
        note=found.notes[-1],
        picture=picture,
        tables=tables,
        settings={
            "target": str(question.target),
            "cost": cost.name,
            "seeds": list(range(found.seeds)),
            "held-out seeds": found.held_out_seeds,
            "costs on held-out seeds": {
                each.label: each.sample.costs for each in found.ranking if each.sample
            },
            "left out": found.left_out,
        },
    )
