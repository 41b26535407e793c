"""Methods with the step sizes of their theorems: what `Method.from_theory` calls.

Each function takes the class and the problem, whose constants of smoothness enter, and
hyper-parameters of the method such as S and the codec `up`. The formulas, their bounds,
and what is known of them are in `steps.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from inspect import Parameter, signature
from typing import Any

from fedpage.codecs import IDENTITY, Chain, Codec
from fedpage.core import validate
from fedpage.core.capabilities import dtype_of
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod, HyperParameter, Problem, Smoothness
from fedpage.methods import steps
from fedpage.methods.base import BaseMethod, find_theorem, theorem
from fedpage.methods.cofig import COFIG, DIANA
from fedpage.methods.dasha import DASHA, DASHAPP
from fedpage.methods.ef21 import EF21, EF21BC, EF21PP, EF21SGDM
from fedpage.methods.feddyn import FedDyn
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.frecon import FRECON
from fedpage.methods.icgm import ICGM
from fedpage.methods.marina import PPMARINA, full_probability
from fedpage.methods.registry import MethodEntry
from fedpage.methods.scaffnew import Scaffnew
from fedpage.methods.sdane import SDANE
from fedpage.methods.svrp import SVRP
from fedpage.methods.zerosarah import ZeroSARAH

_Codec = Any
"""A codec, or its text such as randk:0.1, which the class converts."""


def apply_theorem(
    entry: MethodEntry,
    method: AnyMethod,
    given: Mapping[str, HyperParameter],
    problem: Problem,
    mu: float | None = None,
) -> AnyMethod:
    """Return a method with its theorem's step sizes and given hyper-parameters.

    Args:
        entry: The method's entry. There must be a theorem for its class.
        method: The method on default terms, whose S, K and codecs the theorem uses.
        given: The hyper-parameters that the user has chosen.
        problem: The problem.
        mu: Strong convexity of every f_i, if it is known.

    Raises:
        InputError: The theorem needs another constant, or it chooses a given value.
    """
    make: Any = find_theorem(entry.cls)
    defaults = {field.name: field.default for field in fields(entry.cls)}
    options, missing = {}, []
    for name, parameter in list(signature(make).parameters.items())[1:]:
        if name == "mu" and mu is not None and name not in given:
            options[name] = mu
        elif name in defaults and name != "p":
            options[name] = getattr(method, name)
        elif parameter.default is Parameter.empty:
            missing.append(name)
    if missing:
        is_mu = missing == ["mu"]
        convex = "choose --objective logistic-l2 or squares-l2, or " if is_mu else ""
        raise InputError(
            f"{entry.label} needs {', '.join(missing)}; "
            f"{convex}call {entry.cls.__name__}.from_theory in Python"
        )
    made = make(problem, **options)
    chosen = [
        name
        for name, value in given.items()
        if name not in options and getattr(made, name) not in (value, defaults[name])
    ]
    if chosen:
        raise InputError(f"the theorem chooses {', '.join(chosen)}; leave it out")
    result: AnyMethod = replace(made, **entry.preset, **given)
    return result


def _smoothness(method: BaseMethod, problem: Problem) -> Smoothness:
    """Return the constants of a problem with enough clients whose L are above 0."""
    method.check_sample(problem.N)
    L = problem.smoothness()
    validate.positive(method.name, "the problem's smoothness", min(L))
    return L


@theorem(FedPAGE)
def fedpage(
    cls: type[FedPAGE],
    problem: Problem,
    *,
    S: int,
    K: int = 10,
    up: _Codec = IDENTITY,
    epsilon: float | None = None,
    sigma2: float | None = None,
    variant: str = "corrected",
) -> FedPAGE:
    """Return FedPAGE with the steps of the nonconvex theorems and p = S/N.

    Theorem 2 is used with L of the rows; if K = 1, Theorem 1 with the average L_i.

    Args:
        cls: The class.
        problem: The problem.
        S: Sampled clients.
        K: Local steps.
        up: The codec of replies, which must be exact or a cast.
        epsilon: The target gradient norm, for b1 and b2.
        sigma2: The variance of rows at a client, for b1 and b2. If None, use all rows.
        variant: "corrected", or "printed" for the paper's steps, which its proofs do
            not cover, and which can diverge at K = 1 (docs/theory.md).
    """
    method, p = cls(S=S, K=K, up=up), S / problem.N
    if not method.up.is_cast:
        raise InputError(
            f"the theorems of {cls.name} do not cover up={up}; that of pp-marina does"
        )
    L, N, b1, b2 = _smoothness(method, problem), problem.N, None, None
    if epsilon is not None:
        validate.positive(cls.name, "epsilon", epsilon)
    if sigma2 is not None:
        validate.at_least_zero(cls.name, "sigma2", sigma2)
        if epsilon is None:
            raise InputError(
                f"{cls.name}: sigma2 alone does not determine the minibatches; "
                "give epsilon too"
            )
        b1, b2 = steps.nonconvex_batches(sigma2, epsilon, S, p)
    if K == 1:
        eta_g = steps.page_nonconvex(L.average, N, S, p, variant)
        return replace(method, eta_g=eta_g, p=p, b1=b1, b2=b2)
    eta_g, eta_l = steps.fedpage_nonconvex(L.row, N, S, K, p, variant)
    return replace(method, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)


@theorem(PPMARINA)
def marina(
    cls: type[PPMARINA],
    problem: Problem,
    *,
    S: int | None = None,
    b: int | None = None,
    up: _Codec = IDENTITY,
    p: float | None = None,
    variant: str = "refined",
) -> PPMARINA:
    """Return the method with the step of `steps.marina`; S is N if it is None.

    Args:
        cls: The class.
        problem: The problem.
        S: Sampled clients.
        b: Rows in the minibatch of a difference.
        up: The codec of differences.
        p: Probability of a full round. If None, use the method's default.
        variant: "refined", or "printed" as in the paper.
    """
    method = cls(S=S, b=b, p=p, up=up)
    L, N, d = _smoothness(method, problem), problem.N, problem.d
    S, up = method.participants(N), method.up
    if p is None:
        p = full_probability(S, N, up, d, dtype_of(problem))
    omega = up.omega(d) or 0.0  # a cast counts as exact
    if up.needs_ranks:  # PermK, whose own variance `joint` stands for
        omega = (up.second.omega(d) or 0.0) if isinstance(up, Chain) else 0.0
    eta_g = steps.marina(L, N, S, p, omega, b, variant, joint=up.needs_ranks)
    return replace(method, eta_g=eta_g, p=p)


@theorem(COFIG)
def cofig(
    cls: type[COFIG],
    problem: Problem,
    *,
    S: int,
    up: _Codec = IDENTITY,
    convex: bool = False,
) -> COFIG:
    """Return COFIG or SAGA with the nonconvex step, or the convex one; L = max L_i."""
    method = cls(S=S, up=up)
    L, omega = _smoothness(method, problem).client, method.omega(problem.d)
    step = steps.cofig_convex if convex else steps.cofig_nonconvex
    return replace(method, eta=step(L, problem.N, S, omega))


@theorem(DIANA)
def diana(
    cls: type[DIANA],
    problem: Problem,
    *,
    up: _Codec = IDENTITY,
    mu: float | None = None,
) -> DIANA:
    """Return DIANA with its step for mu-strongly convex f_i, or for nonconvex f.

    L is the largest of the clients'. If mu is None, f is nonconvex.
    """
    method, N = cls(up=up), problem.N
    L, omega = _smoothness(method, problem).client, method.omega(problem.d)
    if mu is None:
        return replace(method, eta=steps.diana_nonconvex(L, N, omega))
    validate.positive(cls.name, "mu", mu)
    a = method.rate(problem.d)
    eta = steps.diana_strongly_convex(L, mu, N, omega, a)
    return replace(method, eta=eta)


@theorem(ZeroSARAH)
def zerosarah(
    cls: type[ZeroSARAH], problem: Problem, *, S: int, lam: float | None = None
) -> ZeroSARAH:
    """Return ZeroSARAH with its nonconvex step; L is the clients' average."""
    method = cls(S=S, lam=lam)
    L = _smoothness(method, problem).average
    return replace(method, eta=steps.zerosarah_nonconvex(L, problem.N, S, lam))


