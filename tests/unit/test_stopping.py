"""Stopping: targets and patience in the direction of any column, budgets, divergence."""

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support import quadratic, refusal

import fedpage as fp
from fedpage.core.function_digest import function_digest
from fedpage.core.types import StopReason
from fedpage.engine.stopping import Watch


def records(**columns):
    count = len(next(iter(columns.values())))
    given = {"loss": [1.0] * count, "grad_norm": [1.0] * count, "round": range(count)} | columns
    return [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]


def curve(values, every=10):
    return records(grad_norm=values, round=[every * number for number in range(len(values))])


def ends_at(stop, rows, **options):
    """Return the number of the record that ends the run, and the reason."""
    watch = Watch(1.0, "effective step 0.1", stop, **options)
    for number, row in enumerate(rows):
        verdict = watch.check(row)
        if verdict:
            return number, verdict.reason
    return None


# Targets


def test_a_target_counts_only_below_the_first_loss():
    rows = records(loss=[1.0, 1.5, 0.9], accuracy=[0.1, 0.9, 0.9])
    assert ends_at(fp.Stop("accuracy:0.8,hold=0"), rows) == (2, StopReason.TARGET)
    history = fp.History()
    for row in records(loss=[0.4, 20.0, 0.3], grad_norm=[0.5, 1e-9, 0.1]):
        history.append(row)
    assert history.cost_to("grad_norm:1e-3,hold=0", "round") == math.inf
    assert history.cost_to("grad_norm:0.2,hold=0", "round") == 2
    assert history.best("grad_norm") == 0.1


def test_directions_of_own_metrics():
    rows = records(mine=[1.0, 2.0, 3.0])
    stop = fp.Stop("mine:2.0,hold=0")
    assert ends_at(stop, rows, directions={"mine": True}) == (1, StopReason.TARGET)
    assert ends_at(stop, rows, directions={"mine": False}) == (0, StopReason.TARGET)
    assert "whether higher is better is not known" in refusal(ends_at, stop, rows)
    assert "did you mean 'mine'" in refusal(ends_at, fp.Stop("mines:2.0,hold=0"), rows)


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
    found = next(filter(None, map(watch.check, curve(late))))
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


# Patience, budgets, checkpoints


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


@pytest.mark.parametrize(
    ("stop", "rows", "at"),
    [
        (fp.Stop([0.01, 0.5]), curve([1.0] * 10 + [0.1] * 10), 15),
        (fp.Stop(patience=3, monitor="accuracy"), records(accuracy=[0.1, 0.3, 0.2, 0.2, 0.2]), 4),
    ],
)
def test_rules_survive_a_checkpoint(stop, rows, at):
    for cut in range(1, at):
        first, second = (Watch(loss, "step", stop) for loss in (1.0, math.nan))
        assert not any(first.check(row) for row in rows[:cut])
        second.restore(first.snapshot())
        found = [second.check(row) is not None for row in rows[cut : at + 1]]
        assert found == [False] * (at - cut) + [True]
    for damaged in ({}, {**first.snapshot(), "above": 3}, {**first.snapshot(), "best": "x"}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            second.restore(damaged)


def test_runs_end_by_any_recorded_column():
    data = fp.load("census", rows=300)
    problem = fp.LogisticRegression(data, 30, metrics=["accuracy"], held_out=data)

    def run(stop=None, record_every=1, **options):
        method, stop = fp.FedPAGE(S=5, K=5, eta_g=0.3), stop or fp.Stop(**options)
        given = {"rounds": 400, "seed": 0, "record_every": record_every}
        return fp.simulate(problem, method, stop=stop, **given)

    mine = run(lambda row: "enough" if row["round"] >= 30 else None, record_every=10)
    assert (mine.stop_reason, mine.stop_detail) == (StopReason.CALLBACK, "enough")
    assert mine.last("round") == 30
    last = run(target="10.0,hold=0", record_every=0)
    assert last.stop_detail == "reached grad_norm 10 at round 400"
    reached = run(target="held_out_accuracy:0.78,hold=0")
    assert reached.stop_reason is StopReason.TARGET
    assert reached.last("held_out_accuracy") >= 0.78 > reached["held_out_accuracy"][:-1].max()
    cost = reached.cost_to("held_out_accuracy:0.78,hold=0", "round")
    assert cost == reached.last("round")
    assert reached.best("held_out_accuracy") == reached["held_out_accuracy"].max()
    spent = run(budgets={"clients": 100})
    assert spent["clients"][-1] >= 100 > spent["clients"][-2]
    idle = run(patience=3, monitor="loss", min_delta=10.0)
    assert idle.last("round") == 3
    assert idle.meta["stop"] == {"patience": 3, "monitor": "loss", "min_delta": 10.0}


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
    assert refusal(fp.Stop, **options).startswith("stop: ")


@pytest.mark.parametrize(
    ("losses", "every", "last", "at"),
    [
        ([1.0, 101.0], 10, False, None), ([1.0, 101.5], 10, False, 10),
        ([1.0, math.nan], 10, False, 10), ([1.0] + [3.0] * 30, 10, False, 210),
        ([1.0] + [3.0] * 30, 100, False, 300), ([1.0, 3.0, 1.5] * 20, 10, False, None),
        ([1.0, 1.5, 3.0], 10, True, 20),
    ],
)  # fmt: skip
def test_divergence(losses, every, last, at):
    watch, found = Watch(losses[0], "effective step 0.1"), None
    for number, loss in enumerate(losses):
        row = {"round": number * every, "loss": loss, "grad_norm": 1.0}
        found = watch.check(row, last and number == len(losses) - 1)
        if found:
            assert (row["round"], found.reason) == (at, StopReason.DIVERGED)
            break
    assert (found is None) == (at is None)
    if at == 210:
        words = "loss 3 at round 210, 1 at the start; far above it since round 10"
        assert found.detail == f"{words}; effective step 0.1"


# A function as a rule

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
    for name, value in (("LIMIT", 0.4), ("below", below_other)):
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[__name__], name, value)
            assert function_digest(uses_global) != before


def digests():
    return " ".join(function_digest(rule) for rule in (below, uses_global, Below(0.5)))


def test_a_function_is_known_in_another_process():
    words = [sys.executable, "-c", "import test_stopping as t; print(t.digests())"]
    folder = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(Path(folder).parent)])}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == digests()


def test_a_run_does_not_resume_with_another_stop_function(tmp_path):
    def run(stop, resume=True):
        options = fp.RunOptions(resume=resume)
        given = {"rounds": 20, "seed": 0, "record_every": 5, "out": tmp_path, "options": options}
        return fp.simulate(quadratic(), fp.FedAvg(S=2), stop=stop, **given)

    whole = run(make_rule(-1e9), resume=False)
    assert whole.meta["stop"] == {"function": function_digest(make_rule(-1e9))}
    assert run(make_rule(-1e9)).same(whole)
    for stop in (make_rule(-1e8), below):
        assert "cannot resume: the code of the function `stop`" in refusal(run, stop)
    for stop in (None, fp.Stop("loss:-1e9,hold=0")):
        assert "cannot resume: stop." in refusal(run, stop)
