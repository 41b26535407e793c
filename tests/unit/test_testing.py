"""check_method: sound methods pass, and each way to break a method is named."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.local_steps import local_sgd
from fedpage.methods.messages import ModelState, Move
from fedpage.testing import MethodError


@dataclass(frozen=True)
class Undeclared(fp.FedAvg):
    messages: ClassVar[dict[Any, Any]] = {}


Other = namedtuple("Other", ["dy"])


def replies(name, change):
    """Return FedAvg under another name, whose reply is change(dy), dy (n, d)."""

    def client(self, message, oracle, client_state):
        reply, _ = fp.FedAvg.client(self, message, oracle, client_state)
        return change(reply.dy), None

    return type(name, (fp.FedAvg,), {"client": client})


WRONG_REPLIES = {
    replies("IntegerReplies", lambda dy: Move(dy.astype(np.int8))): "int8 instead of float64",
    replies("TooFewRows", lambda dy: Move(dy[:2])): r"shape \(2, 4\) instead of \(4, 4\)",
    replies("Flat", lambda dy: Move(dy[0])): r"shape \(4,\) instead of \(4, 4\)",
    replies("Lists", lambda dy: Move(dy.tolist())): "dy as a list instead of an array",
    replies("OtherType", Other): "is a Other instead of a Move",
}


class NoPair(fp.FedAvg):
    def client(self, message, oracle, client_state):
        return super().client(message, oracle, client_state)[0]


class ServerInPlace(fp.FedAvg):
    def server(self, state, replies):
        x = state.x
        x += super().server(state, replies).x - x
        return state


class MeanInPlace(fp.FedAvg):
    def server(self, state, replies):
        dy = replies.mean.dy
        dy *= 1.0 + 1e-9
        return super().server(state, replies)


class OwnRandomness(fp.FedAvg):
    def server(self, state, replies):
        return ModelState(state.x + np.random.default_rng().normal(size=len(state.x)), state.N)


class HiddenState(fp.FedAvg):
    calls: ClassVar[list[int]] = []

    def server(self, state, replies):
        self.calls.append(1)
        return ModelState(state.x + replies.mean.dy / len(self.calls), state.N)


class InPlace(fp.FedAvg):
    def client(self, message, oracle, client_state):
        message.x[0] += 1.0
        return super().client(message, oracle, client_state)


class Uphill(fp.FedAvg):
    def server(self, state, replies):
        return ModelState(state.x - self.eta_g * replies.mean.dy, state.N)


class WrongStep(fp.FedAvg):
    def with_step(self, step):
        return self


class Drifts(fp.FedAvg):
    def client(self, message, oracle, client_state):
        direction = local_sgd(oracle, message.x, K=self.K, eta=self.eta_l, b=self.b, shift=0.1)
        return Move(-self.eta_l * direction), None


class SendsModels(fp.FedAvg):
    """Compress y_K itself, which does not vanish at the optimum."""

    def client(self, message, oracle, client_state):
        reply, _ = super().client(message, oracle, client_state)
        return Move(message.x + reply.dy), None

    def server(self, state, replies):
        return ModelState(replies.mean.dy, state.N)


class KeepsTheMean(fp.SCAFFOLD):
    def update_client_state(self, message, sent, client_state):
        kept = super().update_client_state(message, sent, client_state)
        return type(kept)(kept.c - kept.c.mean(axis=0))


class KeepsInPlace(fp.SCAFFOLD):
    def update_client_state(self, message, sent, client_state):
        client_state.c[:] += sent[0]
        return client_state


BROKEN = {
    **WRONG_REPLIES,
    NoPair: r"must return \(reply, client_state\), not Move",
    SendsModels: "up=natural: from the common optimum .* compress only what vanishes",
    KeepsTheMean: "c of client 1 depends on who else is called",
    KeepsInPlace: "the client state is changed in place",
    Undeclared: "messages must map message types",
    replies("MixesClients", lambda dy: Move(dy - dy.mean(axis=0))): "depends on who else is called",
    OwnRandomness: "the model differs after round 0",
    HiddenState: "run twice with the same seed, the model differs",
    InPlace: "is changed in place",
    ServerInPlace: "the server's state is changed in place",
    MeanInPlace: "the mean of the replies is changed in place",
    Uphill: "the first move is not downhill",
    WrongStep: "has effective_step",
    Drifts: "from the common optimum of all clients it moves",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_method_is_named_with_its_fault(kind):
    method = kind(S=4, K=2, eta_l=0.05)
    with pytest.raises(MethodError, match=BROKEN[kind]):
        fp.check_method(method)
    report = fp.check_method(method, raise_on_fault=False)
    assert not report.passed
    assert "FAILS" in str(report)


@pytest.mark.parametrize("kind", [*WRONG_REPLIES, NoPair], ids=lambda kind: kind.__name__)
def test_undeclared_replies_are_refused_in_one_line_by_the_simulator(kind):
    problem = fp.Quadratic.random(8, 5, 4, seed=3)
    with pytest.raises(fp.InputError, match=kind.__name__) as caught:
        fp.simulate(problem, kind(S=4, K=2), rounds=2, seed=0)
    assert "\n" not in str(caught.value)


def test_what_is_no_method_is_refused():
    with pytest.raises(fp.InputError, match="method must be a method such as FedPAGE"):
        fp.check_method(fp.FedAvg)


def test_a_mutable_method_is_named():
    @dataclass
    class Plain:
        S: int = 4

    for name in ("name", "paper", "messages", "client_state"):
        setattr(Plain, name, getattr(fp.FedAvg, name))
    for name in ("init", "call", "client", "server", "with_step", "effective_step"):
        setattr(Plain, name, getattr(fp.FedAvg, name))
    report = fp.check_method(Plain(), raise_on_fault=False)
    assert "S can be changed; use @dataclass(frozen=True)" in str(report)
