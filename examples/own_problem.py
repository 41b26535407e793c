"""Define an objective of your own: a robust centre of points, f_ij(x) = sqrt(1 + |x - a_ij|^2)."""

import numpy as np

import fedpage as fp


class RobustCentre(fp.RowProblem):
    """Find a robust centre of the clients' points, one (M_i, d) array for each client."""

    name = "robust centre"

    def __init__(self, points: list[np.ndarray]) -> None:
        super().__init__(sizes=[len(p) for p in points], d=points[0].shape[1])
        self.points = points

    def client_loss(self, client: int, x: np.ndarray) -> float:
        return float(np.sqrt(1 + ((x - self.points[client]) ** 2).sum(axis=1)).mean())

    def client_grad(self, client: int, rows: np.ndarray | None, x: np.ndarray) -> np.ndarray:
        points = self.points[client] if rows is None else self.points[client][rows]
        away = x - points
        return (away / np.sqrt(1 + (away**2).sum(axis=1, keepdims=True))).mean(axis=0)

    def smoothness(self) -> fp.Smoothness:
        return fp.Smoothness(1.0, 1.0, 1.0, 1.0)  # Hessians are at most the identity


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(m, 3)) + rng.normal(size=3) for m in rng.integers(1, 30, size=40)]
    problem = RobustCentre(clients)
    for method in (fp.FedPAGE(S=4, K=5, eta_g=0.5), fp.FedAvg(S=8, K=5, eta_l=0.1, b=4)):
        print(fp.simulate(problem, method, rounds=300, seed=0))
