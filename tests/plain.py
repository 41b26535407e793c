"""Algorithms in plain Python: a small problem, what they draw, and their replay by a method.

An algorithm is a generator function of a `Plain` and a method, of which it reads only the
hyper-parameters. After each round it yields x, and the vectors that the server and the clients
keep. It uses nothing of fedpage but codecs, which have laws of their own.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support import Unfused

import fedpage as fp
from fedpage.codecs import Codec, Keys
from fedpage.core.random import RoundDraws
from fedpage.testing import ScriptedDraws, replay

Vector = NDArray[np.float64]
Known = dict[str, Any]
Algorithm = Callable[["Plain", Any], Iterator[tuple[Vector, Known, Known]]]

N, M, D, ALPHA = 5, 4, 3, 0.1
_rng = np.random.default_rng(20210810)
A = _rng.uniform(-1.5, 1.5, (N, M, D)).round(2)
B = _rng.choice([-1.0, 1.0], (N, M))
B[0, :2] = -1.0, 1.0
X0 = np.array([0.3, -0.2, 0.5])
ZERO = np.zeros(D)


def problem_of(objective: str) -> fp.LogisticRegression | fp.RobustRegression:
    data = fp.Dataset.from_arrays(A.reshape(N * M, D), B.ravel())
    if objective == "robust":
        return fp.RobustRegression(data, clients=N)
    return fp.LogisticRegression(data, clients=N, reg="nonconvex", alpha=ALPHA)


def mean(vectors: Iterable[Vector]) -> Vector:
    return np.mean(list(vectors), axis=0)


class Draws(ScriptedDraws):
    """The draws of a round as an algorithm asks for them."""

    before: list[int] | None = None
    """The clients of the round before, if they are called again."""
    is_coded = False
    """Whether the algorithm used a random codec; otherwise the method must not ask for keys."""

    def clients(self, N: int, S: int, ago: int = 0) -> Any:
        if ago == 0 or S >= N:
            return super().clients(N, S)
        assert ago == 1
        return np.array(self.before, dtype=np.int64)

    def __getattribute__(self, name: str) -> Any:
        if name in ("client_keys", "shared_key") and not self.is_coded:
            raise AssertionError("a deterministic codec asked for randomness")
        return super().__getattribute__(name)


class Plain:
    """An objective's gradients, and random draws that are recorded for the replay."""

    def __init__(self, objective: str = "robust") -> None:
        self.objective, self.chance = objective, random.Random(20210810)
        self.script: list[Any] = []
        self.called: list[int] = []

    def begin(self, orders: list[list[int]]) -> None:
        self.script.append(Draws(len(self.script), False, [], {}, orders=orders))

    def clients(self, S: int | None = None) -> list[int]:
        """Sample clients."""
        self.called = sorted(self.chance.sample(range(N), S or N))
        self.script[-1]._clients = self.called
        return self.called

    def same_clients(self) -> list[int]:
        """Return the clients of the round before; a method that samples anew gets others."""
        self.script[-1].before = self.called
        others = sorted(set(range(N)) - set(self.called)) + self.called
        self.script[-1]._clients = others[: len(self.called)]
        return self.called

    def coin(self, heads: bool) -> bool:
        self.script[-1]._coin = heads
        return heads

    def steps(self) -> int:
        """Draw a number of local steps."""
        self.script[-1]._steps = self.chance.randint(1, 5)
        return self.script[-1]._steps

    def batch(self, i: int, b: int | None = None) -> list[int]:
        """Draw the next minibatch of a client; if b is None, it has all rows."""
        rows = list(range(M)) if b is None else sorted(self.chance.sample(range(M), b))
        self.script[-1]._batches.setdefault(i, []).append(rows)
        return rows

    def grad(self, i: int, x: Vector, rows: list[int] | None = None) -> Vector:
        """Return the mean gradient over rows of client i at x; if None, over all rows."""
        a, b = (part[i] if rows is None else part[i][rows] for part in (A, B))
        t = a @ x
        if self.objective == "robust":
            r = t - b
            return (r / (1 + r * r / 2)) @ a / len(b)
        return -(b / (1 + np.exp(b * t))) @ a / len(b) + 2 * ALPHA * x / (1 + x * x) ** 2

    def full(self, x: Vector) -> Vector:
        """Return the mean of all clients' gradients at x."""
        return mean(self.grad(i, x) for i in range(N))

    def compress(self, i: int, v: Vector, codec: Codec, field: int = 0) -> Vector:
        """Return C(v) with the random numbers of a client in this round."""
        if codec.is_random:
            self.script[-1].is_coded = True
        draws = RoundDraws(0, len(self.script) - 1)
        keys = Keys(draws.client_keys(np.array([i]), field), draws.shared_key(field))
        return codec.apply(v[None], keys)[0]


def fedpage_round(plain: Plain, m: Any, x: Vector, x_prev: Vector, g: Vector) -> tuple[Any, Any]:
    """Return the move and the next g of a round of local steps, Alg. 1, lines 12 to 23.

    Only changes of g pass through the codec. Leak-free clients also send their first estimate.
    """
    moves, firsts = [], []
    for i in plain.clients(m.S):
        y, before, estimates = x, x_prev, [g]
        for k in range(m.K):
            rows = plain.batch(i, m.b3 if k else m.b2)
            change = plain.grad(i, y, rows) - plain.grad(i, before, rows)
            estimates.append(estimates[-1] + change)
            y, before = y - (m.eta_l or 0.0) * estimates[-1], y
        moves.append(g + plain.compress(i, mean(estimates[1:]) - g, m.up, 0))
        firsts.append(g + plain.compress(i, estimates[1] - g, m.up, 1))
    return mean(moves), mean(firsts if isinstance(m, fp.LeakFreeFedPAGE) else moves)


def check_replay(
    objective: str,
    is_fused: bool,
    method: Any,
    algorithm: Algorithm,
    rounds: int = 9,
    orders: list[list[int]] = [],  # noqa: B006
) -> Any:
    """Compare a method with an algorithm after every round; return the finished simulation."""
    plain = Plain(objective)
    expected: list[Any] = []
    plain.begin(orders)
    for yielded in itertools.islice(algorithm(plain, method), rounds):
        expected.append(copy.deepcopy(yielded))  # an algorithm may go on with the same lists
        plain.begin(orders)
    problem = problem_of(objective)
    script = plain.script[:rounds]
    case: Any = problem if is_fused else Unfused(problem)
    run = replay(case, method, script, x0=X0)
    for x, server, clients in expected:
        run.step()
        pairs = [(run.x, x), *((getattr(run.state, name), v) for name, v in server.items())]
        kept = run.client_states.get_all() if clients else None
        pairs += [(getattr(kept, name), v) for name, v in clients.items()]
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    return run
