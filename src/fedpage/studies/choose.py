"""Choose the method and the settings that reach a target at the least cost: `fedpage choose`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from fedpage.core.columns import Cost
from fedpage.core.target import TargetLike
from fedpage.core.types import AnyMethod, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.devices import Devices
from fedpage.studies.choice import Choice
from fedpage.studies.entrants import counts_bytes, list_entrants
from fedpage.studies.question import Question, Trials, check_link, parse_budget, resolve_target
from fedpage.studies.race import Notify, Race
from fedpage.studies.trials import TrialStore
from fedpage.theory.planner import TimeModel


def choose(
    problem: Problem,
    *,
    target: TargetLike,
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
    costs: TimeModel | None = None,
    devices: Devices | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Notify | None = None,
) -> Choice:
    """Find the method and the settings that reach a target at the least cost.

    Args:
        problem: The problem.
        target: What is to be reached and held, such as "accuracy:0.9", "gap:0.01", which is the
            loss above its minimum, or a number, which is a gradient norm.
        cost: What to save: a recorded cost such as "bytes", "rounds" or "clients", a sum such as
            "up+0.1*down", "seconds", which are estimated from `costs`, or "seconds_simulated" with
            `devices`.
        budget: The time that the race may take: "60s", "5m", "1h", or seconds.
        methods: Names of methods, or methods to start from; None: all that apply.
        stateless: Leave out methods whose clients keep a state.
        codecs: Search compression too; None: where bytes, bits or simulated seconds count.
        seeds: Seeds of the last round of the race; each is paired over all methods.
        fresh: Other seeds, on which the finalists are judged.
        record_every: Rounds between records, fewer where the best method needs few rounds. Costs
            are interpolated between records.
        rounds: The most rounds of a run.
        jobs: The most processes, for runs that are long enough for several; None uses joblib's
            current backend.
        costs: Latency, bandwidth and speed, for estimated seconds.
        devices: The clients' devices of every run, for simulated seconds and deadlines.
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
    price, link = Cost.parse(cost), costs or TimeModel()
    check_link(price, link, devices)
    goal = resolve_target(problem, target)
    with_codecs = counts_bytes(price) if codecs is None else codecs
    entrants, left_out = list_entrants(
        problem, methods=methods, stateless=stateless, codecs=with_codecs, devices=devices
    )
    question = Question(
        goal, price, record_every=record_every, rounds=rounds, link=link,
        devices=devices,
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
