"""Laws of rounds in which clients fail: accepted replies, retries, fallbacks, for any method."""

import dataclasses

import numpy as np
import pytest
from rows import KINDS
from support import after, make_method, quadratic, refusal, uneven

import fedpage as fp
from fedpage.callbacks.base import Event
from fedpage.codecs.message_codec import MessageCodec
from fedpage.core.types import StopReason
from fedpage.engine.faults import FaultSampler
from fedpage.engine.round import Engine
from fedpage.engine.simulate import Simulation
from fedpage.engine.transport import Chunk, Rejection, RoundFailed

ALL = {name: make_method(name, 4, 3, 0.1) for name in (*KINDS, "SCAFFOLD-II")}
EVERY_FAULT = fp.Faults(
    dropout=0.3, lost=0.1, nan=0.1, infinite=0.1, shape=0.1, late=0.1, noise=0.5, deadline=2.0
)


def simulate(problem, method, rounds=20, seed=0, every=1, **options):
    """Simulate with options of a run."""
    return fp.simulate(
        problem,
        method,
        rounds=rounds,
        seed=seed,
        record_every=every,
        options=fp.RunOptions(**options),
    )


def costs(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]


@pytest.mark.parametrize("name", KINDS)
def test_enough_retries_give_the_bits_of_a_run_without_faults(name):
    problem, method = uneven(), ALL[name]
    plain = simulate(problem, method)
    assert simulate(problem, method, faults=fp.Faults()).same(plain)
    policy = fp.Policy(retries=200, full_retries=200, patience=200)
    patient = simulate(problem, method, faults=EVERY_FAULT, policy=policy)
    assert patient.x.tobytes() == plain.x.tobytes()
    assert patient.last("missing") > 0
    assert patient.last("rejected") > 0
    assert patient.last("fallbacks") == 0
    assert patient.last("bytes_down") > plain.last("bytes_down")


@pytest.mark.parametrize("name", KINDS)
def test_faults_depend_on_the_seed_and_not_on_chunks_or_threads(name):
    gone = () if ALL[name].name == "VRL-SGD" else (5,)
    faults = dataclasses.replace(EVERY_FAULT, dropout=0.1, gone=gone, gone_from=9)
    policy = fp.Policy(retries=3, patience=60)

    def run(faults=faults, **options):
        return simulate(uneven(), ALL[name], 25, 3, faults=faults, policy=policy, **options)

    one = run()
    for threads, chunk in ((1, 1), (1, 2), (3, 5)):
        other = run(threads=threads, chunk=chunk)
        assert other.same(one)
        assert other.events == one.events
    assert costs(run(dataclasses.replace(faults, seed=8))) != costs(one)


@pytest.mark.parametrize("tied", ["", "labels", "size"])
def test_the_mean_is_over_the_accepted_replies(tied):
    """Compare FedAvg with a loop over the clients that do not fail."""
    problem, method = uneven(), ALL["FedAvg"]
    faults = fp.Faults(dropout=0.4, tied=tied)
    options = fp.RunOptions(faults=faults, policy=fp.Policy(retries=1))
    run = Simulation(problem, method, seed=1, options=options)
    sampler, x, missing = FaultSampler(faults, problem, 1), np.zeros(problem.d), 0
    for r in range(15):
        draws = run.draws()
        clients, message, *_ = method.call(run.state, draws)
        everyone = np.ones(len(clients), dtype=bool)
        first, second = (
            everyone if mask is None else mask
            for mask in (sampler.sample_working(clients, r, attempt) for attempt in (0, 1))
        )
        there = clients[first | second]
        missing += int((~first).sum() + (~first & ~second).sum())
        total = np.zeros(problem.d)
        for client in there:
            reply, _ = method.client(message, problem.oracle(np.array([client]), draws), None)
            total += reply.dy[0]
        if len(there):
            x = x + method.eta_g * (total / len(there))
            run.step()
            np.testing.assert_array_equal(run.x, x)
            assert run.costs.missing == missing
        else:
            pytest.fail("choose another seed: with this one no client replies")


def test_a_full_round_without_all_clients_falls_back_to_a_sampled_round():
    """After a client leaves, every full round of FedPAGE becomes the sampled round of its draws."""
    problem = quadratic(noise=1.0)
    method = fp.FedPAGE(S=3, K=2, eta_g=0.05, p=0.5)
    faults = fp.Faults(gone=(6,), gone_from=1)
    options = fp.RunOptions(faults=faults, policy=fp.Policy(lost_after=2))
    run = Simulation(problem, method, seed=4, options=options)
    seen = 0
    for r in range(20):
        draws, state = run.draws(), run.state
        full = draws.coin(1.0 if r == 0 else 0.5)
        before = dataclasses.replace(run.costs)
        run.step()
        if r == 0 or not full:
            assert run.costs.fallbacks == before.fallbacks
            continue
        seen += 1
        clients, message, *_ = method.call_sampled(state, draws)
        there = np.array([client for client in clients if client != 6])
        reply, _ = method.client(message, problem.oracle(there, draws), None)
        np.testing.assert_array_equal(run.state.g, np.add.reduce(reply.g) / len(there))
        assert run.costs.fallbacks == before.fallbacks + 1
        assert run.costs.full_rounds == 1
    assert seen > 4


