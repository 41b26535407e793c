"""Stopping: targets and patience in the direction of any column, budgets, divergence."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support import quadratic

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.function_digest import function_digest
from fedpage.core.types import StopReason
from fedpage.engine.stopping import Watch


def records(**columns):
    count = len(next(iter(columns.values())))
    base = {"loss": [1.0] * count, "grad_norm": [1.0] * count, "round": range(count)}
    return [
        dict(zip({**base, **columns}, row, strict=True))
        for row in zip(*{**base, **columns}.values(), strict=True)
    ]


def ends_at(stop, rows, **options):
    """Return the number of the record that ends the run, and the reason."""
    watch = Watch(1.0, "effective step 0.1", stop, **options)
    for number, row in enumerate(rows):
        verdict = watch.check(row)
        if verdict:
            return number, verdict.reason
    return None


@pytest.mark.parametrize(
    ("stop", "at"),
    [
        (fp.Stop("0.5,hold=0"), 2),
        (fp.Stop("grad_norm:0.5,hold=0"), 2),
        (fp.Stop("held_out_accuracy:0.8,hold=0"), 3),
        (fp.Stop("held_out_accuracy:0.99,hold=0"), None),
        (fp.Stop(["held_out_accuracy:0.8,hold=0", "0.5,hold=0"]), 2),
    ],
)
def test_targets_respect_the_direction(stop, at):
    rows = records(
        grad_norm=[0.9, 0.6, 0.5, 0.4], held_out_accuracy=[0.1, 0.7, 0.75, 0.9], seconds=[0.0] * 4
    )
    assert ends_at(stop, rows) == (None if at is None else (at, StopReason.TARGET))


def test_a_target_counts_only_below_the_first_loss():
    rows = records(loss=[1.0, 1.5, 0.9], accuracy=[0.1, 0.9, 0.9])
    assert ends_at(fp.Stop("accuracy:0.8,hold=0"), rows) == (2, StopReason.TARGET)


def test_directions_of_own_metrics():
    rows = records(mine=[1.0, 2.0, 3.0])
    stop = fp.Stop("mine:2.0,hold=0")
    assert ends_at(stop, rows, directions={"mine": True}) == (1, StopReason.TARGET)
    assert ends_at(stop, rows, directions={"mine": False}) == (0, StopReason.TARGET)
    with pytest.raises(InputError, match="whether higher is better is not known"):
        ends_at(stop, rows)
    with pytest.raises(InputError, match="did you mean 'mine'"):
        ends_at(fp.Stop("mines:2.0,hold=0"), rows)


@pytest.mark.parametrize(
    ("stop", "at"),
    [
        (fp.Stop(patience=2, monitor="accuracy"), 4),
        (fp.Stop(patience=3, monitor="accuracy"), 5),
        (fp.Stop(patience=3, monitor="accuracy", min_delta=0.15), 5),
        (fp.Stop(patience=1, monitor="accuracy", min_delta=0.15), 1),
        (fp.Stop(patience=7, monitor="accuracy"), None),
        (fp.Stop(patience=2), 2),
    ],
)
def test_patience(stop, at):
    rows = records(accuracy=[0.1, 0.2, 0.3, 0.3, 0.2, 0.3, 0.3])
    assert ends_at(stop, rows) == (None if at is None else (at, StopReason.NO_PROGRESS))


def curve(values, every=10):
    return [
        {"round": every * number, "loss": 1.0, "grad_norm": value}
        for number, value in enumerate(values)
    ]


def test_a_target_must_hold_for_a_quarter_of_the_rounds_and_five_records():
    short = [1.0] * 10 + [0.1] * 2 + [1.0] * 3 + [0.1] * 20
    assert ends_at(fp.Stop(0.5), curve(short)) == (20, StopReason.TARGET)  # five more records
    late = [1.0] * 40 + [0.1] * 30
    assert ends_at(fp.Stop(0.5), curve(late)) == (50, StopReason.TARGET)  # a quarter of round 400
    assert ends_at(fp.Stop("0.5,hold=0.5"), curve(late)) == (60, StopReason.TARGET)
    assert ends_at(fp.Stop("0.5,hold=0"), curve(short)) == (10, StopReason.TARGET)
    assert ends_at(fp.Stop(0.5), curve(late[:50])) is None
    rises = [{**row, "loss": 2.0 if row["round"] == 450 else 1.0} for row in curve(late)]
    assert ends_at(fp.Stop(0.5), rises) == (58, StopReason.TARGET)  # f(x) > f(x0) at round 450
    watch = Watch(1.0, "effective step 0.1", fp.Stop(0.5))
    ends = [watch.check(row) for row in curve(late)]
    found = next(filter(None, ends))
    assert found.detail == "reached grad_norm 0.5 at round 400 and held it to round 500"


def test_stop_and_cost_to_share_one_definition():
    chance = np.random.default_rng(0)
    for hold in (0.0, 0.25, 1.0):
        for every in (1, 7):
            values = 0.5 + 0.1 * np.cumsum(chance.normal(size=80))
            history, target = fp.History(), fp.Target(value=max(0.3, values.min()), hold=hold)
            at = (ends_at(fp.Stop(target), curve(values, every)) or (None,))[0]
            for number, row in enumerate(curve(values, every)):
                history.append(row)
                assert history.reached(target) == (at is not None and number >= at)


def test_a_stretch_survives_a_checkpoint():
    rows = curve([1.0] * 10 + [0.1] * 10)
    for cut in range(1, 15):
        first, second = (Watch(1.0, "step", fp.Stop([0.01, 0.5])) for _ in range(2))
        assert not any(first.check(row) for row in rows[:cut])
        second.restore(first.snapshot())
        found = [second.check(row) for row in rows[cut:]]
        assert next(i for i, verdict in enumerate(found) if verdict) == 15 - cut


def test_a_budget_waits_while_a_target_holds():
    problem = quadratic()
    method = fp.PAGE(S=problem.N, eta_g=0.01)
    options = {"rounds": 400, "seed": 0, "record_every": 5}
    free = fp.simulate(problem, method, **options)
    target = float(free["grad_norm"][20])  # reached at round 100 by a smooth descent
    held = fp.simulate(problem, method, stop=fp.Stop(target, budgets={"round": 110}), **options)
    assert (held.stop_reason, held.last("round")) == (StopReason.TARGET, 125)
    assert held.cost_to(target, "round") == pytest.approx(100, abs=5)
    cut = fp.simulate(problem, method, stop=fp.Stop(target, budgets={"round": 90}), **options)
    assert (cut.stop_reason, cut.last("round")) == (StopReason.BUDGET, 90)


def test_patience_survives_a_checkpoint():
    rows = records(accuracy=[0.1, 0.3, 0.2, 0.2, 0.2])
    stop = fp.Stop(patience=3, monitor="accuracy")
    for cut in range(1, 5):
        first, second = (
            Watch(1.0, "effective step 0.1", stop),
            Watch(math.nan, "effective step 0.1", stop),
        )
        assert not any(first.check(row) for row in rows[:cut])
        second.restore(first.snapshot())
        found = [second.check(row) for row in rows[cut:]]
        assert [verdict is not None for verdict in found] == [False] * (len(found) - 1) + [True]
    for damaged in ({}, {**first.snapshot(), "above": 3}, {**first.snapshot(), "best": "x"}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            second.restore(damaged)


def test_budgets_of_any_cost():
    costs = {"round": 3, "clients": 30, "bytes_up": 100, "bytes_down": 200, "seconds": 1.5}
    for stop in (
        fp.Stop(budgets={"bytes": 300}),
        fp.Stop(budgets={"bytes": 300}),
        fp.Stop(budgets={"clients": 30}),
        fp.Stop(budgets={"seconds": 1.0}),
    ):
        assert stop.check_budgets(costs).reason is StopReason.BUDGET
    assert fp.Stop(budgets={"bytes": 301, "clients": 31}).check_budgets(costs) is None


def test_runs_end_by_any_recorded_column():
    data = fp.load("census", rows=300)
    problem = fp.LogisticRegression(data, 30, metrics=["accuracy"], held_out=data)
    method = fp.FedPAGE(S=5, K=5, eta_g=0.3)
    options = {"rounds": 400, "seed": 0, "record_every": 1}
    run = fp.simulate(problem, method, stop=fp.Stop("held_out_accuracy:0.78,hold=0"), **options)
    assert run.stop_reason is StopReason.TARGET
    assert run.last("held_out_accuracy") >= 0.78 > run["held_out_accuracy"][:-1].max()
    assert run.cost_to("held_out_accuracy:0.78,hold=0", "round") == run.last("round")
    assert run.best("held_out_accuracy") == run["held_out_accuracy"].max()
    spent = fp.simulate(problem, method, stop=fp.Stop(budgets={"clients": 100}), **options)
    assert spent.stop_reason is StopReason.BUDGET
    assert spent["clients"][-1] >= 100 > spent["clients"][-2]
    idle = fp.Stop(patience=3, monitor="loss", min_delta=10.0)
    assert fp.simulate(problem, method, stop=idle, **options).last("round") == 3
    assert fp.simulate(problem, method, stop=idle, **options).meta["stop"] == {
        "patience": 3, "monitor": "loss", "min_delta": 10.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"target": 0.0}, {"target": "loss:inf"}, {"target": "accuracy:nan"}, {"target": {1: 2.0}},
        {"target": "loss:1,hold=-1"}, {"budgets": 3}, {"budgets": {"byte": 3.0}},
        {"budgets": {"bytes": 0}}, {"patience": 0}, {"patience": 1.5}, {"patience": True},
        {"monitor": 3}, {"min_delta": -1.0},
    ],
)  # fmt: skip
def test_invalid_stopping_rules_are_refused(options):
    with pytest.raises(InputError, match=r"^stop: ") as error:
        fp.Stop(**options)
    assert "\n" not in str(error.value)


def verdicts(losses, every=10, last=False):
    watch = Watch(losses[0], "effective step 0.1")
    found = None
    for number, loss in enumerate(losses):
        row = {"round": number * every, "loss": loss, "grad_norm": 1.0}
        found = watch.check(row, last and number == len(losses) - 1)
        if found:
            return number * every, found
    return None, found


def test_divergence():
    assert verdicts([1.0, 101.0])[0] is None
    assert verdicts([1.0, 101.5])[0] == 10
    assert verdicts([1.0, math.nan])[1].reason is StopReason.DIVERGED
    assert verdicts([1.0] + [3.0] * 30)[0] == 210
    assert verdicts([1.0] + [3.0] * 30, every=100)[0] == 300
    assert verdicts([1.0, 3.0, 1.5] * 20)[0] is None
    assert verdicts([1.0, 1.5, 3.0], last=True)[0] == 20
    detail = verdicts([1.0] + [3.0] * 30)[1].detail
    assert (
        detail
        == "loss 3 at round 210, 1 at the start; far above it since round 10; effective step 0.1"
    )


# --- a function as a rule -------------------------------------------------------------------------

LIMIT = 0.5


def below(record, limit=0.5):
    return "below" if record["loss"] < limit else None


def below_other(record, limit=0.6):
    return "below" if record["loss"] < limit else None


def uses_global(record):
    return below(record, LIMIT)


class Below:
    """A rule with a setting."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, record):
        return below(record, self.limit)

    def check(self, record):
        return below(record, self.limit)


