"""A method of one's own, complete: minibatch SGD with momentum on the server."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from fedpage.methods import checks
from fedpage.types import Call, Draws, Oracle, Replies, Vector


class State(NamedTuple):
    x: Vector
    v: Vector
    N: int


class Ask(NamedTuple):  # what is sent; its fields are counted
    x: Vector


class Reply(NamedTuple):  # what comes back, (n, d); the server sees its mean
    g: Vector


@dataclass(frozen=True)
class MomentumSGD:
    """v = beta v + mean gradient of S clients over b rows each; x -= eta v."""

    title: ClassVar[str] = "MomentumSGD"
    paper: ClassVar[str] = "Polyak 1964"
    memory: ClassVar[None] = None  # clients remember nothing
    S: int = 20
    eta: float = 0.02
    beta: float = 0.8
    b: int | None = None

    @property
    def step(self) -> float:
        return self.eta / (1 - self.beta)

    def with_step(self, step: float) -> "MomentumSGD":
        return replace(self, eta=step * (1 - self.beta))

    def init(self, x0: Vector, N: int) -> State:
        checks.sampled(self.title, self.S, N)
        return State(x0, 0.0 * x0, N)

    def call(self, state: State, draws: Draws) -> Call:
        return Call(draws.clients(state.N, self.S), Ask(state.x))

    def client(self, message: Ask, oracle: Oracle, memory: None) -> tuple[Reply, None]:
        return Reply(oracle.grad(message.x, oracle.batch(self.b))), memory

    def server(self, state: State, replies: Replies) -> State:
        v = self.beta * state.v + replies.mean.g
        return State(state.x - self.eta * v, v, state.N)


if __name__ == "__main__":
    import fedpage as fp

    problem = fp.RobustRegression(fp.load("census"), clients=3250)
    print(fp.simulate(problem, MomentumSGD(), rounds=500, seed=0))
