"""How replies pass through a codec between the client and the mean."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from support import quadratic, uneven

import fedpage as fp
from fedpage import codecs
from fedpage.codecs.message_codec import MessageCodec
from fedpage.core.random import RoundDraws
from fedpage.core.types import Call, Scalar, Vector
from fedpage.engine.simulate import Simulation
from fedpage.methods.marina import Difference
from fedpage.methods.messages import FullGradient


class State(NamedTuple):
    x: Vector
    h: Vector
    N: int


class Ask(NamedTuple):
    x: Vector
    h: Vector


class Reply(NamedTuple):
    u: Vector
    g: Vector


class ClientState(NamedTuple):
    h: Vector


@dataclass(frozen=True)
class Shifted:
    """Send a change to h_i, and a gradient as its change to the message's h."""

    name: ClassVar[str] = "shifted"
    paper: ClassVar[str] = "an example"
    messages: ClassVar[Any] = {Ask: Reply}
    client_state: ClassVar[Any] = ClientState
    compressible: ClassVar[Any] = {Ask: {"u": None, "g": "h"}}

    S: int = 4
    eta: float = 0.05
    up: codecs.Codec = codecs.IDENTITY
    down: codecs.Codec = codecs.IDENTITY

    def __post_init__(self):
        codecs.check(self, "unbiased")

    @property
    def effective_step(self):
        return self.eta

    def with_step(self, step):
        return replace(self, eta=step)

    def init(self, x0, N):
        return State(x0, 0.0 * x0, N)

    def call(self, state, draws):
        return Call(draws.clients(state.N, self.S), Ask(state.x, state.h))

    def client(self, message, oracle, client_state):
        g = oracle.grad(message.x, oracle.batch(None))
        return Reply(g - client_state.h, g), client_state

    def update_client_state(self, message, sent, client_state):
        return ClientState(client_state.h + sent.u / 2)

    def server(self, state, replies):
        share = replies.count / state.N
        x = state.x - self.eta * (state.h + replies.mean.u)
        return State(x, state.h + share * replies.mean.u / 2, state.N)


D = 4


def test_a_field_with_a_reference_is_sent_as_its_change():
    method = Shifted(up="randk:1")
    wire = MessageCodec(method, D, np.dtype(np.float64))
    message = Ask(np.zeros(D), np.array([1.0, 2.0, 3.0, 4.0]))
    replies = Reply(np.ones((2, D)), np.tile(message.h, (2, 1)) + 0.5)
    state, clients = ClientState(np.zeros((2, D))), np.array([3, 5])
    seen, _ = wire.finish(message, replies, state, clients, RoundDraws(0, 1))
    assert ((seen.g - message.h != 0).sum(axis=1) == 1).all()  # one coordinate of the change
    np.testing.assert_allclose((seen.g - message.h).sum(axis=1), 4 * 0.5)
    assert ((seen.u != 0).sum(axis=1) == 1).all()
    masks = {tuple(np.flatnonzero(seen.u[i])) for i in range(2)}
    fields = [(np.argmax(seen.u[i] != 0), np.argmax(seen.g[i] != message.h)) for i in range(2)]
    assert len(masks) == 2 or fields[0][0] != fields[0][1] or fields[1][0] != fields[1][1]


def test_without_a_codec_the_bits_are_those_without_the_frame():
    plain = fp.simulate(quadratic(), Shifted(), rounds=20, seed=0)
    text = fp.simulate(quadratic(), Shifted(up="none"), rounds=20, seed=0)
    assert plain.same(text)


@pytest.mark.parametrize(
    ("codec", "floats", "bits", "nbytes"),
    [
        ("none", 8, 512, 64),
        ("float32", 8, 256, 32),
        ("bfloat16", 8, 128, 16),
        ("randk:1", 2, 128, 16),
        ("natural", 8, 96, 12),
        ("randk:3+natural", 6, 72, 10),  # 36 bits are five bytes, twice
    ],
)
def test_costs_are_what_is_sent(codec, floats, bits, nbytes):
    history = fp.simulate(quadratic(), Shifted(up=codec), rounds=3, seed=0)
    assert history.last("floats_up") == 3 * 4 * floats
    assert history.last("bits_up") == 3 * 4 * bits
    assert history.last("bytes_up") == 3 * 4 * nbytes
    assert history.last("bits_down") == 3 * 4 * 512


@pytest.mark.parametrize("faults", [None, fp.Faults(dropout=0.3, late=0.2, lost=0.2)])
def test_a_codec_of_varying_size_is_counted_client_by_client(faults):
    options = fp.RunOptions(faults=faults)
    history = fp.simulate(
        quadratic(), Shifted(S=8, up="bernoulli:0.5"), rounds=40, seed=0, options=options
    )
    answered = history.last("clients") - history.last("missing") if faults else 40 * 8
    bits = history.last("bits_up")
    assert bits == 8 * history.last("bytes_up") == 64 * history.last("floats_up")
    assert bits % (64 * D) == 0
    assert 0.4 < bits / (2 * 64 * D * answered) < 0.75


