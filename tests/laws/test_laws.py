"""The laws: properties that every method must have. Wrong implementations fail here."""

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from rows import PAPER, ROWS, Setting
from support import (
    Unfused,
    after,
    all_gradients,
    each_round,
    make_method,
    quadratic,
    refusal,
    softmax,
    uneven,
)

import fedpage as fp
from fedpage.engine.aggregation import ClippedMean
from fedpage.engine.simulate import Simulation

NAMES = list(ROWS)
GRADIENT_DESCENT = [name for name, row in ROWS.items() if row.descent is not None]
RESTING = [name for name, row in ROWS.items() if row.rests]
EXACT = [name for name, row in ROWS.items() if row.reaches]
BIASED = [name for name, row in ROWS.items() if not row.reaches]
PROBLEMS = {
    "quadratic": lambda: quadratic(noise=1.0),
    "robust": lambda: uneven("robust"),
    "logistic": lambda: uneven("logistic"),
    "nonconvex": lambda: uneven("logistic-nonconvex"),
    "squares-by-size": lambda: uneven("squares", weights="size"),
    "softmax": lambda: softmax("softmax-nonconvex"),
}


def spread(names: list[str], kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Pair methods with kinds of problems: the paper's with all, each other with one in turn.

    The other methods use the same oracles and local steps, so that every kernel is seen by some.
    """
    turn = itertools.cycle(kinds := list(kinds))
    return [(name, kind) for name in names for kind in (kinds if name in PAPER else [next(turn)])]


def gradient_descent(problem, step: float, rounds: int) -> np.ndarray:
    x = np.zeros(problem.d)
    for _ in range(rounds):
        x = x - step * problem.grad(x)
    return x


# 1. Reduction to gradient descent


@pytest.mark.parametrize(("name", "kind"), spread(GRADIENT_DESCENT, PROBLEMS))
def test_one_full_local_step_of_all_clients_is_gradient_descent(name, kind):
    problem = PROBLEMS[kind]()
    method = make_method(name, problem.N, 1, 0.05, full=True)
    run = after(problem, method, 15 * ROWS[name].descent)
    np.testing.assert_allclose(run.x, gradient_descent(problem, 0.05, 15), rtol=0, atol=1e-12)


# 2. The optimum


def simulate_at_optimum(name: str, problem: fp.Quadratic, K: int) -> Simulation:
    """Return a run whose server state and client states are stationary at x*."""
    method = make_method(name, 3, K, 0.2, full=True)
    run = Simulation(problem, method, seed=2, options=fp.RunOptions(x0=problem.x_star))
    rest = ROWS[name].rest
    if rest is not None:
        rest(run, all_gradients(problem, problem.x_star))
    return run


@pytest.mark.parametrize("name", RESTING)
def test_exact_methods_stay_at_the_optimum(name):
    problem = quadratic()
    run = simulate_at_optimum(name, problem, K=6)
    for _ in range(40):
        run.step()
    np.testing.assert_allclose(run.x, problem.x_star, rtol=0, atol=1e-11)


# 3. Convergence


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_reach_the_optimum_of_heterogeneous_quadratics(name):
    problem, row = quadratic(), ROWS[name]
    method = row.make(Setting(2, 4, 0.1 * row.scale, full=True))
    history = fp.simulate(problem, method, rounds=1500, seed=5, record_every=0)
    np.testing.assert_allclose(history.x, problem.x_star, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", BIASED)
def test_biased_methods_do_not_reach_the_optimum(name):
    problem = quadratic()
    method = make_method(name, 2, 4, 0.1, full=True)
    history = fp.simulate(problem, method, rounds=1500, seed=5, record_every=0)
    assert np.linalg.norm(history.x - problem.x_star) > 1e-2


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_solve_logistic_regression(name):
    problem = fp.LogisticRegression(
        fp.load("census", rows=1000, skew=0.5), clients=50, reg="l2", alpha=0.05
    )
    row = ROWS[name]
    method = row.make(Setting(5, 5, 0.3 * row.scale, full=True))
    history = fp.simulate(problem, method, rounds=2500, seed=1, record_every=0)
    assert history.last("grad_norm") < 1e-5


# 4. Invariants


@pytest.mark.parametrize("cast", [{}, {"up": "float32", "down": "float32"}], ids=["own", "cast"])
@pytest.mark.parametrize("faults", [None, fp.Faults(dropout=0.2, lost=0.1, nan=0.1, late=0.1)])
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.mean])
def test_the_server_keeps_the_mean_of_the_clients_vectors(name, faults, cast):
    """Clients keep what they sent, so that neither casts nor lost replies break this."""
    ours, theirs = ROWS[name].mean
    method = make_method(name, 4, 3, 0.05)
    given = {k: v for k, v in cast.items() if str(getattr(method, k, "")) == "none"}
    policy = fp.Policy(retries=0, full_retries=99)  # EF21-BC needs everyone
    for run in each_round(
        uneven(), dataclasses.replace(method, **given), 25, faults=faults, policy=policy
    ):
        table = getattr(run.client_states.get_all(), theirs)
        vector = getattr(run.state, ours)
        np.testing.assert_allclose(vector, table.mean(axis=0), rtol=0, atol=1e-12)
    assert np.linalg.norm(vector) > 1e-3


@pytest.mark.parametrize("up", ["none", "float32", "bfloat16"])
@pytest.mark.parametrize(
    ("method", "name", "faults"),
    [
        (fp.VRLSGD(K=4, eta_l=0.05, b=2), "delta", None),
        (fp.Scaffnew(p=0.25, eta=0.05, b=2), "h", None),
        (fp.Scaffnew(p=0.25, eta=0.05, b=2), "h", fp.Faults(lost=0.1)),
    ],
)
def test_corrections_sum_to_zero(method, name, faults, up):
    method = dataclasses.replace(method, up=up)
    for run in each_round(uneven("logistic-nonconvex"), method, 30, seed=3, faults=faults):
        corrections = getattr(run.client_states.get_all(), name)
        assert np.abs(corrections.sum(axis=0)).max() < 1e-10
    assert np.linalg.norm(corrections) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_where_any_mean_is_taken_no_sum_outlives_a_round(name):
    """Clients send changes and keep nothing; other methods refuse a trimmed or clipped mean."""
    method = make_method(name, 3, 2, 0.1)
    if method.takes_any_mean:
        assert method.client_state is None
        assert {field for reply in method.messages.values() for field in reply._fields} == {"dy"}
    else:
        options = fp.RunOptions(aggregation=ClippedMean(1e9))
        text = refusal(Simulation, quadratic(), method, seed=0, options=options)
        assert "needs the mean of the replies" in text


@pytest.mark.parametrize("p", [0.1, 0.3, 1.0])
def test_periodic_full_rounds_come_every_one_over_p_rounds(p):
    problem = quadratic()
    history = fp.simulate(problem, fp.PeriodicFedPAGE(S=2, p=p), rounds=40, seed=0, record_every=1)
    full = np.flatnonzero(np.diff(history["full_rounds"]))
    assert full.tolist() == list(range(0, 40, round(1 / p)))


def test_s_local_svrg_refreshes_with_probability_q_after_local_steps():
    problem = quadratic()
    for q, expected in ((1.0, 0.5), (0.25, 0.2)):  # a cycle: a refresh, 1/q rounds
        run = Simulation(problem, fp.SLocalSVRG(K=2, eta_l=0.01, q=q), seed=0)
        refreshed = 0
        for _ in range(600):
            refreshed += not run.state.stepped and run.costs.round > 0
            run.step()
        assert refreshed / 600 == pytest.approx(expected, abs=0.04)
    rows = Simulation(uneven(), fp.SLocalSVRG(K=5), seed=0)
    rows.step()
    assert rows.state.rows == pytest.approx(20.0)  # 240 rows at 12 clients: q = min(1, K/M) = 1/4


# 5. One client alone equals its row in the batch


@pytest.mark.parametrize(("name", "kind"), spread(NAMES, PROBLEMS))
def test_one_client_alone_equals_its_row_exactly(name, kind):
    problem = PROBLEMS[kind]()
    method = make_method(name, 4, 3, 0.1)
    run = Simulation(problem, method, seed=7)
    seen = set()
    for _ in range(12):
        draws = run.draws()
        call = method.call(run.state, draws)
        seen.add(type(call.message))
        (together,) = run.transport.request(call, draws, 0)
        for i, client in enumerate(call.clients):
            one = call._replace(clients=np.array([client]), cohort=call.clients)
            (alone,) = run.transport.request(one, draws, 0)
            for whole, single in zip(together.replies, alone.replies, strict=True):
                assert whole[i].tobytes() == single[0].tobytes()
            if together.client_states is not None:
                both = zip(together.client_states, alone.client_states, strict=True)
                for whole, single in both:
                    assert whole[i].tobytes() == single[0].tobytes()
        run.step()
    assert len(seen) == (ROWS[name].messages or len(method.messages))


# 6. Fused kernels agree with the local steps


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"), spread(NAMES, [kind for kind in PROBLEMS if kind != "quadratic"])
)
def test_fused_kernels_agree_with_the_local_steps(name, kind, full):
    problem = PROBLEMS[kind]()
    method = make_method(name, 4, 5, 0.2, full=full)
    fused, plain = Simulation(problem, method, seed=9), Simulation(Unfused(problem), method, seed=9)
    for _ in range(20):
        fused.step()
        plain.step()
        np.testing.assert_allclose(fused.x, plain.x, rtol=0, atol=1e-12)
    assert fused.costs == plain.costs


def test_one_hot_kernels_have_the_bits_of_the_general_kernels():
    """Data whose entries are all 1 uses kernels that read no values."""
    data = fp.load("census", rows=200)
    problem = fp.RobustRegression(data, clients=10)
    general = fp.RobustRegression(data, clients=10)
    ones = np.ones(len(general._rows_and_targets[1]))
    general._rows_and_targets = (
        *general._rows_and_targets[:2],
        ones,
        *general._rows_and_targets[3:],
    )
    general._kernel_data = (*general._rows_and_targets, *general._kernel_data[6:])
    assert problem._rows_and_targets[2] is None
    for name in PAPER:
        method = make_method(name, 3, 4, 0.1)
        one_hot = fp.simulate(problem, method, rounds=20, seed=0)
        assert one_hot.same(fp.simulate(general, method, rounds=20, seed=0))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_obeys_the_public_laws(name):
    report = fp.check_method(make_method(name, 4, 3, 0.05))
    assert report.passed
    assert "FAILS" not in str(report)
