"""Compute each theorem's hyper-parameters and the rounds that it guarantees.

The theorems hide constants in O(...). The constants here are explicit: they are read off the last
lines of the proofs (docs/theory.md shows where), so that `rounds` is a bound. Bounds are on the
mean over rounds, except for the strongly convex theorems, which bound the last round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedpage.core.capabilities import is_convex
from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod, HyperParameter, Problem
from fedpage.core.validate import check_whole
from fedpage.methods import PAGE, SCAFFOLD, FedAvg, FedPAGE, MethodEntry
from fedpage.methods.base import find_theorem
from fedpage.methods.fair import default_method, step_sizes
from fedpage.methods.from_theory import apply_theorem
from fedpage.methods.scallion import SCALLION
from fedpage.methods.schedules import with_step
from fedpage.methods.steps import (
    check_variant,
    fedpage_nonconvex,
    fedpage_strongly_convex,
    nonconvex_batches,
    page_nonconvex,
    page_strongly_convex,
)
from fedpage.problems import LinearModel
from fedpage.theory.constants import heterogeneity, reference
from fedpage.theory.tables import check_number


@dataclass(frozen=True)
class Tuned:
    """A method with a theorem's hyper-parameters, and the theorem's guarantee.

    Attributes:
        method: The method.
        rounds: Rounds until the measure is at most epsilon: the mean gradient norm over rounds,
            the mean of f(x) - f* if f is convex, or f(x) - f* of the last round if f is strongly
            convex. NaN if no proof covers the printed constants.
        theorem: The theorem's name.
        variant: "corrected", or "printed" for the constants that the paper prints.
    """

    method: FedPAGE
    rounds: float
    theorem: str
    variant: str


def _check_constants(
    N: int, S: int, *, K: int = 1, sigma2: float = 0.0, **positive: float
) -> float:
    """Check the constants and return p = S/N."""
    check_whole("N", N, 1)
    check_whole("S", S, 1)
    if S > N:
        raise InputError(f"S must be at most N={N}, not {S}")
    check_whole("K", K, 1)
    for name, value in positive.items():
        check_number(name, value)
    check_number("sigma2", sigma2, positive=False, power=2)
    return S / N


def nonconvex_page(
    *, L: float, N: int, S: int, D0: float, epsilon: float, variant: str = "corrected"
) -> Tuned:
    """Tune PAGE (K = 1) for a nonconvex f by Theorem 1.

    The proof gives: sum of E|grad f(x^r)|^2 <= 2 D0/eta_g, hence R = 2 D0/(eta_g epsilon^2). The
    printed step is covered only if (1-p)/(pS) <= 2, and can diverge otherwise.

    Args:
        L: Average smoothness of the f_i (Assumption 2).
        N: Clients.
        S: Clients sampled in a round.
        D0: f(x0) - f*.
        epsilon: Bound of E|grad f|.
        variant: "corrected" or "printed".

    Returns:
        PAGE with its step, and R (NaN for a printed step that the proof does not cover).

    Raises:
        InputError: A constant is out of range.

    >>> tuned = nonconvex_page(L=1.0, N=100, S=10, D0=1.0, epsilon=0.1)
    >>> round(tuned.method.eta_g, 6), round(tuned.rounds, 3)  # c = 0.9, eta_g = 1/(1 + sqrt 0.9)
    (0.513167, 389.737)
    """
    p = _check_constants(N, S, epsilon=epsilon, L=L, D0=D0)
    eta_g = page_nonconvex(L, N, S, p, variant)
    is_covered = variant == "corrected" or (1 - p) / (p * S) <= 2
    rounds = 2 * D0 / (eta_g * epsilon**2) if is_covered else math.nan
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), rounds, "Theorem 1", variant)


def nonconvex_fedpage(
    *,
    L: float,
    N: int,
    S: int,
    K: int,
    D0: float,
    epsilon: float,
    sigma2: float = 0.0,
    M: int | None = None,
    variant: str = "corrected",
) -> Tuned:
    """Tune FedPAGE for a nonconvex f by Theorem 2.

    With full minibatches (sigma2 = 0, or both b >= M) the proof's last line gives
    R = 4 D0/(eta_g epsilon^2). With smaller ones its error terms leave
    R = 16 D0/(eta_g epsilon^2) + 1. The proof covers the printed step only if
    3(1-p/3)/(2pS) <= 1.

    Args:
        L: Smoothness of every f_ij (Assumption 1).
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        D0: f(x0) - f*.
        epsilon: Bound of E|grad f|.
        sigma2: Variance of the rows' gradients within a client; 0 uses full minibatches.
        M: Rows per client; minibatches that large are full.
        variant: "corrected" or "printed".

    Returns:
        FedPAGE with its steps and minibatches, and R (NaN for a printed step that the proof does
        not cover).

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, K=K, sigma2=sigma2, epsilon=epsilon, L=L, D0=D0)
    eta_g, eta_l = fedpage_nonconvex(L, N, S, K, p, variant)
    b1, b2 = _at_most(nonconvex_batches(sigma2, epsilon, S, p), M)
    method = FedPAGE(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)
    is_full = b1 is None and b2 is None
    rounds = 4 * D0 / (eta_g * epsilon**2) if is_full else 16 * D0 / (eta_g * epsilon**2) + 1
    is_covered = variant == "corrected" or 3 * (1 - p / 3) / (2 * p * S) <= 1
    return Tuned(method, rounds if is_covered else math.nan, "Theorem 2", variant)


