"""The reference solution of problems, its cache, and the metrics that compare with it."""

import math

import numpy as np
import pytest
from support import quadratic, refusal

import fedpage as fp
from fedpage.data import registry
from fedpage.problems import reference as module
from fedpage.runs.fingerprint import fingerprint

BOTH = ["f_minus_fstar", "distance_to_optimum"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Keep solutions in a folder of the test's own."""
    folder = tmp_path / "reference"
    monkeypatch.setattr(registry, "derived_dir", lambda kind: folder)
    return folder


@pytest.fixture(scope="module")
def data():
    """Make rows of two classes, whose last feature is the sum of two others."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 5))
    X = np.column_stack([X, X[:, 0] + X[:, 1]])
    return fp.Dataset.from_arrays(X, np.where(X[:, 0] + rng.normal(size=120) > 0, 1, -1))


def counts():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    return fp.Dataset("counts", X, rng.poisson(np.exp(0.3 * X[:, 0])).astype(float))


def three_classes():
    rng = np.random.default_rng(0)
    return fp.Dataset.from_arrays(rng.normal(size=(90, 4)), rng.choice(["a", "b", "c"], 90))


PROBLEMS = {
    "logistic": lambda d: fp.LogisticRegression(d, 10, alpha=1e-3, weights="size"),
    "squares": lambda d: fp.LeastSquares(counts(), 5, intercept=True),
    "singular squares": lambda d: fp.LeastSquares(d, 10),
    "squared hinge": lambda d: fp.SquaredHinge(d, 10, alpha=0.01),
    "huber": lambda d: fp.Huber(counts(), 5),
    "poisson": lambda d: fp.Poisson(counts(), 5),
    "smoothed l1": lambda d: fp.LogisticRegression(d, 10, reg="smoothed-l1", alpha=0.01),
    "softmax": lambda d: fp.Softmax(three_classes(), 5, alpha=0.01),
    "softmax without regulariser": lambda d: fp.Softmax(three_classes(), 5),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_convex_problems_are_solved_to_machine_precision(name, data, cache):
    problem = PROBLEMS[name](data)
    found = fp.reference_solution(problem)
    assert found.is_minimiser
    assert found.grad_norm < 1e-14
    assert found.grad_norm == pytest.approx(np.linalg.norm(problem.grad(found.x)), abs=1e-16)
    assert found.loss == problem.loss(found.x)
    near = found.x + 1e-3 * np.random.default_rng(0).normal(size=problem.d)
    assert problem.loss(near) > found.loss


def test_many_parameters_are_solved_by_conjugate_gradients(data, cache, monkeypatch):
    problem = fp.LogisticRegression(data, 10, alpha=0.01)
    dense = fp.reference_solution(problem)
    monkeypatch.setattr(module, "_DENSE", 3)
    by_cg = module._solve(problem, True)
    assert by_cg.grad_norm < 1e-14
    np.testing.assert_allclose(by_cg.x, dense.x, atol=1e-12)


def test_a_quadratic_has_a_closed_form():
    problem = quadratic()
    found = fp.reference_solution(problem)
    assert found.is_minimiser
    np.testing.assert_array_equal(found.x, problem.x_star)
    for A in (np.zeros((2, 3, 3)), -np.stack([np.eye(3)] * 2)):
        flat = fp.Quadratic(A, np.ones((2, 1, 3)))
        assert "not positive definite" in refusal(fp.reference_solution, flat)


def test_other_problems_have_a_stationary_point(data, cache):
    problem = fp.RobustRegression(data, 10)
    found = fp.reference_solution(problem)
    assert not found.is_minimiser
    assert found.grad_norm < 1e-5
    assert found.loss < problem.loss(np.zeros(problem.d))


def test_a_network_has_none():
    torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'fedpage[torch]'")
    rows = (torch.ones(4, 3), torch.zeros(4, 1))
    problem = fp.TorchProblem(torch.nn.Linear(3, 1), torch.nn.MSELoss(), [rows, rows])
    assert "a start of its own" in refusal(fp.reference_solution, problem)


# The cache


@pytest.fixture
def solved(monkeypatch):
    """Count how often a problem is solved."""
    calls = []
    solve = module._solve

    def count(problem, convex):
        calls.append(problem)
        return solve(problem, convex)

    monkeypatch.setattr(module, "_solve", count)
    return calls


def test_a_solution_is_computed_once(data, cache, solved):
    make = PROBLEMS["logistic"]
    problem = make(data)
    first = fp.reference_solution(problem)
    assert fp.reference_solution(problem) is first
    again = fp.reference_solution(make(data))
    assert len(solved) == 1
    assert len(list(cache.iterdir())) == 1
    np.testing.assert_array_equal(again.x, first.x)
    assert again[1:] == first[1:]
    # what is recorded does not matter, what is minimised does
    options = {"alpha": 1e-3, "weights": "size"}
    fp.reference_solution(
        fp.LogisticRegression(data, 10, metrics="auc", held_out=data[:20], **options)
    )
    assert len(solved) == 1
    fp.reference_solution(fp.LogisticRegression(data, 10, alpha=2e-3, weights="size"))
    fp.reference_solution(fp.LogisticRegression(data, 20, alpha=1e-3, weights="size"))
    fp.reference_solution(fp.LogisticRegression(data, 10, alpha=1e-3))
    assert len(solved) == 4
    # a scaled problem is another one
    assert fp.reference_solution(problem.rescale(2.0)).loss == pytest.approx(
        2 * problem.loss(first.x) - 0.5 * 1e-3 * first.x @ first.x, rel=0.2
    )
    assert len(solved) == 5


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_file_is_not_used(data, cache, solved, damage):
    make = PROBLEMS["logistic"]
    first = fp.reference_solution(make(data))
    (path,) = cache.iterdir()
    raw = path.read_bytes()
    if damage == "other":  # intact, but not a solution of this problem
        module._write(make(data), first._replace(x=first.x + 1.0))
    else:
        damaged = {"cut": raw[:-8], "flip": raw[:-3] + b"abc", "empty": b""}[damage]
        path.write_bytes(damaged)
    again = fp.reference_solution(make(data))
    np.testing.assert_array_equal(again.x, first.x)
    assert len(solved) == 2
    assert path.read_bytes() == raw


def test_a_cache_that_cannot_be_written_only_costs_time(data, tmp_path, monkeypatch, solved):
    file = tmp_path / "file"
    file.write_text("not a directory")
    monkeypatch.setattr(registry, "derived_dir", lambda kind: file / "reference")
    make = PROBLEMS["logistic"]
    assert fp.reference_solution(make(data)).is_minimiser

    def no_home(kind):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(registry, "derived_dir", no_home)
    assert fp.reference_solution(make(data)).is_minimiser
    assert len(solved) == 2


def test_problems_without_a_digest_of_their_data_are_not_kept(cache):
    class Own(fp.RowProblem):
        convex = True

        def client_loss(self, client, x):
            return float((x - client) @ (x - client)) / 2

        def client_grad(self, client, rows, x):
            return x - client

    found = fp.reference_solution(Own([1, 1, 1], 2))
    assert found.is_minimiser
    np.testing.assert_allclose(found.x, [1.0, 1.0], atol=1e-15)
    assert not cache.exists()


# Metrics


def test_runs_record_the_distance_to_the_solution(data, cache):
    problem = fp.LogisticRegression(data, 10, alpha=0.1, metrics=BOTH)
    best = fp.reference_solution(problem)
    method = fp.FedAvg(S=10, K=1, eta_l=1.0)
    run = fp.simulate(problem, method, rounds=60, seed=0)
    np.testing.assert_array_equal(run["f_minus_fstar"][:3], run["loss"][:3] - best.loss)
    assert run.last("distance_to_optimum") == pytest.approx(np.linalg.norm(run.x - best.x))
    assert (run["f_minus_fstar"] >= 0).all()
    assert run.best("f_minus_fstar") == run["f_minus_fstar"].min()
    assert math.isfinite(run.cost_to("f_minus_fstar:1e-2,hold=0"))
    reference = run.meta["reference"]
    assert reference["f_star"] == best.loss
    assert reference["grad_norm"] == best.grad_norm < 1e-14
    assert reference["minimiser"] is True
    by_client = fp.simulate(
        problem, method, rounds=60, seed=0, options=fp.RunOptions(evaluate="per_client")
    )
    for name in BOTH:
        np.testing.assert_allclose(by_client[name], run[name], rtol=1e-9, atol=1e-15)
    plain = fp.simulate(fp.LogisticRegression(data, 10, alpha=0.1), method, rounds=60, seed=0)
    assert "reference" not in plain.meta
    np.testing.assert_array_equal(plain["loss"], run["loss"])


def test_rounding_does_not_make_the_gap_negative():
    base = quadratic()
    problem = fp.Quadratic(base.A, base.b, metrics=BOTH)
    found = problem.evaluate(problem.x_star)
    assert found["f_minus_fstar"] == 0.0
    assert found["distance_to_optimum"] == 0.0
    gap = fp.METRICS["f_minus_fstar"].function
    x = np.zeros(2)
    assert gap(-3.0 - 2e-12, x, -3.0, x) == 0.0
    assert gap(-3.0 + 2e-12, x, -3.0, x) > 0.0
    assert gap(-3.1, x, -3.0, x) == pytest.approx(-0.1)
    assert math.isinf(gap(math.inf, x, -3.0, x))
    assert math.isnan(gap(math.nan, x, -3.0, x))


def test_a_resumed_run_does_not_compare_the_reference(data, cache, tmp_path):
    problem = fp.LogisticRegression(data, 10, alpha=0.1, metrics=BOTH)
    options = {"seed": 0, "out": tmp_path / "run"}
    fp.simulate(problem, fp.FedAvg(S=5), rounds=20, **options)
    meta = {"seed": 0, "versions": {}, "reference": {"f_star": 1.0}}
    assert fingerprint(meta, {}) == {"seed": 0, "code": {}}
    again = fp.simulate(
        fp.LogisticRegression(data, 10, alpha=0.1, metrics=BOTH), fp.FedAvg(S=5), rounds=20,
        **options, options=fp.RunOptions(resume=True),
    )  # fmt: skip
    assert again.last("round") == 20
