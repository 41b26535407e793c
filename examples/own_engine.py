"""Define an engine of your own: every client is a thread with its own rows and its own state.

The server knows a client only by its replies, as over a network. Retries, fallback, the mean in
client order and the costs are part of `Engine`, so the run has the same bits as in `fp.simulate`.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import fedpage as fp
from fedpage.codecs.message_codec import MessageCodec
from fedpage.core.random import RoundDraws
from fedpage.engine.loop import Run
from fedpage.engine.round import Engine, mean_evaluations
from fedpage.engine.transport import Chunk, Rejection


class Client:
    """A client: its rows, and the state that the method lets it keep."""

    def __init__(self, number, problem, method, seed):
        self.number, self.problem, self.method, self.seed = number, problem, method, seed
        state = method.client_state
        self.state = state and state(*[np.zeros((1, problem.d)) for _ in state._fields])
        self.codec = MessageCodec(method, problem.d, np.dtype(float))

    def work(self, message, round):
        """Compute the reply and the next state, and count gradients and evaluations."""
        draws = RoundDraws(self.seed, round)  # random numbers are functions of seed and round
        self_only = np.array([self.number])
        oracle = self.problem.oracle(self_only, draws)
        reply, state = self.method.client(message, oracle, self.state)
        reply, state = self.codec.finish(message, reply, state, self_only, draws)  # the codec
        return reply, state, oracle.gradients, oracle.evaluations

    def evaluate(self, x):
        return self.problem.evaluate_clients(np.array([self.number]), x)


class ThreadTransport:
    """Send messages to clients, validate their replies, and commit their states."""

    is_reliable = False  # a client may fail, so states are committed when the round has succeeded

    def __init__(self, clients, method, d):
        self.clients, self.pool = clients, ThreadPoolExecutor(4)
        self.codec = MessageCodec(method, d, np.dtype(float))

    def request(self, call, draws, attempt):
        futures = [
            self.pool.submit(self.clients[client].work, call.message, draws.round)
            for client in call.clients
        ]
        valid, rejected, gradients, evaluations = [], [], 0, 0
        for client, future in zip(call.clients.tolist(), futures, strict=True):
            try:
                reply, state, *costs = future.result(timeout=60)
            except Exception as error:  # the round's policy decides what happens now
                rejected.append(Rejection(client, f"{type(error).__name__}: {error}"))
                continue
            gradients, evaluations = gradients + costs[0], evaluations + costs[1]
            fault = self.codec.replies[type(call.message)].find_fault(reply, 1)
            if fault:
                rejected.append(Rejection(client, f"the reply {fault}"))
            elif not all(np.isfinite(part).all() for part in reply):
                row = type(reply)(*(part[0] for part in reply))
                rejected.append(Rejection(client, "not finite", row))
            else:
                valid.append((client, reply, state))
        yield Chunk(
            requested=call.clients,
            clients=np.array([client for client, _, _ in valid], dtype=np.int64),
            replies=stack([reply for _, reply, _ in valid]),
            client_states=stack([state for _, _, state in valid]),
            gradients=gradients,
            evaluations=evaluations,
            received=len(futures),
            rejected=rejected,
        )

    def commit(self, clients, client_states):
        """Store the new states of clients whose replies were accepted."""
        for row, client in enumerate(clients):
            if client_states is not None:
                fields = [part[row : row + 1] for part in client_states]
                self.clients[client].state = type(client_states)(*fields)


def stack(rows):
    """Join NamedTuples of (1, d) arrays to one of (n, d) arrays."""
    if not rows or rows[0] is None:
        return None
    return type(rows[0])(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))


class ThreadEngine(Engine):
    """Say how clients are reached and how the model is evaluated."""

    def __init__(self, problem, method, *, seed):
        self.clients = [Client(i, problem, method, seed) for i in range(problem.N)]
        transport = ThreadTransport(self.clients, method, problem.d)
        x0 = np.zeros(problem.d)
        super().__init__(method, problem.N, x0, transport, seed=seed)

    def evaluate(self):
        each = [client.evaluate(self.x) for client in self.clients]
        losses, gradients = (one.losses for one in each), (one.gradients for one in each)
        return mean_evaluations(losses, gradients)


def run(problem, method, *, rounds, seed):
    engine = ThreadEngine(problem, method, seed=seed)
    history = fp.History({"method": {"name": method.name}})
    return Run(engine, history, rounds=rounds, record_every=10).run()


if __name__ == "__main__":
    problem = fp.RobustRegression(fp.load("census", rows=400), clients=20)
    for method in (fp.FedPAGE(S=4, K=5, eta_g=0.1), fp.SCAFFOLD(S=8, K=5, eta_l=0.02, b=4)):
        mine = run(problem, method, rounds=60, seed=0)
        options = fp.RunOptions(evaluate="per_client")
        simulated = fp.simulate(problem, method, rounds=60, seed=0, options=options)
        print(mine, "- same bits as the simulator:", mine.same(simulated))