def _at_most(
    batches: tuple[int | None, int | None], M: int | None
) -> tuple[int | None, int | None]:
    """Limit minibatches to M rows, where None stands for all rows."""
    b1, b2 = (None if b is None or (M is not None and b >= M) else b for b in batches)
    return b1, b2


def convex_page(*, L: float, N: int, S: int, R2: float, epsilon: float) -> Tuned:
    """Tune PAGE for a convex f by Theorem 3.

    eta_g is the largest with w <= 0 in the proof: 1/(L c), where
    c = (1 + 1/sqrt(Sp)) + (1-p)/(p^1.5 sqrt(S) (1+delta)) + (1-p)/sqrt(pS)
    + (1-p)^2/(p (1+delta) sqrt(pS)). Then R = (1/(2 eta_g) + L delta/2) R2/epsilon, which is at
    most (1/2 + 5/2 N^(3/4)/S) L R2/epsilon (ours: better than the paper's order where
    S > sqrt(N)).

    Args:
        L: Average smoothness of the f_i (Assumption 2).
        N: Clients.
        S: Clients sampled in a round.
        R2: |x0 - x*|^2.
        epsilon: Bound of the mean of f(x) - f*.

    Returns:
        PAGE with its step, and R.

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, epsilon=epsilon, L=L, R2=R2)
    delta, q = N**0.75 / S, 1 - p  # delta weighs the proof's two descent lemmas
    c = 1 + 1 / math.sqrt(S * p) + q / (p**1.5 * math.sqrt(S) * (1 + delta)) + q / math.sqrt(p * S)
    c += q**2 / (p * (1 + delta) * math.sqrt(p * S))
    eta_g = 1 / (L * c)
    rounds = (1 / (2 * eta_g) + L * delta / 2) * R2 / epsilon
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), rounds, "Theorem 3", "corrected")


def convex_fedpage(
    *,
    L: float,
    N: int,
    S: int,
    K: int,
    R2: float,
    epsilon: float,
    sigma2: float = 0.0,
    M: int | None = None,
    variant: str = "corrected",
) -> Tuned:
    """Tune FedPAGE for a convex f by Theorem 4.

    The paper leaves eta_g and eta_l to "a small constant". Here they are the largest that satisfy
    the inequalities at the end of the proof, with the factors of L and p that the text omits and
    with c' = 4 R eta_g/p, where the paper has 2 R eta_g/p (docs/theory.md). eta_g is then reduced
    by a tenth, so that eta_l can be positive. R = ((2 delta + 1) (f(x0) - f*) + 4 R2/(3 eta_g))
    /epsilon with full minibatches and 16/9 of that with smaller ones, where
    f(x0) - f* <= L R2/2. eta_l depends on R, as in the paper.

    Args:
        L: Smoothness of every f_ij (Assumption 1).
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        R2: |x0 - x*|^2.
        epsilon: Bound of the mean of f(x) - f*.
        sigma2: Variance of the rows' gradients within a client; 0 uses full minibatches.
        M: Rows per client; minibatches that large are full.
        variant: "printed" takes the paper's b1 and b2, "corrected" those that the inequalities
            need.

    Returns:
        FedPAGE with its steps and minibatches, and R (NaN for printed minibatches that are
        smaller than the inequalities need).

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, K=K, sigma2=sigma2, epsilon=epsilon, L=L, R2=R2)
    check_variant(variant)
    proof = _ConvexProof(L=L, S=S, p=p, delta=N**0.75 / S)
    eta_g = 0.9 * proof.largest_step()
    is_full = sigma2 == 0
    rounds = ((2 * proof.delta + 1) * L * R2 / 2 + 4 * R2 / (3 * eta_g)) / epsilon
    rounds = max(rounds if is_full else 16 / 9 * rounds, 1 / (3 * p), 1.0)
    T = math.ceil(rounds)
    local = _largest(lambda value: proof.holds(eta_g, value, T))
    # The last term is the condition of a lemma of Theorem 2, which this proof uses too.
    eta_l = min(math.sqrt(local / (12 * T)), math.sqrt(2) * p / (24 * math.sqrt(S))) / (K * L)
    noise = epsilon * proof.noise(eta_g, local)
    needed = (
        math.ceil(3 * p * sigma2 / (N * noise)),  # a third of the noise
        math.ceil(1.5 * (4 - 11 * p / 6) * sigma2 / (S * noise)),
    )
    batches: tuple[int | None, int | None] = (None, None) if is_full else needed
    if not is_full and variant == "printed":
        batches = (
            math.ceil(24 * sigma2 / (math.sqrt(p * S) * epsilon)),
            math.ceil(48 * sigma2 / (p**1.5 * math.sqrt(S) * epsilon)),
        )
    b1, b2 = _at_most(batches, M)
    is_covered = all(b is None or b >= least for b, least in zip((b1, b2), needed, strict=True))
    method = FedPAGE(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)
    return Tuned(method, rounds if is_covered else math.nan, "Theorem 4", variant)


