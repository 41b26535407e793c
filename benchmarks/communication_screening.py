"""The screening of communication.py: which methods are worth a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from communication_cases import Case, Entrant, Terms, bases, codec_choices, entrants
from communication_runs import Ladder, Rung, Runs

from fedpage.core.capabilities import measures_step
from fedpage.report.methods import codecs_of


@dataclass(frozen=True)
class Screened:
    """An entrant in the screening.

    Attributes:
        entrant: The entrant.
        contacts: The fewest contacts to each target; inf where it was not reached.
        methods: The method with the settings that needed them, or that came closest.
        best: The best value of the target's column.
    """

    entrant: Entrant
    contacts: tuple[float, ...]
    methods: tuple[Any, ...]
    best: float


def screen(case: Case, runs: Runs, entrant: Entrant, terms: Terms) -> Screened:
    """Try an entrant at few steps on one seed."""
    rungs = [Rung(*pair) for pair in zip(case.targets, terms.screening, strict=True)]
    between = terms.screening_between
    tried = [
        (method, runs.measure(method, 0, Ladder(case.column, rungs, "clients"), between))
        for base in bases(entrant, case)
        for unit in [base.effective_step if measures_step(base) else runs.unit]
        for method in (base.with_step(float(f"{step * unit:.3g}")) for step in terms.steps)
    ]
    contacts, methods = [], []
    for target in case.targets:
        costs = [run["costs"][f"{target:g}"]["clients"] for _, run in tried]
        ranks = [(cost, run["best"]) for cost, (_, run) in zip(costs, tried, strict=True)]
        place = ranks.index(min(ranks))
        contacts.append(costs[place])
        methods.append(tried[place][0])
    best = min(run["best"] for _, run in tried)
    return Screened(entrant, tuple(contacts), tuple(methods), best)


def is_screened(entrant: Entrant) -> bool:
    """Say whether an entrant is screened: with codecs, only where these change how it converges.

    The cost of other entrants with codecs is estimated from their contacts without.
    """
    return not entrant.codecs or codecs_of(entrant.entry) in ("contractive", "any")


def selected(
    case: Case, runs: Runs, screened: Sequence[Screened], place: int
) -> list[tuple[Entrant, Any]]:
    """Return the entrants to tune for a target, with the methods from which searches start.

    Args:
        case: The case.
        runs: Runs on the problem.
        screened: All that were screened.
        place: The number of the target.
    """
    terms = case.terms
    plain = [found for found in screened if not found.entrant.codecs]
    ranked = [((each.contacts[place], each.best), each) for each in _without_twins(plain, place)]
    near = _near([rank for rank, _ in ranked], terms.most[place], terms)
    chosen = [
        (each.entrant, each.methods[place])
        for rank, each in sorted(ranked, key=lambda pair: pair[0])
        if rank in near or _is_always(case, each.entrant.name, rank[0], place)
    ]
    if not case.has_codecs:
        return chosen
    with_codecs = [
        ((_bytes(runs, each.contacts[place], entrant, method), each.best), entrant, method)
        for each, entrant, method in _with_codecs(screened, place)
    ]
    near = _near({rank for rank, _, _ in with_codecs}, terms.most_with_codecs[place], terms)
    coded: dict[tuple[float, float], tuple[Entrant, Any]] = {}
    for rank, entrant, method in sorted(with_codecs, key=lambda triple: triple[0]):
        if rank in near:
            coded.setdefault(rank, (entrant, method))  # without twins, such as FedPAGE and PAGE
    return chosen + list(coded.values())


def _is_always(case: Case, name: str, contacts: float, place: int) -> bool:
    is_first = name == case.always[0] and place == 0
    return name in case.always and (math.isfinite(contacts) or is_first)


def _without_twins(screened: Sequence[Screened], place: int) -> list[Screened]:
    """Leave out methods that are another one without their codec, such as PP-MARINA: PAGE.

    They need the same contacts to the last digit.
    """
    found: dict[object, Screened] = {}
    for each in screened:
        cost = each.contacts[place]
        found.setdefault(cost if math.isfinite(cost) else each.entrant, each)
    return list(found.values())


def _with_codecs(screened: Sequence[Screened], place: int) -> list[tuple[Screened, Entrant, Any]]:
    """Return entrants with codecs, from what was screened with or without."""
    own = {found.entrant.name for found in screened if found.entrant.codecs}
    found = []
    for each in screened:
        entrant, method = Entrant(each.entrant.name, True), each.methods[place]
        if each.entrant.codecs:
            found.append((each, entrant, method))
        elif entrant.name not in own:
            first = {key: values[0] for key, values in codec_choices(entrant).items()}
            if "up" in first:
                found.append((each, entrant, replace(method, **first)))
    return found


def _near(
    ranks: Iterable[tuple[float, float]], most: int, terms: Terms
) -> set[tuple[float, float]]:
    """Return the ranks within a factor of the best, or the first three if few reached."""
    ranks = sorted(ranks)
    reached = [rank for rank in ranks if math.isfinite(rank[0])]
    if len(reached) < 3:
        return set(ranks[:3])
    near = [rank for rank in reached if rank[0] <= terms.factor * reached[0][0]]
    return set(near[:most])


def _bytes(runs: Runs, contacts: float, entrant: Entrant, method: Any) -> float:
    """Estimate the bytes of a number of contacts."""
    reached = math.isfinite(contacts)
    return contacts * bytes_per_contact(runs, entrant, method) if reached else math.inf


def bytes_per_contact(runs: Runs, entrant: Entrant, method: Any) -> float:
    """Return the fewest bytes of a called client, up and down, over the codecs of its replies.

    They are measured in the first rounds, with a step that changes nothing.
    """
    rungs = [Rung(-math.inf, 30 * (getattr(method, "S", None) or runs.problem.N))]
    costs = []
    for up in codec_choices(entrant)["up"]:
        small = replace(method, up=up).with_step(1e-6)
        found = runs.measure(small, 0, Ladder("loss", rungs, "clients"), 100)
        costs.append(float(found["bytes"] / found["clients"]))
    return min(costs)


def screen_all(case: Case, runs: Runs, names: Sequence[str] | None, terms: Terms) -> list[Screened]:
    """Screen all methods of a case."""
    return [
        screen(case, runs, entrant, terms)
        for entrant in entrants(case, names)
        if is_screened(entrant)
    ]
