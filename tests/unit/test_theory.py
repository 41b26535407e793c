"""Check the theorems against numbers computed by hand, and their bounds against runs."""

import math

import numpy as np
import pytest
from support import quadratic, uneven

import fedpage as fp
from fedpage import theory
from fedpage.core.errors import InputError
from fedpage.core.random import RoundDraws

# Theorems against numbers computed by hand


def test_theorem_1():
    """N=100, S=10: p=0.1, (1-p)/(pS)=0.9. L=2, D0=3, eps=0.1."""
    tuned = theory.nonconvex_page(L=2.0, N=100, S=10, D0=3.0, epsilon=0.1)
    assert tuned.method.eta_g == pytest.approx(1 / (2 * (1 + math.sqrt(0.9))), rel=1e-14)
    assert tuned.rounds == pytest.approx(2 * 3 * 2 * (1 + math.sqrt(0.9)) / 0.01, rel=1e-12)
    assert (tuned.method.S, tuned.method.p, tuned.method.b1) == (10, 0.1, None)
    printed = theory.nonconvex_page(L=2.0, N=100, S=10, D0=3.0, epsilon=0.1, variant="printed")
    assert printed.method.eta_g == pytest.approx(1 / (2 * (1 + math.sqrt(0.45))), rel=1e-14)
    assert printed.rounds == pytest.approx(2 * 3 * 2 * (1 + math.sqrt(0.45)) / 0.01, rel=1e-12)


def test_theorem_2():
    """N=64, S=4: p=1/16, 3(1-p/3)/(pS) = 3 (47/48)/(1/4) = 11.75."""
    tuned = theory.nonconvex_fedpage(L=1.0, N=64, S=4, K=5, D0=1.0, epsilon=0.5)
    assert tuned.method.eta_g == pytest.approx(1 / (1 + math.sqrt(11.75)), rel=1e-14)
    assert tuned.method.eta_l == pytest.approx(math.sqrt(2) / (16 * 24 * 2 * 5), rel=1e-14)
    assert tuned.rounds == pytest.approx(16 * (1 + math.sqrt(11.75)), rel=1e-12)
    printed = theory.nonconvex_fedpage(
        L=1.0, N=64, S=4, K=5, D0=1.0, epsilon=0.5, variant="printed"
    )
    assert printed.method.eta_g == pytest.approx(1 / (1 + math.sqrt(5.875)), rel=1e-14)
    noisy = theory.nonconvex_fedpage(L=1.0, N=64, S=4, K=5, D0=1.0, epsilon=0.5, sigma2=2.0)
    assert (noisy.method.b1, noisy.method.b2) == (48, 1536)  # 24*2/(4*0.25) and 48*2/(4*0.25/16)
    assert noisy.rounds == pytest.approx(64 * (1 + math.sqrt(11.75)) + 1, rel=1e-12)
    few = theory.nonconvex_fedpage(L=1.0, N=64, S=4, K=5, D0=1.0, epsilon=0.5, sigma2=2.0, M=100)
    assert (few.method.b1, few.method.b2) == (48, None)


def test_rounds_are_a_bound_only_where_a_proof_covers_the_step():
    """The proofs cover the printed steps only where (1-p)/(pS) <= 2 and 3(1-p/3)/(2pS) <= 1."""

    def bounds(N, S, variant="printed"):
        page = theory.nonconvex_page(L=1.0, N=N, S=S, D0=1.0, epsilon=0.1, variant=variant)
        fedpage = theory.nonconvex_fedpage(
            L=1.0, N=N, S=S, K=2, D0=1.0, epsilon=0.1, variant=variant
        )
        return [math.isfinite(tuned.rounds) for tuned in (page, fedpage)]

    assert bounds(100, 10) == [True, False]  # 0.9 and 1.45
    assert bounds(100, 13) == [True, True]  # 0.85
    assert bounds(3250, 10) == [False, False]
    assert bounds(3250, 10, "corrected") == [True, True]


