"""Choose the method and the settings that reach a target at the least cost: `fedpage choose`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

from fedpage.core.columns import Cost, describe_column
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import METRICS
from fedpage.core.types import AnyMethod, HasConvexity, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.simulation import start_of
from fedpage.runs.history import History
from fedpage.runs.store import parse_interval
from fedpage.studies.choice import Choice
from fedpage.studies.entrants import counts_bytes, list_entrants
from fedpage.studies.question import Question, Trials
from fedpage.studies.race import Notify, Race
from fedpage.studies.trials import TrialStore
from fedpage.theory.constants import reference
from fedpage.theory.planner import Costs


def choose(
    problem: Problem,
    *,
    target: float,
    column: str = "grad_norm",
    cost: str | Cost = "bytes",
    budget: str | float = "5m",
    methods: Sequence[str | AnyMethod] | None = None,
    stateless: bool = False,
    codecs: bool | None = None,
    seeds: int = 6,
    fresh: int = 10,
    record_every: int = 10,
    rounds: int = 20_000,
    jobs: int | None = 1,
    costs: Costs | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Notify | None = None,
) -> Choice:
    """Find the method and the settings that reach a target at the least cost.

    Args:
        problem: The problem.
        target: The value of the column to reach.
        column: Any recorded column; its direction decides what reaching means. "gap" is the loss
            above its minimum, for convex problems.
        cost: What to save: a recorded cost such as "bytes", "rounds" or "clients", a sum such as
            "up+0.1*down", or "seconds", which are estimated from `costs`.
        budget: The time that the race may take: "60s", "5m", "1h", or seconds.
        methods: Names of methods, or methods to start from; None: all that apply.
        stateless: Leave out methods whose clients keep a state.
        codecs: Search compression too; None: where the cost counts bytes or bits.
        seeds: Seeds of the last round of the race; each is paired over all methods.
        fresh: Other seeds, on which the finalists are judged.
        record_every: Rounds between records, fewer where the best method needs few rounds. Costs
            are interpolated between records.
        rounds: The most rounds of a run.
        jobs: The most processes, for runs that are long enough for several; None uses joblib's
            current backend.
        costs: Latency, bandwidth and speed, for estimated seconds.
        store: A file of finished runs, from which a race continues.
        progress: Called with the seconds that have passed, those of the budget, and a note.

    Returns:
        The ranking with intervals, the recommendation, and who left the race and why. It depends on
        the arguments alone unless `Choice.cut` says that the time budget cut the race.

    Raises:
        InputError: The question cannot be asked, or no method reached the target.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2")
    >>> found = fp.choose(problem, target=0.05, methods=["page", "saga"], seeds=1, fresh=5)
    >>> found.recommended.label, len(found.ranking)
    ('SAGA', 2)
    """
    began = time.monotonic()
    seconds = parse_budget(budget)
    for name, value in {
        "seeds": seeds, "fresh": fresh, "record_every": record_every, "rounds": rounds,
    }.items():  # fmt: skip
        check_whole(name, value, 1)
    price, link = Cost.parse(cost), costs or Costs()
    if "seconds" in (name for name, _ in price.terms) and not link.given:
        raise InputError(
            "cost 'seconds' needs at least one of latency, uplink, downlink or seconds per gradient"
        )
    target, column = resolve_target(problem, target, column)
    with_codecs = counts_bytes(price) if codecs is None else codecs
    entrants, left_out = list_entrants(
        problem, methods=methods, stateless=stateless, codecs=with_codecs
    )
    question = Question(
        target, column, price, record_every=record_every, rounds=rounds, link=link
    )  # fmt: skip
    trials = Trials(
        problem, question, jobs=jobs, store=TrialStore(store, question.describe(problem))
    )
    race = Race(trials, entrants, seeds, with_codecs, began + seconds, progress)
    race.run()
    judged = race.judge(fresh)
    return Choice(
        question=race.question,
        ranking=tuple(judged),
        eliminated=tuple(race.eliminated),
        left_out=left_out,
        seeds=seeds,
        fresh=tuple(race.fresh),
        runs=trials.done,
        seconds=time.monotonic() - began,
        cut=race.cut,
    )


def parse_budget(budget: str | float) -> float:
    """Return the seconds of a time such as "60s", "5m" or "1h", or of a number of seconds.

    Raises:
        InputError: It is not a time above 0.

    >>> parse_budget("5m"), parse_budget(20)
    (300.0, 20.0)
    """
    try:
        seconds = parse_interval(budget if isinstance(budget, str) else f"{budget:.0f}s")[1]
    except (InputError, TypeError, ValueError):
        seconds = None
    if seconds is None:
        raise InputError(
            f"the budget must be a time such as 60s, 5m or 1h, not {short_repr(budget)}"
        )
    return seconds


def resolve_target(problem: Problem, target: float, column: str) -> tuple[float, str]:
    """Check a target, and turn a gap into a loss.

    Args:
        problem: The problem.
        target: The value to reach.
        column: A recorded column, or "gap": the loss above its minimum.

    Returns:
        The value and the recorded column.

    Raises:
        InputError: The column is not recorded, its direction is not known, the value cannot be
            reached, or the minimum of the loss is not known.
    """
    is_number = isinstance(target, (int, float)) and not isinstance(target, bool)
    if not is_number or not math.isfinite(target) or (column == "grad_norm" and target <= 0):
        raise InputError(f"target must be a finite number above 0, not {short_repr(target)}")
    if column == "gap":
        if target <= 0:
            raise InputError(f"a gap must be above 0, not {target:g}")
        if not (isinstance(problem, HasConvexity) and problem.convex):
            raise InputError(
                "a gap needs the minimum of the loss, which is known for convex objectives only; "
                "choose a gradient norm, or loss:VALUE"
            )
        target, column = float(f"{reference(problem).loss + target:.12g}"), "loss"
    recorded = problem.evaluate(start_of(problem))
    if column not in recorded:
        raise InputError(
            f"column {column!r} is not recorded;{did_you_mean(column, [*recorded, *METRICS])} "
            f"the problem records {', '.join(recorded)}"
        )
    higher, first = (
        History({"problem": problem.describe()}).higher_is_better(column),
        recorded[column],
    )
    if first >= target if higher else first <= target:
        raise InputError(
            f"{describe_column(column).label} {target:g} is reached before the first round, where "
            f"it is {first:.4g}; choose a harder target"
        )
    return float(target), column