@theorem(FRECON)
def frecon(
    cls: type[FRECON], problem: Problem, *, S: int, up: _Codec = IDENTITY
) -> FRECON:
    """Return FRECON with its nonconvex step; L is the clients' average."""
    method = cls(S=S, up=up)
    L, omega = _smoothness(method, problem).average, method.omega(problem.d)
    return replace(method, eta=steps.frecon_nonconvex(L, problem.N, S, omega))


def _contraction(method: BaseMethod, codec: Codec, d: int) -> float:
    """Return the codec's contraction alpha for d parameters."""
    alpha = codec.alpha(d)
    if alpha is None:  # such as randk:0.6 for two parameters
        raise InputError(
            f"{method.name}: {codec} is not contractive for {d} parameters; "
            f"use scaled({codec})"
        )
    return alpha


def _ef21(method: EF21, problem: Problem) -> tuple[float, float, float]:
    """Return L of f, the clients' average L, and the contraction of `up`."""
    L = _smoothness(method, problem)
    return L.whole, L.average, _contraction(method, method.up, problem.d)


@theorem(EF21)
def ef21(cls: type[EF21], problem: Problem, *, up: _Codec = IDENTITY) -> EF21:
    """Return EF21 with the step of Theorem 1, for a nonconvex f."""
    method = cls(up=up)
    return replace(method, eta=steps.ef21_nonconvex(*_ef21(method, problem)))