def test_theorem_3():
    """S = N = 4: p = 1, delta = 4^(3/4)/4, every (1-p) term vanishes: eta_g = 1/(L (1 + 1/2))."""
    tuned = theory.convex_page(L=2.0, N=4, S=4, R2=3.0, epsilon=0.1)
    assert tuned.method.eta_g == pytest.approx(1 / 3, rel=1e-14)
    assert tuned.rounds == pytest.approx((1.5 + 4**0.75 / 4) * 3 / 0.1, rel=1e-12)
    N, S, L = 256, 4, 1.0  # p = 1/64, Sp = 1/16, delta = 64/4 = 16
    tuned = theory.convex_page(L=L, N=N, S=S, R2=1.0, epsilon=0.1)
    q = 63 / 64
    c = 1 + 4 + q * 512 / (2 * 17) + q * 4 + q**2 * 64 * 4 / 17
    assert tuned.method.eta_g == pytest.approx(1 / c, rel=1e-13)
    assert tuned.rounds == pytest.approx((c / 2 + 8) / 0.1, rel=1e-12)


def theorem_4_terms(tuned, *, L, N, K, R2, sigma2, epsilon):
    """Return the proof's inequalities and its bound of the mean gap, as docs/theory.md has them.

    An inequality, without units, holds where its value is at most 0.
    """
    m, T = tuned.method, math.ceil(tuned.rounds)
    p, eta, S, delta = m.S / N, m.eta_g, m.S, N**0.75 / m.S
    lam, c = math.sqrt(1 / (S * p)), math.sqrt(S * p) / L
    horizon = 4 * T * eta / p  # c'
    D = T * eta / (p * horizon) / (1 - T * eta / (p * horizon))  # T eta/(p c') over 1 - itself
    steps = 12 * K**2 * L**2 * m.eta_l**2
    drift = steps * (eta * horizon / (2 * p) + T * eta**2 / (2 * p**2) * 4 / 3)
    w1 = eta * (1 + delta) / (2 * L * lam) + (1 + D) * c * eta / (2 * p) + drift
    w2 = (1 + delta) * (L * eta * (lam + 1) - 1) / 2
    w2 += D / 2 + (1 + D) * eta / (2 * c * p) + drift * L**2
    recursion = 3 / p * (1 - p / 3) * L**2 / S
    first = w2 + recursion * w1
    third = drift + 144 * K**2 * L**2 * m.eta_l**2 / p**2 * w1 - eta / (4 * L)
    fourth = m.eta_l - math.sqrt(2) * p / (24 * math.sqrt(S) * K * L)
    of_b1 = sigma2 / (N * m.b1) if m.b1 else 0.0
    of_b2 = sigma2 / m.b2 if m.b2 else 0.0
    each = p * of_b1 + (p / 6 + 4 * (1 - p / 2)) * of_b2 / S
    noise = 3 / p * w1 * (of_b1 + (T - 1) * each) + drift * T * of_b2
    start = (2 * delta + 1) * L * R2 / 2 + (1 + D) * R2 / eta
    of_drift = 32 * drift * of_b2 / (eta * epsilon) - 1
    of_round = 32 * w1 * each / (p * eta * epsilon) - 1
    of_start = start / (T * epsilon) - (9 / 16 if sigma2 else 1)
    inequalities = (first, third * L / eta, fourth * L, of_drift, of_round, of_start)
    return inequalities, start / T + 2 * noise / (eta * T)


