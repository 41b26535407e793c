"""Replay the paper's methods and their variants against plain Python."""

from itertools import count

import pytest
from plain import X0, ZERO, N, Plain, fedpage_round, mean

import fedpage as fp


def fedprox(plain: Plain, m):
    x = X0
    while True:
        moves = []
        for i in plain.clients(m.S):
            y = x
            for _ in range(m.K):
                y = y - m.eta_l * (plain.grad(i, y, plain.batch(i, m.b)) + m.mu * (y - x))
            moves.append(plain.compress(i, y - x, m.up))
        x = x + m.eta_g * mean(moves)
        yield x, {}, {}


def vrl_sgd(plain: Plain, m):
    x, delta = X0, [ZERO] * N
    while True:
        ends = []
        for i in range(N):
            y = x
            for _ in range(m.K):
                y = y - m.eta_l * (plain.grad(i, y, plain.batch(i, m.b)) - delta[i])
            ends.append(y)
        x, used = mean(ends), delta
        delta = [used[i] + (x - ends[i]) / (m.K * m.eta_l) for i in range(N)]
        assert abs(mean(delta)).max() < 1e-10
        yield x, {}, {"delta": used}  # clients learn the mean in the next round


def s_local_svrg(plain: Plain, m):
    x, stepped = X0, False
    for r in count():
        coin = plain.coin(r in (3, 7, 9))
        clients = plain.clients(m.S)
        if r == 0 or (stepped and coin):
            w, h, stepped = x, plain.full(x), False
        else:
            ends = []
            for i in clients:
                y = x
                for _ in range(m.K):
                    rows = plain.batch(i, m.b)
                    y = y - m.eta_l * (plain.grad(i, y, rows) - plain.grad(i, w, rows) + h)
                ends.append(y)
            x, stepped = mean(ends), True
        yield x, {"h": h}, {"w": [w] * N}


def fedpage(plain: Plain, m):
    x = x_prev = g = X0
    for r in count():
        if plain.coin(r in (0, 4)):
            move = g = plain.full(x)
        else:
            move, g = fedpage_round(plain, m, x, x_prev, g)
        x, x_prev = x - m.eta_g * move, x
        yield x, {"g": g}, {}


LOCAL = {"S": 2, "K": 3, "b": 2, "eta_l": 0.15}
PAGE = {"S": 2, "K": 4, "b2": 3, "b3": 1, "eta_g": 0.3, "eta_l": 0.15, "p": 0.2}
REPLAYS = {
    "FedProx": (fedprox, fp.FedProx(**LOCAL, eta_g=1.2, mu=0.6)),
    "FedProx natural": (fedprox, fp.FedProx(**LOCAL, eta_g=1.2, mu=0.6, up="natural")),
    "FedProx randk": (fedprox, fp.FedProx(**LOCAL, eta_g=1.2, mu=0.6, up="randk:1")),
    "VRL-SGD": (vrl_sgd, fp.VRLSGD(K=3, b=2, eta_l=0.15)),
    "S-Local-SVRG": (s_local_svrg, fp.SLocalSVRG(K=3, b=2, eta_l=0.15, q=0.3)),
    "S-Local-SVRG sampled": (s_local_svrg, fp.SLocalSVRG(**LOCAL, q=0.3)),
    "FedPAGE": (fedpage, fp.FedPAGE(**PAGE)),
    "FedPAGE randk": (fedpage, fp.FedPAGE(**PAGE, up="randk:2")),
    "FedPAGE leak-free": (fedpage, fp.LeakFreeFedPAGE(**PAGE)),
    "FedPAGE leak-free randk": (fedpage, fp.LeakFreeFedPAGE(**PAGE, up="randk:2")),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    check(method, algorithm, rounds=10)