@theorem(EF21PP)
def ef21_pp(
    cls: type[EF21PP], problem: Problem, *, S: int = 20, up: _Codec = IDENTITY
) -> EF21PP:
    """Return EF21-PP with the step of Theorem 7, for a nonconvex f.

    At its best s = rho it is Theorem 1 with alpha S/N in the place of alpha.
    """
    method = cls(S=S, up=up)
    L, average, alpha = _ef21(method, problem)
    eta = steps.ef21_nonconvex(L, average, S / problem.N * alpha)
    return replace(method, eta=eta)


@theorem(EF21SGDM)
def ef21_sgdm(
    cls: type[EF21SGDM], problem: Problem, *, up: _Codec = IDENTITY, m: float = 0.1
) -> EF21SGDM:
    """Return EF21-SGDM with eta = min(alpha/(20 L_average), m/(7 L)).

    The paper's m depends on the noise and on the number of rounds. The constants 20 and
    7 were derived again for this library (docs/methods/ef21.md).
    """
    method = cls(up=up, m=m)
    L, average, alpha = _ef21(method, problem)
    return replace(method, eta=min(alpha / (20 * average), m / (7 * L)))


@theorem(EF21BC)
def ef21_bc(
    cls: type[EF21BC],
    problem: Problem,
    *,
    up: _Codec = IDENTITY,
    down: _Codec = IDENTITY,
) -> EF21BC:
    """Return EF21-BC with the step of `steps.ef21_bc_nonconvex`."""
    method, d = cls(up=up, down=down), problem.d
    L = _smoothness(method, problem)
    alphas = [_contraction(method, codec, d) for codec in (method.up, method.down)]
    return replace(method, eta=steps.ef21_bc_nonconvex(L.whole, L.average, *alphas))


@theorem(DASHA)
def dasha(cls: type[DASHA], problem: Problem, *, up: _Codec = IDENTITY) -> DASHA:
    """Return DASHA with the step of its theorem, for a nonconvex f."""
    return _dasha(cls(up=up), problem)


@theorem(DASHAPP)
def dasha_pp(
    cls: type[DASHAPP], problem: Problem, *, S: int = 20, up: _Codec = IDENTITY
) -> DASHA:
    """Return DASHA-PP with the step of its theorem, for a nonconvex f."""
    return _dasha(cls(S=S, up=up), problem)


def _dasha(method: DASHA, problem: Problem) -> DASHA:
    L, N, omega = _smoothness(method, problem), problem.N, method.omega(problem.d)
    S = method.participants(N)
    eta = steps.dasha_nonconvex(L.whole, L.average, N, S, omega)
    return replace(method, eta=eta)


@theorem(FedDyn)
def feddyn(cls: type[FedDyn], problem: Problem, *, S: int, K: int = 10) -> FedDyn:
    """Return FedDyn with mu = L and eta_l = 1/(L + mu), L = max L_i, and all rows.

    The order of mu is that of the convex theorem. Its constant is a choice. With this
    eta_l a local step is the gradient step of a client's objective, whose gradient is
    (L + mu)-Lipschitz.
    """
    method = cls(S=S, K=K, b=None)
    L = _smoothness(method, problem).client
    return replace(method, mu=L, eta_l=1.0 / (L + L))


@theorem(Scaffnew)
def scaffnew(cls: type[Scaffnew], problem: Problem, *, mu: float) -> Scaffnew:
    """Return Scaffnew with eta = 1/L and p = sqrt(mu/L), L = max L_i.

    Then every local step multiplies E|y - x*|^2 + (eta/p)^2 |h - h*|^2 by at most
    1 - min(eta mu, p^2) = 1 - mu/L (Theorem 3.6), and sqrt(L/mu) log(1/eps) rounds
    suffice. All f_i are mu-strongly convex.
    """
    L = _smoothness(cls(), problem).client
    validate.positive(cls.name, "mu", mu)
    if not mu <= L:
        raise InputError(
            f"{cls.name}: mu must be at most L = {L:.4g}, not {short_repr(mu)}"
        )
    return cls(p=(mu / L) ** 0.5, eta=1.0 / L)