@dataclass(frozen=True)
class _ConvexProof:
    """The inequalities of Theorem 4's proof, with c' = 4 T eta_g/p (docs/theory.md).

    In the methods below, local is 12 K^2 L^2 eta_l^2 T.
    """

    L: float
    S: int
    p: float
    delta: float

    def largest_step(self) -> float:
        """Return the largest eta_g that satisfies the first inequality at eta_l = 0."""
        p, lam = self.p, 1 / math.sqrt(self.S * self.p)
        movement = (1 + self.delta) * (lam + 1) / 2 + 2 * lam / (3 * p)
        error = (3 - p) * ((1 + self.delta) * lam / 2 + 2 * lam / (3 * p))
        return ((1 + self.delta) / 2 - 1 / 6) / (self.L * (movement + error))

    def drift(self, eta_g: float, local: float) -> float:
        """Return the weight of the local steps' error: local 8 eta_g^2/(3 p^2)."""
        return local * 8 * eta_g**2 / (3 * self.p**2)

    def weights(self, eta_g: float, local: float) -> tuple[float, float]:
        """Return w_1 and (1 + delta) w_2, with lambda = 1/sqrt(Sp) and c = sqrt(Sp)/L."""
        L, p, lam, drift = self.L, self.p, 1 / math.sqrt(self.S * self.p), self.drift(eta_g, local)
        c = 1 / (L * lam)
        w1 = eta_g * (1 + self.delta) / (2 * L * lam) + 2 * c * eta_g / (3 * p) + drift
        w2 = (1 + self.delta) * (L * eta_g * (lam + 1) - 1) / 2
        return w1, w2 + 2 * eta_g / (3 * c * p) + 1 / 6 + drift * L**2

    def noise(self, eta_g: float, local: float) -> float:
        """Return the most that minibatches may add to E|g - grad f|^2 in a round, over epsilon."""
        return self.p * eta_g / (32 * self.weights(eta_g, local)[0])

    def holds(self, eta_g: float, local: float, T: int) -> bool:
        """Check whether the inequalities hold."""
        L, S, p = self.L, self.S, self.p
        (w1, w2), drift = self.weights(eta_g, local), self.drift(eta_g, local)
        return (
            w2 + (3 - p) * L**2 / (p * S) * w1 <= 0
            and drift * S * self.noise(eta_g, local) * (2 / 3) / (4 - 11 * p / 6) <= eta_g / 32
            and drift + 12 * local / T * w1 / p**2 <= eta_g / (4 * L)
        )