def test_messages_are_rounded_on_the_way_down():
    seen = []

    class Spy(Shifted):
        def client(self, message, oracle, client_state):
            seen.append(message.x)
            return super().client(message, oracle, client_state)

    history = fp.simulate(quadratic(), Spy(down="float32"), rounds=5, seed=0)
    assert all((x == x.astype(np.float32)).all() for x in seen)
    assert history.last("bits_down") == 5 * 4 * 2 * 32 * D
    assert (history.x != history.x.astype(np.float32)).any()


def test_permk_needs_all_clients_and_keeps_ranks_when_they_are_asked_again():
    faults = fp.RunOptions(faults=fp.Faults(dropout=0.4), policy=fp.Policy(retries=50))
    lucky = fp.simulate(quadratic(), Shifted(up="permk"), rounds=10, seed=0)
    faulty = fp.simulate(quadratic(), Shifted(up="permk"), rounds=10, seed=0, options=faults)
    assert faulty.last("missing") > 0
    assert faulty.x.tobytes() == lucky.x.tobytes()


def test_the_sampled_round_that_replaces_a_full_one_needs_all_its_clients_with_permk():
    """PermK's replies over some of the called clients would have a biased mean."""
    run = Simulation(
        quadratic(),
        fp.PPMARINA(S=4, p=0.5, up="permk"),
        seed=0,
        options=fp.RunOptions(
            faults=fp.Faults(dropout=0.4), policy=fp.Policy(full_retries=0, retries=0, patience=50)
        ),
    )
    run.step()
    counts = {run.step().count for _ in range(12)}
    assert run.costs.fallbacks > 3
    assert counts <= {4, 8}


def test_permk_names_the_client_without_which_a_round_fails():
    options = fp.RunOptions(faults=fp.Faults(gone=(3,), gone_from=2))
    history = fp.simulate(
        uneven(), Shifted(S=12, up="permk:12+natural"), rounds=9, seed=0, options=options
    )
    text = "no valid reply from client 3; up=permk:12+natural needs all called clients"
    assert history.stop_detail == f"round 2 failed: {text}"


def test_late_replies_are_counted_as_they_were_sent():
    """A full round's replies have 64 bits a number, those of differences 12 bits."""
    method = fp.PPMARINA(S=4, p=0.5, up="natural")
    run = Simulation(quadratic(), method, seed=0, options=fp.RunOptions(faults=fp.Faults(late=1.0)))
    gradient = Call(np.arange(8), FullGradient(run.x))
    difference = Call(np.arange(3), Difference(run.x, run.x))
    calls = [gradient, difference, gradient]
    sizes = []
    for r, call in enumerate(calls):
        first, *_ = run.transport.request(call, RoundDraws(0, r), 0)
        sizes.append(None if first.size is None else first.size.bits)
        restored = Simulation(
            quadratic(), method, seed=0, options=fp.RunOptions(faults=fp.Faults(late=1.0))
        )
        restored.restore(run.snapshot(), "a snapshot")
        run = restored
    assert sizes == [None, 8 * 64 * D, 3 * 12 * D]


@pytest.mark.parametrize(
    "declared", [{Ask: {"missing": None}}, {Ask: {"u": "missing"}}], ids=["reply", "message"]
)
def test_a_wrong_declaration_is_refused(declared):
    class Wrong(Shifted):
        compressible = declared

    with pytest.raises(fp.InputError, match=r"Wrong: compressible names .* no such field"):
        fp.simulate(quadratic(), Wrong(up="natural"), rounds=1, seed=0)


def test_a_number_of_a_reply_cannot_be_compressed_even_if_the_model_is_one():
    class Counted(NamedTuple):
        u: Vector
        rows: Scalar

    class Wrong(Shifted):
        messages: ClassVar[Any] = {Ask: Counted}
        compressible: ClassVar[Any] = {Ask: {"rows": None}}

    for d in (1, 3):
        with pytest.raises(fp.InputError, match="'rows' is a number, not a vector"):
            MessageCodec(Wrong(up="natural"), d, np.dtype(np.float64))


def test_a_codec_without_compressible_fields_is_refused():
    class Silent(Shifted):
        compressible: ClassVar[Any] = {}

    fp.simulate(quadratic(), Silent(), rounds=1, seed=0)
    with pytest.raises(fp.InputError, match="Silent: up=natural, but no reply field is declared"):
        fp.simulate(quadratic(), Silent(up="natural"), rounds=1, seed=0)


def test_a_method_that_never_checks_its_codecs_is_told_how():
    @dataclass(frozen=True)
    class Careless(Shifted):
        def __post_init__(self) -> None:
            pass

    with pytest.raises(fp.InputError, match=r"Careless: up='natural' is not a codec; call codecs"):
        fp.simulate(quadratic(), Careless(up="natural"), rounds=1, seed=0)
    with pytest.raises(fp.InputError, match="'unbised' is not one of any, unbiased"):
        codecs.check(Shifted(), "unbised")