def test_the_first_round_needs_all_clients_and_names_the_missing():
    problem = quadratic()
    late = simulate(problem, fp.FedPAGE(S=2), 3, faults=fp.Faults(gone=(2, 5)))
    assert late.stop_reason is StopReason.ROUND_FAILED
    assert late.stop_detail == "round 0 failed: no valid reply from clients 2, 5"
    assert not late.ended
    assert late.x.tolist() == [0.0] * problem.d
    asked = simulate(problem, fp.FedPAGE(S=2), 3, faults=fp.Faults(dropout=0.5))
    assert asked.stop_reason is StopReason.FINISHED


def test_a_lost_client_is_reported_once_and_training_continues():
    method = fp.FedPAGE(S=4, K=2, eta_g=0.05, p=0.5)
    faults = fp.Faults(gone=(1,), gone_from=10)
    history = simulate(quadratic(noise=1.0), method, 60, faults=faults)
    (lost,) = (e for e in history.events if e["event"] == "lost")
    assert lost["text"] == "client 1 missing 3 times in a row"
    fallbacks = [e for e in history.events if e["event"] == "fallback"]
    after = [e["round"] for e in fallbacks if "lost: client 1" in e["text"]]
    assert min(after) > lost["round"]
    # at most S clients and two retries of one client, never all N
    assert np.diff(history["clients"])[lost["round"] + 1 :].max() <= 4 + 2
    assert history.last("loss") < history["loss"][0]
    full = {0} | {r for r in range(10) if fp.core.random.RoundDraws(0, r).coin(0.5)}
    assert history.last("full_rounds") == len(full)


def test_a_client_that_comes_back_counts_again():
    options = fp.RunOptions(faults=fp.Faults(), policy=fp.Policy(lost_after=1))
    run = Simulation(quadratic(), fp.FedAvg(S=8, K=1), seed=0, options=options)
    run.health.update(present=[], absent=[3])
    assert run.health.lost == [3]
    info = run.step()
    assert run.health.lost == []
    assert info.events == (Event("back", 0, "client 3 answered again"),)


@pytest.mark.parametrize("fault", ["lost", "late", "nan"])
def test_scaffolds_c_stays_the_mean_of_the_client_states(fault):
    """Check that client states of rejected replies are dropped, which c = mean c_i needs."""
    problem, method = uneven(), ALL["SCAFFOLD-II"]
    for policy, holds in ((fp.Policy(retries=0), True), (fp.Policy.naive(), False)):
        with np.errstate(all="ignore"):
            run = after(problem, method, 40, 2, faults=fp.Faults(**{fault: 0.3}), policy=policy)
        gap = np.abs(run.state.c - run.client_states.get_all().c.mean(axis=0)).max()
        assert (gap < 1e-12) == holds


@pytest.mark.parametrize(
    ("fault", "words"),
    [("nan", "not finite"), ("infinite", "not finite"), ("shape", "shape (1,) instead of (123,)")],
)
def test_invalid_replies_are_rejected_and_without_the_policy_are_added(fault, words):
    problem, method = uneven(), fp.FedAvg(S=12, K=2)
    faults = fp.Faults(**{fault: 0.2})
    sound = simulate(problem, method, faults=faults, policy=fp.Policy(retries=0))
    assert sound.stop_reason is StopReason.FINISHED
    assert words in sound.events[0]["text"]
    assert sound.events[0]["text"].startswith(("reply of client ", "replies of clients "))
    naive = simulate(problem, method, faults=faults, policy=fp.Policy.naive())
    if fault == "shape":  # one number instead of d numbers
        assert naive.x.tobytes() != sound.x.tobytes()
    else:
        assert naive.diverged


def test_late_replies_are_rejected_and_without_the_policy_are_added():
    problem, method = uneven(), fp.FedAvg(S=6, K=2)
    faults, strict = fp.Faults(late=0.3), fp.Policy(retries=0)
    late = simulate(problem, method, 12, faults=faults, policy=strict)
    trusting = dataclasses.replace(strict, validate=False)
    counted = simulate(problem, method, 12, faults=faults, policy=trusting)
    assert any("late: it belongs to round" in e["text"] for e in late.events)
    assert late.x.tobytes() != counted.x.tobytes()
    slow = fp.Faults(spread=1.0, deadline=1.5)
    assert simulate(problem, method, 12, faults=slow, policy=strict).last("rejected") > 0
    sampler, everyone = FaultSampler(slow, problem, 0), np.arange(problem.N)
    first, later = sampler.sample_outcomes(everyone, 3, 0), sampler.sample_outcomes(everyone, 7, 2)
    np.testing.assert_array_equal(first, later)  # the same clients are always slow


