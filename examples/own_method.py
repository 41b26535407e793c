"""Define a method of your own: minibatch SGD with momentum on the server."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from fedpage.core.types import Call, Vector


class State(NamedTuple):
    """What the server knows: the model, the momentum and the number of clients."""

    x: Vector
    v: Vector
    N: int


class Ask(NamedTuple):
    """What is sent to a client. The fields are counted."""

    x: Vector


class Reply(NamedTuple):
    """What clients send back, one row for each client. The server sees the mean."""

    g: Vector


@dataclass(frozen=True)
class MomentumSGD:
    """v = beta v + mean gradient of S clients over b rows each; x -= eta v."""

    name: ClassVar[str] = "MomentumSGD"
    paper: ClassVar[str] = "Polyak 1964"
    messages: ClassVar[dict[type, type]] = {Ask: Reply}
    client_state: ClassVar[None] = None  # clients store nothing
    S: int = 20
    eta: float = 0.02
    beta: float = 0.8
    b: int | None = None

    @property
    def effective_step(self):
        return self.eta / (1 - self.beta)

    def with_step(self, step):
        return replace(self, eta=step * (1 - self.beta))

    def init(self, x0, N):
        return State(x0, 0.0 * x0, N)

    def call(self, state, draws):
        return Call(draws.clients(state.N, self.S), Ask(state.x))

    def client(self, message, oracle, client_state):
        return Reply(oracle.grad(message.x, oracle.batch(self.b))), client_state

    def server(self, state, replies):
        v = self.beta * state.v + replies.mean.g
        return State(state.x - self.eta * v, v, state.N)


if __name__ == "__main__":
    import fedpage as fp

    problem = fp.RobustRegression(fp.load("census"), clients=3250)
    print(fp.simulate(problem, MomentumSGD(), rounds=500, seed=0))