def _largest(holds: Callable[[float], bool]) -> float:
    """Find the largest value at which a condition holds, by bisection. It must hold at 0."""
    low, high = 0.0, 1.0
    while holds(high) and high < 1e12:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def strongly_convex_page(
    *, L: float, mu: float, N: int, S: int, D0: float, epsilon: float
) -> Tuned:
    """Tune PAGE for an f that is strongly convex, or satisfies the Polyak-Lojasiewicz condition.

    With eta_g = min(1/(L (1 + sqrt(2(1-p)/(pS)))), p/(2 mu)), E f(x^R) - f* is at most
    (1 - mu eta_g)^R D0 (docs/theory.md has the proof; Li et al. 2021 have such a theorem).

    Args:
        L: Average smoothness of the f_i (Assumption 2).
        mu: Strong convexity of f; or |grad f|^2 >= 2 mu (f - f*). At most L.
        N: Clients.
        S: Clients sampled in a round.
        D0: f(x0) - f*.
        epsilon: Bound of E f(x^R) - f*. For a gradient norm e, take e^2/(2L).

    Returns:
        PAGE with its step, and R.

    Raises:
        InputError: A constant is out of range.

    >>> tuned = strongly_convex_page(L=1.0, mu=0.01, N=100, S=100, D0=1.0, epsilon=0.01)
    >>> tuned.method.eta_g, round(tuned.rounds, 3)  # gradient descent: log 100/-log 0.99
    (1.0, 458.211)
    """
    p = _check_constants(N, S, epsilon=epsilon, L=L, mu=mu, D0=D0)
    eta_g = page_strongly_convex(L, mu, S, p)
    rounds = _linear_rounds(mu * eta_g, D0 / epsilon)
    return Tuned(PAGE(S=S, eta_g=eta_g, p=p), rounds, "strongly convex PAGE", "corrected")


def strongly_convex_fedpage(
    *, L: float, mu: float, N: int, S: int, K: int, D0: float, epsilon: float
) -> Tuned:
    """Tune FedPAGE for an f that is strongly convex, or satisfies the Polyak-Lojasiewicz condition.

    With full minibatches b1 and b2, eta_l = p/(24 sqrt(S) K L) and
    eta_g = min(1/(L (1 + 2 sqrt((1 - 5p/12)/(pS)))), p/(4 mu)), E f(x^R) - f* is at most
    (1 - 2 mu eta_g/3)^R D0. The theorem is ours, from the lemmas of Theorem 2 (docs/theory.md).

    Args:
        L: Smoothness of every f_ij (Assumption 1).
        mu: Strong convexity of f; or |grad f|^2 >= 2 mu (f - f*). At most L.
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        D0: f(x0) - f*.
        epsilon: Bound of E f(x^R) - f*. For a gradient norm e, take e^2/(2L).

    Returns:
        FedPAGE with its steps, and R.

    Raises:
        InputError: A constant is out of range.
    """
    p = _check_constants(N, S, K=K, epsilon=epsilon, L=L, mu=mu, D0=D0)
    eta_g, eta_l = fedpage_strongly_convex(L, mu, S, K, p)
    rounds = _linear_rounds(2 * mu * eta_g / 3, D0 / epsilon)
    method = FedPAGE(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p)
    return Tuned(method, rounds, "strongly convex FedPAGE", "corrected")