def make_rule(limit):
    return lambda record: "below" if record["loss"] < limit else None


def rules():
    """Return rules that all differ."""
    return [
        below, below_other, make_rule(0.5), make_rule(0.6), uses_global, Below(0.5), Below(0.6),
        Below(0.5).check, Below(0.6).check, partial(below, limit=0.7), partial(below, limit=0.8),
        lambda record: None, lambda record: "a", lambda record: "b",
    ]  # fmt: skip


def test_a_function_is_known_by_its_code_and_the_values_it_uses(monkeypatch):
    first, second = ([function_digest(rule) for rule in rules()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    moved = "\n\n\ndef below(record, limit=0.5):\n    # a comment\n" + (
        '    return "below" if record["loss"] < limit else None\n'
    )
    names: dict[str, object] = {"__name__": __name__}
    exec(moved, names)
    assert function_digest(names["below"]) == function_digest(below)
    before = function_digest(uses_global)
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 0.4)
    assert function_digest(uses_global) != before
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules[__name__], "below", below_other)
    assert function_digest(uses_global) != before


def test_a_function_is_known_in_another_process():
    words = [sys.executable, "-c", "import test_stopping as t; print(t.digests())"]
    folder = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(Path(folder).parent)])}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == digests()


def digests():
    return " ".join(function_digest(rule) for rule in (below, uses_global, Below(0.5)))


def test_a_run_does_not_resume_with_another_stop_function(tmp_path):
    arguments = {"rounds": 20, "seed": 0, "record_every": 5, "out": tmp_path}
    resume, problem = fp.RunOptions(resume=True), quadratic()
    whole = fp.simulate(problem, fp.FedAvg(S=2), stop=make_rule(-1e9), **arguments)
    assert whole.meta["stop"] == {"function": function_digest(make_rule(-1e9))}
    again = fp.simulate(problem, fp.FedAvg(S=2), stop=make_rule(-1e9), options=resume, **arguments)
    assert again.same(whole)
    for stop in (make_rule(-1e8), below):
        with pytest.raises(fp.InputError, match="cannot resume: the code of the function `stop`"):
            fp.simulate(problem, fp.FedAvg(S=2), stop=stop, options=resume, **arguments)
    for stop in (None, fp.Stop("loss:-1e9,hold=0")):
        with pytest.raises(fp.InputError, match=r"cannot resume: stop\.\w+ was"):
            fp.simulate(problem, fp.FedAvg(S=2), stop=stop, options=resume, **arguments)
