"""The clients' second-order dissimilarity delta, planted and estimated."""

import math

import numpy as np
import pytest
from support import analyses, uneven

import fedpage as fp
from fedpage import theory
from fedpage.theory import constants


def planted(eigenvalues: list[float]) -> fp.Quadratic:
    """Make clients A + E and A - E, where E has these eigenvalues: delta = max |eigenvalue|."""
    d = len(eigenvalues)
    Q, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(d, d)))
    E = (Q * np.array(eigenvalues)) @ Q.T
    A = np.stack([3 * np.eye(d) + sign * E for sign in (1, 1, -1, -1)])
    return fp.Quadratic(A, np.random.default_rng(4).normal(size=(4, 2, d)))


def hidden(problem):
    """Return the problem as one whose Hessians are not known."""

    class Hidden:
        def __getattr__(self, name):
            return getattr(problem, name)

    return Hidden()


@pytest.mark.parametrize("eigenvalues", [[0.5], [0.1, -0.9, 0.3], [0.2, 0.2, 0.2, 0.0]])
def test_planted_dissimilarities_are_found(eigenvalues):
    problem, delta = planted(eigenvalues), max(map(abs, eigenvalues))
    assert theory.dissimilarity(problem, []) == pytest.approx(delta, rel=1e-12)
    x = np.ones(problem.d)
    assert constants._dense_dissimilarity(problem, x) == pytest.approx(delta, rel=1e-8)
    assert constants._power_dissimilarity(problem, x, 2000, 1e-13) == pytest.approx(delta, rel=1e-5)
    assert theory.dissimilarity(hidden(problem), [x]) == pytest.approx(delta, rel=1e-8)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_least_squares_have_the_dissimilarity_of_their_second_moments(weights):
    problem = uneven("squares", weights=weights)
    rows = problem.data.to_dense()
    each = []
    for i in range(problem.N):
        own = rows[problem.partition.rows(i)]
        hessian = own.T @ own / len(own) + 0.01 * np.eye(problem.d)
        each.append(problem._scale[i] * hessian)
    deviations = np.array(each) - np.mean(each, axis=0)
    squares = np.einsum("nij,njk->ik", deviations, deviations) / problem.N
    delta = math.sqrt(np.linalg.eigvalsh(squares)[-1])
    for x in (np.zeros(problem.d), np.full(problem.d, 0.3)):
        assert theory.dissimilarity(problem, [x]) == pytest.approx(delta, rel=1e-6)
        power = constants._power_dissimilarity(problem, x, 100, 1e-4)
        assert power == pytest.approx(delta, rel=1e-2)
        assert power <= delta * (1 + 1e-8)
    assert delta <= problem.smoothness().average


def test_the_largest_value_of_the_points_is_returned():
    problem = uneven("robust")
    near, far = np.zeros(problem.d), np.full(problem.d, 5.0)
    each = [theory.dissimilarity(problem, [x]) for x in (near, far)]
    assert each[0] != each[1]
    assert theory.dissimilarity(problem, [near, far]) == max(each)
    assert theory.estimate(problem).delta <= problem.smoothness().average


@pytest.mark.parametrize("dense", [1e9, 0.0])
def test_overflow_is_infinite(dense, monkeypatch):
    monkeypatch.setattr(constants, "_DENSE", dense)
    data = fp.Dataset.from_arrays(np.array([[1e200], [-3e200], [2e200], [1e200]]), [1, -1, 1, -1])
    problem = fp.LeastSquares(data, clients=2)
    assert theory.dissimilarity(problem, [np.ones(1)]) == math.inf


def test_a_convex_plan_has_the_bounds_of_s_dane():
    setting = theory.Setting(N=100, S=5, K=4, M=20, epsilon=0.01, L=8.0, R2=3.0, delta=0.5)
    rows = {row.method: row for row in analyses(setting, d=10, convex=True)}
    plain, fast = rows["S-DANE"], rows["Acc-S-DANE"]
    assert plain.kind == fast.kind == "bound"
    assert plain.rounds == 2 * 150  # lam R2/(2 epsilon) pairs of rounds, lam = 2 delta
    assert fast.rounds == 2 * 25  # sqrt(2 lam R2/epsilon)
    assert plain.steps == {"lam": 1.0, "eta_l": 0.125, "K": 25.0}
    problem = fp.LogisticRegression(fp.load("census", rows=2000), clients=100)
    method = fp.METHODS["s-dane"](K=25)
    history = fp.simulate(problem, method, rounds=10, seed=0, record_every=0)
    d = problem.d / 10
    assert history.last("clients") / 10 == plain.clients / plain.rounds
    assert history.last("bytes_up") / 10 == pytest.approx(d * plain.bytes_up / plain.rounds)
    assert history.last("bytes_down") / 10 == pytest.approx(d * plain.bytes_down / plain.rounds)
    assert history.last("gradients_per_client") / 10 == pytest.approx(
        plain.gradients_per_client / plain.rounds
    )
    assert "S-DANE" not in {row.method for row in analyses(setting, d=10)}


def test_steps_of_theory_take_mu_from_the_l2_regulariser():
    from fedpage.methods.svrp import SVRP
    from fedpage.theory.steps import theory_method

    data, entry = fp.load("census", rows=240), fp.METHODS["svrp"]
    problem = fp.LogisticRegression(data, clients=12, reg="l2", alpha=0.1)
    assert theory_method(entry, {"S": 3}, problem) == SVRP.from_theory(problem, mu=0.1, S=3)
    for reg in ("none", "nonconvex"):
        other = fp.LogisticRegression(data, clients=12, reg=reg)
        with pytest.raises(fp.InputError, match="SVRP needs mu"):
            theory_method(entry, {"S": 3}, other)