def test_divergence_is_not_reported_as_failing_clients():
    method = fp.FedAvg(S=8, K=5, eta_l=1e200, b=None)
    history = simulate(quadratic(), method, 10, every=0, faults=fp.Faults(nan=0.0))
    assert history.diverged
    assert "after round 1, with effective step 5e+200" in history.stop_detail


def test_tied_dropout_follows_the_data():
    problem = uneven()
    rates = FaultSampler(fp.Faults(dropout=0.2, tied="size"), problem, 0)._rates
    assert rates.mean() == pytest.approx(0.2)
    assert rates[np.argmin(problem.sizes)] > rates[np.argmax(problem.sizes)]
    rates = FaultSampler(fp.Faults(dropout=0.2, tied="labels"), problem, 0)._rates
    means = [problem.data.y[problem.partition.rows(i)].mean() for i in range(problem.N)]
    np.testing.assert_allclose(problem.mean_labels(), means)
    assert rates[int(np.argmax(means))] > rates[int(np.argmin(means))]
    assert sorted(rates)[0] == 0.0
    with pytest.raises(fp.InputError, match="has none; tie them to 'size'"):
        FaultSampler(fp.Faults(dropout=0.2, tied="labels"), quadratic(), 0)


class ScriptedTransport:
    """A transport whose chunks are given for each attempt."""

    is_reliable = False

    def __init__(self, method, attempts):
        self.codec = MessageCodec(method, 4, np.dtype(np.float64))
        self.attempts, self.requested, self.committed = list(attempts), [], []

    def request(self, call, draws, attempt):
        self.requested.append((call.clients.tolist(), attempt))
        return self.attempts.pop(0)(call)

    def commit(self, clients, client_states):
        self.committed.append(clients.tolist())


def replies(values, d=4):
    from fedpage.methods.messages import Move

    return Move(np.repeat(np.array(values, dtype=np.float64)[:, None], d, axis=1))


class ScriptedEngine(Engine):
    def __init__(self, transport, method, **policy):
        super().__init__(method, 8, np.zeros(4), transport, seed=0, policy=fp.Policy(**policy))

    def evaluate(self):
        return {}


def test_replies_of_several_attempts_are_added_in_client_order():
    method = fp.FedAvg(S=3, K=1)
    draws = fp.core.random.RoundDraws(0, 0)
    a, b, c = draws.clients(8, 3).tolist()
    transport = ScriptedTransport(method, [
        lambda call: [
            Chunk(call.clients, np.array([a, c]), replies([1, 1e16]), received=3,
                  rejected=[Rejection(b, "late: it belongs to round 7")]),
        ],
        lambda call: [Chunk(call.clients, call.clients[:0], None, received=1,
                            rejected=[Rejection(b, "it raised ValueError")])],
        lambda call: [Chunk(call.clients, call.clients, replies([-1e16]), received=1)],
    ])  # fmt: skip
    engine = ScriptedEngine(transport, method)
    info = engine.step()
    assert transport.requested == [([a, b, c], 0), ([b], 1), ([b], 2)]
    assert transport.committed == [[a, b, c]]
    assert engine.x.tolist() == [((1.0 - 1e16) + 1e16) / 3] * 4  # added in client order
    assert info.count == 3
    assert engine.costs.missing == 2
    assert engine.costs.rejected == 2
    assert engine.costs.clients == 5
    assert engine.costs.floats_up == 5 * 4
    assert [event.text for event in info.events] == [
        f"reply of client {b}: it raised ValueError",
        f"reply of client {b}: late: it belongs to round 7",
    ]


def test_a_round_without_replies_is_retried_and_then_fails():
    method = fp.FedAvg(S=2, K=1)
    transport = ScriptedTransport(
        method, [lambda call: [Chunk(call.clients, call.clients[:0], None)]] * 50
    )
    engine = ScriptedEngine(transport, method, retries=1, patience=5)
    with pytest.raises(RoundFailed, match="round 0 failed: no valid reply from clients"):
        engine.step()
    assert len(transport.requested) == 6
    assert engine.costs.round == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dropout": 1.5}, "dropout must be a number from 0 to 1"),
        ({"dropout": "x"}, "dropout must be a number"),
        ({"nan": 0.6, "late": 0.6}, "together must not exceed 1"),
        ({"tied": "mood"}, "tied must be 'labels' or 'size'"),
        ({"dropout": 0.7, "tied": "size"}, "at most 0.5"),
        ({"gone": (-1,)}, "gone must be a whole number"),
        ({"deadline": 0.0}, "deadline must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_impossible_faults_are_refused(settings, words):
    assert words in refusal(fp.Faults, **settings)


def test_an_unknown_client_cannot_be_gone():
    text = refusal(simulate, quadratic(), fp.FedAvg(S=2), faults=fp.Faults(gone=(99,)))
    assert "gone names client 99" in text