def test_theorem_4_satisfies_its_proof():
    """At random settings, with full and with small minibatches, the proof gives epsilon."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(400):
        N = int(10 ** rng.uniform(0, 5))
        S = int(N ** rng.uniform(0, 1)) if rng.random() < 0.5 else -(-N // int(rng.integers(1, 5)))
        L, R2 = 10 ** rng.uniform(-2, 2, size=2)
        epsilon, K = L * R2 * 10 ** rng.uniform(-5, 2), int(rng.integers(1, 20))
        for sigma2 in (0.0, L * epsilon * 10 ** rng.uniform(-2, 4)):
            about = {"L": L, "N": N, "K": K, "R2": R2, "sigma2": sigma2, "epsilon": epsilon}
            tuned = theory.convex_fedpage(S=S, M=10**9, **about)
            inequalities, mean = theorem_4_terms(tuned, **about)
            assert max(inequalities) <= 1e-9
            assert mean <= epsilon * (1 + 1e-9)
            worst = max(worst, mean / epsilon if sigma2 else 0.0)
    assert worst > 0.85  # the minibatches are no larger than the proof needs


def test_theorem_4_prints_the_papers_batches():
    N, S, sigma2, epsilon = 256, 4, 2.0, 0.1  # p = 1/64, sqrt(pS) = 1/4, p^1.5 sqrt(S) = 2/512
    tuned = theory.convex_fedpage(
        L=1.0, N=N, S=S, K=3, R2=1.0, epsilon=epsilon, sigma2=sigma2, variant="printed"
    )
    assert (tuned.method.b1, tuned.method.b2) == (24 * 2 * 4 * 10, 48 * 2 * 256 * 10)
    assert math.isnan(tuned.rounds)  # the inequalities need b1 > 1920 at this L
    full = {"L": 1.0, "N": N, "S": S, "K": 3, "R2": 1.0, "epsilon": epsilon}
    printed = theory.convex_fedpage(**full, variant="printed")
    assert printed.rounds == theory.convex_fedpage(**full).rounds  # only the minibatches differ
    few = theory.convex_fedpage(**full, sigma2=sigma2, M=1900, variant="printed")
    assert (few.method.b1, few.method.b2) == (None, None)
    assert math.isfinite(few.rounds)


def test_strongly_convex_theorems():
    """N=100, S=10: p=0.1, 2(1-p)/(pS) = 1.8 and (1-5p/12)/(pS) = 23/24."""
    page = theory.strongly_convex_page(L=2.0, mu=0.1, N=100, S=10, D0=3.0, epsilon=0.01)
    eta = 1 / (2 * (1 + math.sqrt(1.8)))
    assert page.method.eta_g == pytest.approx(eta, rel=1e-14)
    assert (1 - 0.1 * eta) ** page.rounds * 3.0 == pytest.approx(0.01, rel=1e-9)
    fedpage = theory.strongly_convex_fedpage(L=2.0, mu=0.1, N=100, S=10, K=5, D0=3.0, epsilon=0.01)
    eta = 1 / (2 * (1 + 2 * math.sqrt(23 / 24)))
    assert fedpage.method.eta_g == pytest.approx(eta, rel=1e-14)
    assert fedpage.method.eta_l == pytest.approx(0.1 / (24 * math.sqrt(10) * 10), rel=1e-14)
    assert (1 - 0.2 / 3 * eta) ** fedpage.rounds * 3.0 == pytest.approx(0.01, rel=1e-9)
    few = {"L": 1.0, "mu": 1.0, "N": 100, "S": 1, "D0": 1.0}
    assert theory.strongly_convex_page(**few, epsilon=0.1).method.eta_g == 0.005  # p/(2 mu)
    assert theory.strongly_convex_fedpage(**few, K=1, epsilon=0.1).method.eta_g == 0.0025
    assert theory.strongly_convex_page(**few, epsilon=2.0).rounds == 1
    for bad in ({"mu": 0.0}, {"mu": 1.1}, {"mu": math.nan}, {"S": 0}):
        with pytest.raises(InputError):
            theory.strongly_convex_page(**(few | bad), epsilon=0.1)
        with pytest.raises(InputError):
            theory.strongly_convex_fedpage(**(few | bad), K=2, epsilon=0.1)


def test_rivals_steps_are_their_papers():
    common = {"L": 2.0, "N": 1000, "S": 8, "K": 5}
    for convex, scaffold, fedavg in ((False, 0.04 / 48, 1 / 80), (True, 1 / 162, 1 / 60)):
        step = theory.scaffold_steps(**common, convex=convex).effective_step
        assert step == pytest.approx(scaffold)
        step = theory.fedavg_steps(**common, B=2.0, convex=convex).effective_step
        assert step == pytest.approx(fedavg)


GOOD = {"L": 1.0, "N": 100, "S": 10, "D0": 1.0, "epsilon": 0.1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", math.nan), ("L", math.inf), ("L", 0.0),
        ("D0", -1.0), ("S", 101), ("S", 0), ("N", 0), ("S", 2.5), ("variant", "printd"), ("K", 0),
        ("sigma2", -1.0), ("sigma2", math.nan),
        # their powers overflow or vanish
        ("epsilon", 1e-200), ("epsilon", 1e300), ("L", 1e-320), ("L", 1e308), ("D0", 1e308),
    ],
)  # fmt: skip
def test_impossible_constants_are_refused(name, value):
    if name not in ("K", "sigma2"):
        with pytest.raises(InputError, match=name):
            theory.nonconvex_page(**(GOOD | {name: value}))
    with pytest.raises(InputError, match=name):
        theory.nonconvex_fedpage(**(GOOD | {"K": 2, name: value}))
    if (name in ("epsilon", "L", "D0") and value != -1.0) or value == 101:
        good = {**GOOD, "K": 1, "M": 5, name: value}
        with pytest.raises(InputError, match=name):
            theory.Setting(**good)


# Tables


def test_tables_as_printed():
    """N=64, S=8, K=4, M=27, eps=0.5, sigma=2, G=3, B=1.5, with everything else 1."""
    s = theory.Setting(N=64, S=8, K=4, M=27, epsilon=0.5, sigma=2.0, G=3.0, B=1.5)
    rows = {(e.method, e.source): e for e in theory.TABLE}

    def values(key):
        e = rows[key]
        return [
            None if f is None else f(s)
            for f in (e.convex, e.nonconvex, e.convex_gradients, e.nonconvex_gradients)
        ]

    e2, e4 = 0.25, 0.0625
    assert values(("FedAvg", "Yu et al. 2019")) == pytest.approx(
        [None, 9 * 64 * 4 / e2 + 4 / (64 * 4 * e4), None, 9 * 64 * 16 / e2 + 4 / (64 * e4)]
    )
    convex = 9 / (8 * e2) + 3 / 0.5**1.5 + 2.25 / 0.5 + 4 / (8 * 4 * e2)
    nonconvex = 9 / (8 * e4) + 3 / 0.125 + 2.25 / e2 + 4 / (8 * 4 * e4)
    assert values(("FedAvg", "Karimireddy et al. 2020")) == pytest.approx(
        [
            convex, nonconvex,
            9 * 4 / (64 * e2) + 3 * 8 * 4 / (64 * 0.5**1.5)
            + 2.25 * 8 * 4 / (64 * 0.5) + 4 / (64 * e2),
            9 * 4 / (64 * e4) + 3 * 8 * 4 / (64 * 0.125) + 2.25 * 8 * 4 / (64 * e2) + 4 / (64 * e4),
        ]
    )  # fmt: skip
    assert values(("FedProx", "Sahu et al. 2018")) == [4.5, None, 4.5, None]
    assert values(("VRL-SGD", "Liang et al. 2019")) == pytest.approx(
        [None, 64 / e2 + 64 * 4 / (4 * e4), None, 64 * 4 / e2 + 64 * 4 / e4]
    )
    assert values(("S-Local-SVRG", "Gorbunov et al. 2020")) == pytest.approx(
        [(3 / 4 ** (1 / 3) + math.sqrt(27 / (64 * 16))) / 0.5, None,
         (4 + math.sqrt(27 / 64) + 3 * 4 ** (2 / 3)) / 0.5, None]
    )  # fmt: skip
    assert values(("SCAFFOLD", "Karimireddy et al. 2020")) == pytest.approx(
        [64 / (8 * 0.5) + 4 / (8 * 4 * e2), 4 / e2 + 4 / (8 * 4 * e4),
         4 / 0.5 + 4 / (64 * e2), 2 * 4 / (4 * e2) + 4 / (64 * e4)]
    )  # fmt: skip
    bulk = 64**0.75
    assert values(("FedPAGE", "Zhao, Li, Richtárik 2021")) == pytest.approx(
        [bulk / (8 * 0.5), 16 / (8 * e2), bulk * 31 / (64 * 0.5), 16 * 31 / (64 * e2)]
    )
    printed, from_b2 = (
        values(("FedPAGE", "minibatches, as printed")),
        values(("FedPAGE", "minibatches, from b2")),
    )
    assert printed[2:] == pytest.approx(
        [bulk / 32 * (512 * 4 / (8 * e2) + 4), 16 / (64 * e2) * (64 * 4 / (8 * e2) + 4)]
    )
    assert from_b2[2:] == pytest.approx(
        [bulk / 32 * (512 * 4 / (64 * 0.5) + 4), 16 / (64 * e2) * (64 * 4 / (64 * e2) + 4)]
    )


# Constants


def test_variance_and_heterogeneity_against_loops():
    problem = uneven("logistic-nonconvex")
    x = np.linspace(-0.5, 0.5, problem.d)
    found = theory.variance(problem, x)
    singles = fp.core.types.Batch
    for i in (0, 5, 11):
        oracle = problem.oracle(np.array([i]), RoundDraws(0, 0))
        rows = [
            oracle.grad(x, singles(np.array([[j]], dtype=np.uint32), np.array([1])))[0]
            for j in range(problem.sizes[i])
        ]
        assert found[i] == pytest.approx(
            np.mean(((rows - np.mean(rows, axis=0)) ** 2).sum(axis=1)), rel=1e-9, abs=1e-12
        )
    quad = quadratic()
    G, B = theory.heterogeneity(quad, [quad.x_star, quad.x_star + 1.0])
    own = np.einsum("nij,j->ni", quad.A, quad.x_star) - quad.b.mean(axis=1)
    assert pytest.approx(math.sqrt((own**2).sum(axis=1).mean()), rel=1e-9) == G
    away = np.einsum("nij,j->ni", quad.A, quad.x_star + 1.0) - quad.b.mean(axis=1)
    assert (away**2).sum(axis=1).mean() <= (
        G**2 + B**2 * (quad.grad(quad.x_star + 1.0) ** 2).sum()
    ) * (1 + 1e-9)


def test_the_reference_solver_finds_the_minimum():
    quad = quadratic()
    found = theory.reference(quad)
    np.testing.assert_allclose(found.x, quad.x_star, atol=1e-6)
    problem = fp.LogisticRegression(fp.load("census", rows=300), clients=30, reg="l2", alpha=0.05)
    assert theory.reference(problem).grad_norm < 1e-6
    constants = theory.estimate(problem)
    assert constants.convex
    assert pytest.approx(math.log(2) - theory.reference(problem).loss, rel=1e-9) == constants.D0
    assert problem.smoothness() == constants.L


def test_strong_convexity_is_a_lower_bound_of_every_clients_curvature():
    data = fp.load("census", rows=300)
    weighted = fp.LogisticRegression(data, clients=3, reg="l2", alpha=0.05, weights=[1, 2, 3])
    mu = theory.strong_convexity(weighted)
    assert mu == pytest.approx(0.05 * 3 / 6)
    x, y = np.zeros(weighted.d), np.full(weighted.d, 1e6)  # far away only the l2 term curves
    oracle = weighted.oracle(np.arange(3), RoundDraws(0, 0))
    change = oracle.grad(x, oracle.batch(None)) - oracle.grad(y, oracle.batch(None))
    curvatures = change @ (x - y) / ((x - y) @ (x - y))
    assert curvatures.min() == pytest.approx(mu, rel=1e-3)
    assert theory.estimate(weighted).mu == mu
    for other in (
        fp.LogisticRegression(data, clients=3),
        fp.LogisticRegression(data, clients=3, reg="nonconvex", alpha=0.05),
        fp.RobustRegression(data, clients=3),
    ):
        assert theory.strong_convexity(other) == 0
    A = np.array([np.diag([3.0, 1.0]), np.diag([0.5, 9.0])])
    assert theory.strong_convexity(fp.Quadratic(A, np.zeros((2, 1, 2)))) == 0.5
    assert theory.strong_convexity(fp.Quadratic(A - 2 * np.eye(2), np.zeros((2, 1, 2)))) == 0


# from_theory


def test_a_method_from_theory():
    problem = uneven("robust")
    method = fp.FedPAGE.from_theory(problem, S=3, K=5)
    L, common = problem.smoothness(), {"N": 12, "S": 3, "D0": 1.0, "epsilon": 1.0}
    assert method == theory.nonconvex_fedpage(L=L.row, K=5, **common).method
    page = fp.FedPAGE.from_theory(problem, S=3, K=1)
    assert page.eta_g == theory.nonconvex_page(L=L.average, **common).method.eta_g
    noisy = fp.FedPAGE.from_theory(problem, S=3, K=5, epsilon=1.0, sigma2=0.5)
    assert (noisy.b1, noisy.b2) == (4, 32)
    assert isinstance(fp.PAGE.from_theory(problem, S=3, K=1), fp.PAGE)
    for bad in ({"S": 13}, {"S": 3, "K": 0}, {"S": 3, "epsilon": 0.0}, {"S": 3, "sigma2": 1.0}):
        with pytest.raises(InputError):
            fp.FedPAGE.from_theory(problem, **bad)
