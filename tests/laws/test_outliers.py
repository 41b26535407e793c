"""The comparison of replies: honest clients never meet it, and every field is guarded."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from rows import ROWS
from support import make_method, quadratic, softmax, uneven

import fedpage as fp
from fedpage.core.types import Call
from fedpage.engine.outliers import OutlierCheck
from fedpage.engine.simulate import Simulation
from fedpage.engine.transport import Chunk, RoundFailed

COMPARED = fp.Faults(huge=1e-300)
"""Faults that never happen, and for which replies are compared."""


def one_steep_client(factor: float) -> fp.Quadratic:
    """Make quadratics of which one has a so many times larger gradient everywhere."""
    problem = quadratic(noise=1.0)
    steepness = np.ones((problem.N, 1, 1))
    steepness[2] = factor
    return fp.Quadratic(problem.A * steepness, problem.b * steepness)


def label_shards() -> fp.LogisticRegression:
    data = fp.load("census", rows=200)
    return fp.LogisticRegression(data, fp.label_shards(data.y, 10, shards=1))


PROBLEMS = {
    "quadratic": lambda: quadratic(noise=1.0),
    "steep": lambda: one_steep_client(100.0),
    "shards": label_shards,
    "squares-by-size": lambda: uneven("squares", weights="size"),
    "softmax": lambda: softmax("softmax-nonconvex"),
}
_turns = itertools.cycle(itertools.product(PROBLEMS, (1, 2, 4)))
HONEST = [(name, *next(_turns)) for name in [*ROWS, *ROWS]]


@pytest.mark.parametrize(("name", "kind", "S"), HONEST)
def test_honest_clients_are_never_rejected(name, kind, S):
    problem = PROBLEMS[kind]()
    step = 0.1 / 100.0 if kind == "steep" else 0.1
    method = make_method(name, S, 4, step)
    if kind == "steep" and getattr(method, "eta_l", None) is not None:
        method = dataclasses.replace(method, eta_l=step / 4)
    options = fp.RunOptions(faults=COMPARED)
    assert not fp.simulate(problem, method, rounds=25, seed=1, options=options).events


@pytest.mark.parametrize("name", ["FedPAGE", "SCAFFOLD-I", "FedAvg", "EF21-PP-TopK"])
@pytest.mark.parametrize("S", [2, 4])
def test_honest_clients_at_the_optimum_are_not_rejected(name, S):
    """Replies become rounding errors there, whose ratios say nothing."""
    problem = quadratic()
    options = fp.RunOptions(faults=COMPARED, x0=problem.x_star)
    history = fp.simulate(
        problem, make_method(name, S, 4, 0.1, full=True), rounds=60, seed=1, options=options
    )
    assert not history.events


def test_a_run_that_diverges_is_not_blamed_on_its_clients():
    for S in (1, 2, 8):
        history = fp.simulate(
            quadratic(noise=1.0), fp.FedAvg(S=S, K=5, eta_l=3.0), rounds=400, seed=0,
            options=fp.RunOptions(faults=COMPARED),
        )  # fmt: skip
        if S == 1:  # one client alone may be wrong or the run may have diverged: the round fails
            assert history.stop_reason in (fp.StopReason.DIVERGED, fp.StopReason.ROUND_FAILED)
        else:
            assert history.diverged, history.stop_text


def attack(run: Simulation, client: int, field: str, value: float, since: int) -> None:
    """Let a client send a wrong value in one field of every reply."""
    request = run.transport.request

    def send(call, draws, attempt):
        for chunk in request(call, draws, attempt):
            at = np.flatnonzero(chunk.clients == client)
            if draws.round >= since and len(at) and field in chunk.replies._fields:
                part = getattr(chunk.replies, field).copy()
                part[at] = value
                chunk = chunk._replace(replies=chunk.replies._replace(**{field: part}))
            yield chunk

    run.transport.request = send


def fields_sent(problem, method) -> dict[int, set[str]]:
    """Return the fields that clients 1, 4 and 6 send in rounds 2..19, where norms are compared."""
    run = Simulation(problem, method, seed=4, options=fp.RunOptions(faults=COMPARED))
    sent: dict[int, set[str]] = {1: set(), 4: set(), 6: set()}
    for r in range(20):
        call = method.call(run.state, run.draws())
        fields = method.messages[type(call.message)]._fields if r >= 2 else ()
        for client in sent.keys() & {*call.clients.tolist()}:
            sent[client].update(fields)
        run.step()
    return sent


def is_compared(method, d: int) -> bool:
    return (getattr(method, "up", fp.codecs.IDENTITY).omega(d) or 0.0) < 1.0


ATTACKED = [name for name in ROWS if is_compared(make_method(name, 4, 3, 0.1), 4)]


@pytest.mark.parametrize("name", ATTACKED)
def test_a_wrong_field_is_found_and_its_client_named(name):
    """A client sends wrong numbers in one field from the third round on."""
    problem = quadratic(noise=1.0)
    method = make_method(name, 4, 3, 0.1)
    for client, fields in fields_sent(problem, method).items():
        for field in fields:
            found = 0
            run = Simulation(problem, method, seed=4, options=fp.RunOptions(faults=COMPARED))
            attack(run, client, field, 1e10 if field in ("f", "norm2", "rows") else 1e5, since=2)
            for _ in range(20):
                try:
                    events = run.step().events
                except RoundFailed as failed:
                    events = failed.events
                texts = [event.text for event in events if event.kind == "rejected"]
                start = f"reply of client {client}: outlier: {field} of norm "
                assert all(text.startswith(start) for text in texts)
                found += len(texts)
            assert found, (client, field)
            assert np.abs(run.x).max() < 100.0


def test_most_methods_are_compared():
    assert len(ATTACKED) > 0.8 * len(ROWS)
    assert {"FedPAGE", "SCAFFOLD-I", "SCAFFOLD-II", "FedAvg", "FedAvg+natural"} <= {*ATTACKED}


def test_huge_replies_of_a_simulation_are_found_for_any_chunks_and_after_a_resume(tmp_path):
    problem, method = uneven(), fp.SCAFFOLD(S=5, K=3)

    def run(rounds=30, out=None, **options):
        faults = fp.Faults(huge=0.2, dropout=0.1, late=0.1)
        settings = fp.RunOptions(faults=faults, **options)
        return fp.simulate(problem, method, rounds=rounds, seed=2, out=out, options=settings)

    whole = run()
    assert whole.last("rejected") > 10
    assert any("outlier" in event["text"] for event in whole.events)
    assert np.abs(whole.x).max() < 10.0
    assert whole.same(run(chunk=2, threads=2))
    run(rounds=14, out=tmp_path / "run")
    assert run(out=tmp_path / "run", resume=True).same(whole)
    unchecked = run(policy=fp.Policy(outlier_factor=0.0))
    assert unchecked.diverged


class Parts:
    """Replies of one field, as the check sees them."""

    def __init__(self, N, scale=1.0, up="none"):
        method = fp.FedAvg(S=1, up=up)
        codec = fp.codecs.message_codec.MessageCodec(method, 3, np.dtype(np.float64))
        self.check = OutlierCheck(codec, N, 1000.0, np.full(N, scale))
        self.message: Any
        self.reply: Any
        self.message, self.reply = next(iter(method.messages.items()))

    def rejects(self, norms, round=0, x=(0.0, 0.0, 0.0)):
        """Return the clients that are rejected if clients send vectors of these norms."""
        clients = np.array(sorted(norms))
        rows = np.zeros((len(clients), 3))
        rows[:, 1] = [norms[client] for client in clients]
        call = Call(clients, self.message(np.array(x)))
        chunk: Any = self.check.screen(Chunk(clients, clients, self.reply(rows)), call, round)
        assert sorted([*chunk.clients, *(r.client for r in chunk.rejected)]) == [*clients]
        return [rejection.client for rejection in chunk.rejected]


def test_the_median_decides_where_three_clients_are_known():
    assert Parts(8).rejects({0: 1.0, 1: 2.0, 2: 3e3}) == [2]
    assert Parts(8).rejects({0: 1.0, 1: 2.0, 2: 1e3}) == []
    assert Parts(2).rejects({0: 1.0, 1: 1e100}) == []
    assert Parts(2).rejects({0: 1.0, 1: 1e200}) == [1]  # its square overflows
    assert Parts(1).rejects({0: 1e308}) == [0]


def test_earlier_rounds_count_where_few_clients_are_called():
    parts = Parts(8)
    for client in range(3):
        assert parts.rejects({client: 1.0}, round=client) == []
    assert parts.rejects({3: 1e4}, round=3) == [3]
    assert parts.rejects({3: 1e4, 4: 1e5}, round=4) == [3, 4]
    again = Parts(8)
    again.check.restore(parts.check.snapshot())
    assert again.rejects({5: 1e4}, round=5) == [5]


def test_two_wrong_clients_of_three_called_ones_are_a_minority_of_those_known():
    parts = Parts(8)
    parts.rejects(dict.fromkeys(range(8), 1.0))
    assert parts.rejects({0: 1.0, 1: 1e6, 2: 1e6}, round=1) == [1, 2]


def test_replies_that_vanish_and_replies_that_grow_together_are_honest():
    parts = Parts(8)
    parts.rejects(dict.fromkeys(range(8), 1.0))
    assert parts.rejects(dict.fromkeys(range(8), 1e-09), round=1) == []
    assert parts.rejects({0: 1e-9, 1: 1e-9, 2: 1e-9, 3: 1.0}, round=2) == []
    parts = Parts(3)
    for round in range(20):
        assert parts.rejects(dict.fromkeys(range(3), 1e5**round), round) == []


def test_a_weight_and_a_long_message_give_leeway():
    assert Parts(8, scale=10.0).rejects({0: 1.0, 1: 1.0, 2: 9e3}) == []
    assert Parts(8, scale=0.1).rejects({0: 1.0, 1: 1.0, 2: 900.0}) == []
    assert Parts(8).rejects({0: 1.0, 1: 1.0, 2: 9e3}, x=(9e3, 0.0, 0.0)) == []
    assert Parts(8).rejects({0: 1.0, 1: 1.0, 2: 9e3}, x=(8e3, 0.0, 0.0)) == [2]


def test_norms_after_a_sparsifier_are_not_compared():
    assert Parts(8, up="randk:1").rejects({0: 1.0, 1: 2.0, 2: 1e6}) == []
    assert Parts(8, up="randk:1").rejects({0: 1.0, 1: 2.0, 2: 1e200}) == [2]