def _linear_rounds(rate: float, factor: float) -> float:
    """Return the rounds in which (1 - rate)^R falls below 1/factor, at least 1."""
    if rate >= 1:
        return 1.0
    return max(1.0, math.log(factor) / -math.log1p(-rate))


def scaffold_steps(
    *, L: float, N: int, S: int, K: int, convex: bool, eta_g: float = 1.0
) -> SCAFFOLD:
    """Tune SCAFFOLD by Karimireddy et al. 2020, Theorem III, with its largest steps.

    K eta_g eta_l is 1/(81 L) for a convex f and (S/N)^(2/3)/(24 L) otherwise. These constants
    are quoted; their proofs were not checked.

    Args:
        L: Smoothness of the rows.
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        convex: Whether f is convex.
        eta_g: The server's step.

    Returns:
        SCAFFOLD with its steps.

    Raises:
        InputError: A constant is out of range.
    """
    _check_constants(N, S, L=L, eta_g=eta_g)
    step = 1 / (81 * L) if convex else (S / N) ** (2 / 3) / (24 * L)
    return SCAFFOLD(S=S, K=K, eta_g=eta_g).with_step(step)


def fedavg_steps(
    *, L: float, N: int, S: int, K: int, B: float, convex: bool, eta_g: float = 1.0
) -> FedAvg:
    """Tune FedAvg by Karimireddy et al. 2020, Theorem V, with its largest steps.

    K eta_g eta_l is 1/(6 (1 + B^2) L) for a convex f and 1/(8 (1 + B^2) L) otherwise. These
    constants are quoted; their proofs were not checked.

    Args:
        L: Smoothness of the rows.
        N: Clients.
        S: Clients sampled in a round.
        K: Local steps.
        B: The relative part of the clients' dissimilarity.
        convex: Whether f is convex.
        eta_g: The server's step.

    Returns:
        FedAvg with its steps.

    Raises:
        InputError: A constant is out of range.
    """
    _check_constants(N, S, L=L, B=B, eta_g=eta_g)
    return FedAvg(S=S, K=K, eta_g=eta_g).with_step(1 / ((6 if convex else 8) * (1 + B**2) * L))


def theory_method(
    entry: MethodEntry, given: Mapping[str, HyperParameter], problem: LinearModel
) -> AnyMethod:
    """Return a method with the step sizes of its theorem on a problem, as `--steps theory` does.

    Raises:
        InputError: If a step size is given too, or there is no theorem for the method.
    """
    method = default_method(entry, given, problem)
    if chosen := {"eta", "eta_g", "eta_l", "p"} & set(given):
        raise InputError(f"--steps theory chooses {', '.join(sorted(chosen))}; leave it out")
    if find_theorem(entry.cls) is not None:
        mu = problem.alpha * float(problem._scale.min()) if problem.is_strongly_convex else None
        try:
            return apply_theorem(entry, method, given, problem, mu)
        except InputError as error:
            raise InputError(f"--steps theory: {error}") from None
    is_scaffold = isinstance(method, SCAFFOLD) and not isinstance(method, SCALLION)
    if is_scaffold or type(method) is FedAvg:  # subclasses of FedAvg are not covered
        return with_step(method, _quoted_step(method, problem))
    sizes = sorted(step_sizes(method) & {field.name for field in fields(entry.cls)})
    raise InputError(
        f"--steps theory: no theorem gives step sizes for {entry.label}; "
        f"give {' and '.join(sizes)}, or use `fedpage tune`"
    )


def _quoted_step(method: Any, problem: Problem) -> float:
    """Return the effective step of `scaffold_steps` or `fedavg_steps` on a problem."""
    method.init(np.zeros(problem.d), problem.N)  # checks S
    L, N, S, K = problem.smoothness().row, problem.N, method.S, method.K
    convex = is_convex(problem)
    if isinstance(method, SCAFFOLD):
        return scaffold_steps(L=L, N=N, S=S, K=K, convex=convex).effective_step
    _, B = heterogeneity(problem, [reference(problem).x, np.zeros(problem.d)])
    return fedavg_steps(L=L, N=N, S=S, K=K, B=B, convex=convex).effective_step