@theorem(SVRP)
def svrp(
    cls: type[SVRP],
    problem: Problem,
    *,
    mu: float,
    S: int = 1,
    delta: float | None = None,
) -> SVRP:
    """Return SVRP with gamma = mu/(2 delta^2), p = S/N, and enough local steps.

    Proved for clients that are all mu-strongly convex: a round of proximal steps
    contracts E(|x - x*|^2 + (s/p) |w - x*|^2) by 1 - min(s/2, 0.49 p), where
    s = gamma mu/(1 + gamma mu). Hence of the order of (N/S + delta^2/mu^2)
    log(1/epsilon) rounds. The method's page has the proof, which allows for any S and
    for the error of the K local steps.

    Args:
        cls: The class.
        problem: The problem.
        mu: Strong convexity of every f_i, such as the weight of an l2 regulariser.
        S: Sampled clients.
        delta: Dissimilarity, `theory.dissimilarity`. If None, use the average
            smoothness, which is never below it.
    """
    method = cls(S=S)
    method.check_sample(problem.N)
    validate.positive(cls.name, "mu", mu)
    L = problem.smoothness()
    delta = L.average if delta is None else delta
    validate.at_least_zero(cls.name, "delta", delta)
    gamma, eta_l, K = steps.svrp(L.client, mu, delta)
    return replace(method, K=K, gamma=gamma, eta_l=eta_l, p=S / problem.N)


@theorem(SDANE)
def s_dane(
    cls: type[SDANE], problem: Problem, *, mu: float = 0.0, delta: float | None = None
) -> SDANE:
    """Return S-DANE for all clients with lam = 2 delta and enough local steps.

    Proved for mu-strongly convex f_i, also if mu = 0: two rounds of S-DANE contract
    |v - x*|^2 by 1/(1 + mu/lam), and after R such pairs the accelerated method has
    f(x) - f* <= |x0 - x*|^2/(2 A_R), where A_R >= R^2/(4 lam) and
    A_R >= (1 + sqrt(mu/lam)/2)^(2R - 2)/lam. K is such that the gradient of every
    subproblem at y_K is at most lam |y_K - z|/2, the paper's criterion; the proof on
    the method's page then needs lam >= 4 delta/3.

    Args:
        cls: The class.
        problem: The problem.
        mu: Strong convexity of every f_i, such as the weight of an l2 regulariser.
        delta: Dissimilarity, `theory.dissimilarity`. If None, use the average
            smoothness, which is never below it.
    """
    validate.at_least_zero(cls.name, "mu", mu)
    if not getattr(problem, "convex", True):
        raise InputError(f"{cls.name}: its theorem needs a convex objective; give lam")
    L = problem.smoothness()
    delta = L.average if delta is None else delta
    validate.positive(cls.name, "delta", delta)
    lam, eta_l, K = steps.s_dane(L.client, delta, mu)
    return cls(K=K, lam=lam, eta_l=eta_l, mu=mu)


@theorem(ICGM)
def icgm(
    cls: type[ICGM],
    problem: Problem,
    *,
    S: int,
    delta: float | None = None,
    delta1: float | None = None,
) -> ICGM:
    """Return I-CGM-RG-SAGA with lam, beta and p of Theorem 6.1, for any smooth f.

    The theorem then has E|grad f(x)|^2 <= epsilon^2 at a random step after
    256 (delta1 + 38 sqrt(N/S) delta_S) (f(x0) - f*)/epsilon^2 steps of two rounds,
    delta_S = delta sqrt((N-S)/((N-1) S)). Its algorithm has a second full round in step
    1, which is left out here. The constants were read in the paper; its proof was not
    checked.

    Args:
        cls: The class.
        problem: The problem.
        S: Sampled clients.
        delta: Dissimilarity, `theory.dissimilarity`. If None, use the average
            smoothness, which is never below it.
        delta1: Dissimilarity of the delegate, a bound of |H_0 - H|. If None, use the
            sum of the bounds of both norms.
    """
    method, L = cls(S=S), problem.smoothness()
    method.check_sample(problem.N)
    delta = L.average if delta is None else delta
    delta1 = L.client + L.whole if delta1 is None else delta1
    validate.at_least_zero(cls.name, "delta", delta)
    validate.positive(cls.name, "delta1", delta1)
    lam, beta, p = steps.icgm(L.client, delta, delta1, problem.N, S)
    return replace(method, lam=lam, eta_l=1 / L.client, p=p, beta=beta)
