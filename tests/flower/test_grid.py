"""A federation in one process, over a Grid whose messages cross the wire's bytes: the same bits, and every fault."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from localgrid import LocalGrid

import fedpage as fp
from fedpage.flower import engine as federation
from fedpage.flower import messages
from fedpage.flower.client_app import app
from fedpage.flower.server_app import FedpageStrategy

HYPER = {
    "fedpage": "S=3 K=3 eta_g=0.2 p=0.4", "page": "S=3 eta_g=0.2 p=0.4", "fedavg": "S=3 K=3", "fedprox": "S=3 K=3",
    "scaffold": "S=3 K=3", "vrl-sgd": "K=3", "s-local-svrg": "K=3 q=0.3", "fedpage-full": "S=3 K=3 p=0.4",
    "scaffold-full": "S=3 K=3", "fedavg-full": "S=3 K=3",
}  # fmt: skip


@pytest.mark.parametrize("method", fp.METHODS)
def test_the_same_history_as_in_the_simulator(federate, simulated, method, tmp_path):
    strategy = federate(method=method, hyper=HYPER[method])
    history = simulated(method=method, hyper=HYPER[method])
    assert strategy.history.same(history)
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)


@pytest.mark.parametrize(
    "objective", ["logistic", "logistic-l2", "logistic-nonconvex", "squares-l2"]
)
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_the_same_history_for_every_objective_and_weighting(
    federate, simulated, objective, weights
):
    changes = {
        "objective": objective,
        "weights": weights,
        "method": "scaffold",
        "hyper": "S=3 K=2 eta_l=0.1",
    }
    assert federate(**changes).history.same(simulated(**changes))


def test_size_weights_are_not_uniform_ones(federate, tmp_path):
    uniform = federate().history
    sized = federate(weights="size", out=str(tmp_path / "sized")).history
    assert uniform.x.tobytes() != sized.x.tobytes()


class Once:
    """A fault that befalls the first message of a kind to a client in each round, from round 2 on."""

    def __init__(self, what, client=None, kind="train.work"):
        self.what, self.client, self.kind, self.seen = what, client, kind, set()

    def __call__(self, client, message):
        key = (client, message.metadata.group_id)
        other = self.client is not None and client != self.client
        if (
            message.metadata.message_type != self.kind
            or other
            or key in self.seen
            or int(key[1]) < 2
        ):
            return None
        self.seen.add(key)
        return self.what


def tampered(change):
    """A function from a reply to a reply."""

    def fault(reply):
        content = reply.content
        arrays = {name: array.numpy() for name, array in content["parts"].items()}
        say = dict(content["say"])
        made = change(arrays, say) or arrays
        records = {
            "parts": ArrayRecord({k: Array(v) for k, v in made.items()}),
            "say": ConfigRecord(say),
        }
        reply.content = RecordDict(records)
        return reply

    return fault


def first(arrays):
    return next(iter(arrays))


FAULTS = {
    "it raised an exception": ("error", 2, "<class 'ValueError'>:<'row 7'>"),
    "its process died": ("error", 8, "ClientApp stopped responding."),
    "its node is not there": ("error", 5, "Error: Node Unavailable"),
    "no reply in time": ("late", 1000.0),
    "not finite": tampered(lambda a, s: a[first(a)].__setitem__(0, np.nan)),
    "of shape (1,) instead of (123,)": tampered(
        lambda a, s: {name: part[:1] for name, part in a.items()}
    ),
    "of type float32 instead of float64": tampered(
        lambda a, s: {n: p.astype(np.float32) for n, p in a.items()}
    ),
    "bytes, where 984 were expected": tampered(lambda a, s: {n: np.zeros(10**6) for n in a}),
    "instead of dy": tampered(lambda a, s: {"other": a[first(a)]}),
    "late: it belongs to round": tampered(lambda a, s: s.__setitem__("round", s["round"] - 1)),
    "it says it is client 99": tampered(lambda a, s: s.__setitem__("client", 99)),
    "'gradients' should be of type int": tampered(lambda a, s: s.__setitem__("gradients", 1.5)),
    "counts that cannot be": tampered(lambda a, s: s.__setitem__("gradients", -1)),
    "more words": tampered(lambda a, s: s.__setitem__("extra", 1)),
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_goes_wrong_is_named_asked_again_and_leaves_no_trace(federate, simulated, words):
    changes = {"method": "scaffold", "hyper": "S=3 K=2", "rounds": 6}
    strategy = federate(Once(FAULTS[words]), **changes)
    whole = simulated(**changes)
    assert strategy.history.x.tobytes() == whole.x.tobytes()
    told = [e["text"] for e in strategy.history.events if e["event"] == "rejected"]
    assert told
    assert all(words in text for text in told)
    assert all(text.startswith("reply of client ") for text in told)
    assert strategy.history.last("missing") == len(told)


@pytest.mark.parametrize("fault", ["drop", "lost"])
def test_a_lost_message_or_reply_leaves_no_trace_not_even_in_a_memory(federate, simulated, fault):
    changes = {"method": "scaffold", "hyper": "S=3 K=2", "rounds": 8}
    strategy = federate(Once(fault), **changes)
    assert strategy.history.last("missing") > 0
    assert strategy.history.x.tobytes() == simulated(**changes).x.tobytes()


def test_a_reply_that_never_counts_does_not_move_a_memory(federate, simulated, tmp_path):
    """A client whose reply is lost in every wave of a round is called again later with the memory from before."""
    lost = []

    def fault(client, message):
        if message.metadata.message_type == "train.work" and message.metadata.group_id in (
            "2",
            "3",
        ):
            lost.append(client)
            return "lost" if client % 2 else None
        return None

    changes = {"method": "scaffold", "hyper": "S=4 K=2", "rounds": 12, "retries": 0}
    strategy = federate(fault, **changes)
    assert any(client % 2 for client in lost)
    engine = fp.Simulation(
        fp.RobustRegression(fp.load("census", rows=300), fp.power_law(300, 8)), strategy.method, seed=3,
        policy=fp.Policy(retries=0),
    )  # fmt: skip
    plain = engine.ask

    def ask(clients, message, wave):
        (answer,) = plain(clients, message, wave)
        if engine.costs.round not in (2, 3):
            return (answer,)
        from fedpage.engine.round import as_letters

        return (
            fp.engine.policy.Answer(
                clients,
                letters=[
                    one for one in as_letters(answer, engine.costs.round) if not one.client % 2
                ],
            ),
        )

    engine.ask = ask
    for _ in range(12):
        engine.step()
    assert strategy.history.x.tobytes() == engine.x.tobytes()


def test_a_client_that_never_comes_back(federate):
    """An alarm, no more full rounds, and training goes on."""

    def leave(client, message):
        if (
            message.metadata.group_id.isdigit()
            and int(message.metadata.group_id) >= 3
            and client == 5
        ):
            return ("error", 5, "Error: Node Unavailable")
        return None

    history = federate(
        leave, rounds=25, hyper="S=4 K=2 eta_g=0.2 p=0.5", **{"record-every": 1}
    ).history
    assert history.stopped == "finished"
    assert [e["text"] for e in history.events if e["event"] == "lost"] == [
        "client 5 missing 3 times in a row"
    ]
    alarm = next(e["round"] for e in history.events if e["event"] == "lost")
    assert np.diff(history["full_rounds"])[3:].max() == 0
    assert np.diff(history["clients"])[alarm + 1 :].max() <= 4 + 2
    assert any("loss and gradient over 7 of 8 clients" in e["text"] for e in history.events)
    assert history.last("loss") < history["loss"][0]


def test_a_node_that_comes_back_under_another_number(federate, simulated):
    def prepare(grid):
        def move(client, message):
            old = grid.node(2)
            if message.metadata.group_id != "4" or client != 2 or old == 4242:
                return None
            grid.online.discard(old)
            grid.add(4242, 2, grid.contexts[old].node_config, grid.contexts[old].run_config)
            grid.online.add(4242)
            return "drop"

        grid.fault = move

    changes = {"method": "scaffold", "hyper": "S=8 K=2"}
    strategy = federate(prepare=prepare, **changes)
    assert strategy.history.x.tobytes() == simulated(**changes).x.tobytes()
    assert strategy.grid.contexts.keys() - strategy.grid.online


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", ["fedpage", "scaffold", "s-local-svrg"])
def test_a_killed_server_goes_on_with_the_same_bits(federate, simulated, method):
    """A new ServerApp on a new run: nothing is left but its directory and what the nodes remember."""

    def die(done, rounds, row):
        if done == 4:
            raise Killed

    changes = {"method": method, "hyper": HYPER[method], "record-every": 1}
    with pytest.raises(Killed):
        federate(progress=die, **changes)
    again = federate(**changes)
    assert again.history.same(simulated(**changes))
    assert ("query.describe") in {kind for _, kind in again.grid.sent}
    asked = sum(kind == "train.work" for _, kind in again.grid.sent)
    assert asked < again.history.last("clients")
    with pytest.raises(fp.InputError, match="this run is finished; give another out"):
        federate(**changes)
    with pytest.raises(fp.InputError, match="cannot go on: seed was 3 and is now 4"):
        federate(seed=4, **changes)


def test_a_memory_that_is_lost_is_said_and_not_replaced_by_zeros(federate, tmp_path):
    import shutil

    def forget(client, message):
        if message.metadata.group_id == "5":
            shutil.rmtree(tmp_path / "memory", ignore_errors=True)

    history = federate(forget, method="scaffold", hyper="S=8 K=2").history
    assert history.stopped.startswith(
        "gave up at round 5: no sound reply from clients 0, 1, 2, 3, 4 and 3 more"
    )
    assert any(
        "this node has no memory of round 4; it has been lost" in e["text"] for e in history.events
    )


def test_an_outage_while_measuring_is_not_the_end(federate, simulated):
    """Nobody answers for a while: the run gives up, and goes on when it is started again."""

    def silent(client, message):
        return (
            "drop"
            if message.metadata.message_type == "evaluate.measure"
            and message.metadata.group_id == "4"
            else None
        )

    history = federate(silent).history
    assert history.stopped == "gave up measuring after round 4: no sound reply from anyone"
    assert federate().history.same(simulated())


def test_a_measure_that_is_not_finite_is_asked_for_again(federate, simulated):
    spoil = tampered(lambda a, s: a["loss"].__setitem__(0, np.nan))
    history = federate(Once(spoil, kind="evaluate.measure")).history
    assert history.same(simulated())
    assert all(
        "measures of client" in e["text"] and "not finite" in e["text"] for e in history.events
    )


def test_a_run_goes_on_without_a_client_that_was_lost(federate):
    def leave(client, message):
        late = message.metadata.group_id.isdigit() and int(message.metadata.group_id) >= 2
        return ("error", 5, "Error: Node Unavailable") if late and client == 5 else None

    def die(done, rounds, row):
        if done == 8:
            raise Killed

    changes = {"rounds": 14, "record-every": 1, "hyper": "S=6 K=2 eta_g=0.2 p=0.5"}
    with pytest.raises(Killed):
        federate(leave, progress=die, **changes)
    history = federate(
        leave, prepare=lambda grid: grid.online.discard(grid.node(5)), **changes
    ).history
    assert history.stopped == "finished"
    assert history.last("round") == 14


def test_a_stranger_does_not_end_a_running_federation(federate, simulated):
    def prepare(grid):
        def swap(client, message):
            if message.metadata.group_id == "4" and client == 2 and 77 not in grid.online:
                grid.add(77, 2, {"partition-id": 99}, next(iter(grid.contexts.values())).run_config)
                grid.online |= {77}
                grid.online.discard(grid.node(2))
                grid.gone = True
                return "drop"
            return None

        grid.fault = swap

    history = federate(prepare=prepare, rounds=6, hyper="S=8 K=2 eta_g=0.2 p=0.01").history
    assert history.stopped == "finished"
    assert any(e["event"] == "refused" and "partition-id" in e["text"] for e in history.events)


def test_a_question_that_is_lost_is_asked_again(federate, simulated):
    seen = []

    def lose(client, message):
        if message.metadata.message_type == "query.describe" and client == 3 and not seen:
            seen.append(client)
            return "drop"
        return None

    assert federate(lose, wait=3000.0).history.same(simulated())
    assert seen


def test_memories_want_a_checkpoint_every_round(config):
    with pytest.raises(fp.InputError, match="checkpoint-every must be '1'"):
        FedpageStrategy(config | {"method": "scaffold", "hyper": "S=2", "checkpoint-every": "10"})


@pytest.mark.parametrize(
    "kinds", [{0: "0,1", 1: "many"}, {0: "0,1", 1: "1,2"}, {0: "0,1", 1: "0"}, {0: "1", 1: "2"}]
)
def test_labels_of_different_meaning(kinds):
    with pytest.raises(fp.InputError, match="labels"):
        federation._one_meaning(kinds)
    for fine in (
        {0: "-1", 1: "-1,1"},
        {0: "0,1", 1: "0,1"},
        {0: "many", 1: "many"},
        {0: "", 1: ""},
    ):
        federation._one_meaning(fine)


def test_everyone_must_be_there_to_begin(federate):
    def prepare(grid):
        grid.online.discard(grid.node(6))

    with pytest.raises(fp.InputError, match="waited 10 s for 8 clients; not here: 6"):
        federate(prepare=prepare)
    twins = [{"partition-id": min(i, 6)} for i in range(8)]
    with pytest.raises(fp.InputError, match="both say they are client 6"):
        federate(nodes=twins)
    with pytest.raises(
        fp.InputError, match="partition-id must say which of the 8 clients this is, 0 to 7, not 8"
    ):
        federate(nodes=[{"partition-id": i + 1} for i in range(8)])
    with pytest.raises(fp.InputError, match="this node has no data"):
        federate(data="")


def test_other_versions_are_refused(federate, monkeypatch):
    monkeypatch.setattr(federation, "__version__", "9.9.9")
    with pytest.raises(fp.InputError, match=r"client \d has fedpage 0.1.0, and the server 9.9.9"):
        federate()


def test_sites_with_files_of_their_own(federate, simulated, tmp_path):
    """LIBSVM at some, CSV at others: the run is that of the simulator over all rows."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((60, 5)) < 0.6, rng.normal(size=(60, 5)).round(3), 0.0)
    X[:, 4] = np.where(np.arange(60) < 15, 0.0, X[:, 4])  # site 0 has never seen the last feature
    y = (X @ rng.normal(size=5) > 0).astype(int)
    y[:15] = 1  # and one kind of label only
    nodes = []
    for site in range(4):
        rows = slice(15 * site, 15 * site + 15)
        if site < 2:
            path = tmp_path / f"site{site}.svm"
            lines = [
                f"{label} " + " ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v)
                for row, label in zip(X[rows], y[rows], strict=True)
            ]
            path.write_text("\n".join(lines) + "\n")
        else:
            path = tmp_path / f"site{site}.csv"
            lines = [
                ",".join(map(repr, [int(b), *map(float, row)]))
                for row, b in zip(X[rows], y[rows], strict=True)
            ]
            path.write_text("sick,a,b,c,d,e\n" + "\n".join(lines) + "\n")
        nodes.append({"partition-id": site, "data": str(path)})
    changes = {
        "clients": 4,
        "data": "",
        "label": "sick",
        "hyper": "S=2 K=2 eta_g=0.3",
        "objective": "logistic",
    }
    strategy = federate(nodes=nodes, labels="0,1", **changes)
    problem = fp.LogisticRegression(fp.Dataset.from_arrays(X, y), clients=4)
    assert strategy.history.same(simulated(problem, labels="0,1", **changes))
    with pytest.raises(
        fp.InputError, match=r'client 0 has labels of one kind only; .* labels = "0,1"'
    ):
        federate(nodes=nodes, **{**changes, "out": str(tmp_path / "two")})
    with pytest.raises(fp.InputError, match="row 1 is labelled 1, which is not one of 2,3"):
        federate(nodes=nodes, labels="2,3", **{**changes, "out": str(tmp_path / "three")})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,x\n", "line 2: every cell must be a number"),
        ("a,b\n1,2\n1\n", "line 3: 2 finite numbers are expected"),
        ("a,b\n1,nan\n", "line 2: 2 finite numbers are expected"),
        ("a\n1\n", "at least two columns"),
        ("a,b\n", "there is no row below its header"),
        ("", "at least two columns"),
    ],
)
def test_tables_that_are_none(tmp_path, text, words):
    from fedpage.flower.node import read

    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(fp.InputError, match=words):
        read(path, None, "", "")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(fp.InputError, match="there is no column 'c'; there are a, b"):
        read(path, None, "", "c")
    with pytest.raises(fp.InputError, match="1 feature columns, where 7 are agreed on"):
        read(path, 7, "", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 0}, "clients must be at least 1"),
        ({"deadline": 0.0}, "deadline must be seconds"),
        ({"weights": "rows"}, "weights must be 'uniform' or 'size'"),
        ({"hyper": "S"}, "hyper must be words such as S=2"),
        ({"hyper": "Z=2"}, "no hyper-parameter 'Z'"),
        ({"method": "fedpag"}, "did you mean 'fedpage'"),
        ({"bogus": 1}, "unknown key 'bogus'"),
        ({"rounds": "many"}, "rounds must be of type int"),
    ],
)
def test_configurations_that_are_none(config, change, words):
    with pytest.raises(fp.InputError, match=words):
        FedpageStrategy(config | change)


def test_messages_that_the_grid_does_not_take(config):
    grid = LocalGrid(app, [{"partition-id": 0}], config)
    grid.get_node_ids()
    sent = {0: Message(RecordDict(), grid.node(0), "query.describe", ttl=5.0)}
    grid.push_messages = lambda messages: [None]
    assert (
        federation.exchange(grid, sent, deadline=1.0, poll=0.1, sleep=grid.sleep, clock=grid.clock)
        == {}
    )


def test_names_of_messages_are_the_methods_own():
    found = messages.kinds(fp.PAGE())
    assert {"Refresh", "Walk", "FreeWalk"} <= set(found)
    assert found["Walk"]._fields == ("x_prev", "g")
    assert dataclasses.is_dataclass(fp.PAGE)
