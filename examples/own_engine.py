"""An engine of one's own, complete: every client is a thread with its own rows and its own client_state.

The server sees letters, as it would over a network. What is done with them (validation, asking again, the mean in
client order, costs) is the base class's, and so the run has the same bits as `fp.simulate`'s.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.engine.base import Server, mean_evaluations
from fedpage.engine.loop import Run
from fedpage.engine.policy import Answer, Letter


class Site:
    """One client: it knows its own rows, and remembers what the method lets it remember."""

    def __init__(self, number, problem, method, seed):
        self.me, self.problem, self.method, self.seed = np.array([number]), problem, method, seed
        fields = () if method.client_state is None else method.client_state._fields
        self.client_state = (
            method.client_state(*[np.zeros((1, problem.d)) for _ in fields]) if fields else None
        )

    def work(self, round, message):
        """The reply to a message, what to remember if it counts, and what it cost."""
        oracle = self.problem.oracle(
            self.me, RoundDraws(self.seed, round)
        )  # random numbers are functions of the seed
        reply, client_state = self.method.client(message, oracle, self.client_state)
        return reply, client_state, oracle.gradients, oracle.evaluations

    def evaluate(self, x):
        return self.problem.evaluate_clients(self.me, x)


class Threads(Server):
    """Says how clients are reached (`ask`), what they keep (`accept`), and how x is measured."""

    def __init__(self, problem, method, *, seed):
        super().__init__(method, problem.N, np.zeros(problem.d), seed=seed)
        self.sites = [Site(number, problem, method, seed) for number in range(problem.N)]
        self.pool = ThreadPoolExecutor(4)

    def ask(self, clients, message, wave):
        now, letters, gradients, evaluations = self.costs.round, [], 0, 0
        waiting = {int(c): self.pool.submit(self.sites[c].work, now, message) for c in clients}
        for client, future in waiting.items():
            try:
                reply, client_state, some, more = future.result(timeout=60)
            except Exception as error:  # the round's policy decides what happens without it
                letters.append(Letter(client, now, None, error=f"{type(error).__name__}: {error}"))
                continue
            gradients, evaluations = gradients + some, evaluations + more
            kept = (
                None
                if client_state is None
                else type(client_state)(*(part[0] for part in client_state))
            )
            letters.append(
                Letter(client, now, type(reply)(*(part[0] for part in reply)), client_state=kept)
            )
        return [Answer(clients, letters=letters, gradients=gradients, evaluations=evaluations)]

    def accept(self, clients, client_state):
        for row, client in enumerate(clients):
            if client_state is not None:
                self.sites[client].client_state = type(client_state)(
                    *(part[row : row + 1] for part in client_state)
                )

    def evaluate(self):
        each = [site.evaluate(self.x) for site in self.sites]
        return mean_evaluations((one.losses for one in each), (one.gradients for one in each))


def run(problem, method, *, rounds, seed):
    engine, history = (
        Threads(problem, method, seed=seed),
        fp.History({"method": {"name": method.name}}),
    )
    whole = Run(engine, history, rounds=rounds, record_every=10)
    engine.rounds.tell = whole.happened
    return whole.go()


if __name__ == "__main__":
    problem = fp.RobustRegression(fp.load("census", rows=400), clients=20)
    for method in (fp.FedPAGE(S=4, K=5, eta_g=0.1), fp.SCAFFOLD(S=8, K=5, eta_l=0.02, b=4)):
        mine = run(problem, method, rounds=60, seed=0)
        simulated = fp.simulate(
            problem, method, rounds=60, seed=0, options=fp.RunOptions(evaluate="per_client")
        )
        print(mine, "- bit for bit the simulator's:", mine.same(simulated))
