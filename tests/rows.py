"""Every method under the laws: how to make it, and which laws apply to it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedpage.methods import METHODS, passes
from fedpage.methods.fedpage_variants import LeakFreeFedPAGE, PassStartFedPAGE
from fedpage.methods.registry import MethodEntry


class Setting(NamedTuple):
    """A law's wishes: sampled clients, local steps, an effective step, all rows or few."""

    S: int
    K: int
    step: float
    full: bool = False


class Row(NamedTuple):
    """A method under the laws."""

    entry: MethodEntry
    options: Mapping[str, Any]
    """Hyper-parameters that no setting changes, and functions of the number of local steps."""
    descent: int | None
    """Rounds for a step of gradient descent where S = N, K = 1 and gradients use all rows.

    None: the method is not gradient descent there; its own test file says what it is.
    """
    reaches: bool
    """Whether it reaches x* of heterogeneous quadratics under sampling, with all rows."""
    rest: Callable[[Any, np.ndarray], None] | None
    """Sets a simulation at x* to rest, given all clients' gradients there, (N, d).

    None: it rests from its initial state.
    """
    rests: bool
    """Whether it stays at x* once it is at rest there."""
    mean: tuple[str, str] | None
    """A vector of the server that is always the mean of a vector of all clients' states."""
    messages: int | None
    """Message types seen in its first 12 rounds; None: all that it declares."""
    scale: float
    """Factor on the effective step in the tests of convergence."""

    def make(self, setting: Setting) -> Any:
        """Make the method at a setting; its effective step is the setting's."""
        S, K, step, full = setting
        b, few = (None, None) if full else (2, 3)
        wishes = {"S": S, "K": K, "b": b, "b0": few, "b1": few, "b2": few, "b3": b}
        given = {k: v for k, v in wishes.items() if k in self.entry.hyper_parameters}
        own = {k: v(K) if callable(v) else v for k, v in self.options.items()}
        return self.entry(**given | own).with_step(step)


def row(
    method: str | type[Any],
    descent: int | None = 1,
    *,
    reaches: bool = True,
    rest: Callable[[Any, np.ndarray], None] | None = None,
    rests: bool = True,
    mean: tuple[str, str] | None = None,
    messages: int | None = None,
    scale: float = 1.0,
    **options: Any,
) -> Row:
    """Make a row of a method with its hyper-parameters, `options`."""
    entry = METHODS[method] if isinstance(method, str) else MethodEntry(method, "")
    return Row(entry, options, descent, reaches, rest, rests, mean, messages, scale)


def biased(method: str, descent: int | None = None, **options: Any) -> Row:
    """Make a row of a method that does not reach x* under sampling."""
    return row(method, descent, reaches=False, rests=False, **options)


@dataclasses.dataclass(frozen=True)
class LeakFreePassStart(LeakFreeFedPAGE, PassStartFedPAGE):  # type: ignore[misc]
    """Both variants of FedPAGE at once."""

    messages: ClassVar = {**LeakFreeFedPAGE.messages, **passes.MESSAGES}
    changes: ClassVar = {**LeakFreeFedPAGE.changes, **passes.CHANGES}
    gradients = PassStartFedPAGE.gradients


# Rests: what clients and the server know at x*


def put(run: Any, *vectors: np.ndarray) -> None:
    """Set all clients' states to vectors, (N, d) each."""
    run.client_states.put(np.arange(run.N), run.method.client_state(*vectors))


def rest_gradients(run: Any, gradients: np.ndarray) -> None:
    """Set every vector of a client's state to its gradient."""
    put(run, *(gradients for _ in run.method.client_state._fields))


def rest_tables(run: Any, gradients: np.ndarray) -> None:
    put(run, gradients)
    run.state = run.state._replace(h=gradients.mean(axis=0))


def rest_differences(run: Any, gradients: np.ndarray) -> None:
    rest_tables(run, gradients)
    run.costs.round = 1  # round 0 has no table yet


def rest_points(run: Any, gradients: np.ndarray) -> None:
    put(run, gradients, np.tile(run.x, (run.N, 1)))
    run.costs.round = 1


def rest_bc(run: Any, gradients: np.ndarray) -> None:
    """Round 0 sends x*, and w is 0."""
    zero = np.zeros_like(gradients)
    put(run, gradients, zero, zero)


def rest_after_the_pass(run: Any, gradients: np.ndarray) -> None:
    after = {"passes": 1} if run.method.name == "SecantPAGE" else {"seen": run.state.seen | True}
    run.state = run.state._replace(g=gradients.mean(axis=0), **after)
    run.costs.round = 1


# Hyper-parameters that several rows share

SERVER: dict[str, Any] = {"eta_g": 1.5, "beta": 0.6}
ADAPTIVE: dict[str, Any] = {"eta_l": 0.02, "tau": 0.05}
CASTS: dict[str, Any] = {"up": "float32", "down": "float32"}
PAGE: dict[str, Any] = {"eta_l": lambda K: 0.3 / K, "eta_g": 1.0, "p": 0.3}
SVRG: dict[str, Any] = {"q": lambda K: 1.0 if K == 1 else 0.4}
PROX: dict[str, Any] = {"eta_l": 0.3, "messages": 2}
DANE: dict[str, Any] = {"lam": 1.0, "eta_l": 0.5}
CONTROLLED: dict[str, Any] = {"rest": rest_gradients, "mean": ("c", "c")}
ESTIMATES: dict[str, Any] = {"rest": rest_gradients, "mean": ("g", "g")}
TABLES: dict[str, Any] = {"rest": rest_tables, "mean": ("h", "h")}
DIFFERENCES: dict[str, Any] = {"rest": rest_differences, "mean": ("h", "y")}
START: dict[str, Any] = {"rest": rest_after_the_pass, "messages": 4, "p": 0.3}
SECANT: dict[str, Any] = {"rest": rest_after_the_pass, "messages": 2}

PAPER = {
    "FedPAGE": row("fedpage", **PAGE),
    "FedPAGE-periodic": row("fedpage-periodic", **PAGE),
    "FedPAGE-leak-free": row("fedpage-leak-free", **PAGE),
    "PAGE": row("page", p=0.3),
    "FedAvg": biased("fedavg", 1, eta_g=1.5),
    "SCAFFOLD-II": row("scaffold", **CONTROLLED),
    "SCAFFOLD-I": row("scaffold-option-i", **CONTROLLED),
    "FedProx": biased("fedprox", 1, mu=0.2),
    "VRL-SGD": row("vrl-sgd", rest=rest_points),
    # S-Local-SVRG with q = 1 refreshes before every round of local steps
    "S-Local-SVRG": row("s-local-svrg", 2, S=None, **SVRG),
    "S-Local-SVRG-sampled": row("s-local-svrg", 2, messages=2, **SVRG),
    "FedPAGE-Full": row("fedpage-full", p=0.3),
    "SCAFFOLD-Full": row("scaffold-full", **CONTROLLED),
    "FedAvg-Full": biased("fedavg-full", 1),
}
"""The methods that the paper compares."""

ROWS = {
    # momentum and adaptive servers, FedExP, and the Mime family; the effective step of adaptive
    # servers is a length, so no setting of them is gradient descent
    "FedAvgM": biased("fedavgm", **SERVER),
    "FedNesterov": biased("fednesterov", **SERVER),
    "FedAdagrad": biased("fedadagrad", **ADAPTIVE),
    "FedAdam": biased("fedadam", beta2=0.9, **ADAPTIVE),
    "FedYogi": biased("fedyogi", beta2=0.9, **ADAPTIVE),
    "FedAdam-natural": biased("fedadam", up="natural", **ADAPTIVE),
    "FedExP": biased("fedexp"),
    "FedExP-averaged": biased("fedexp", averaged=True),
    "MimeLite": biased("mimelite", **SERVER),
    "Mime": biased("mime", **SERVER),
    "Mime-plain": biased("mime", 2, beta=0.0),  # two exchanges make a step
    "FedExP-natural": biased("fedexp", up="natural"),
    "MimeLite-randk": biased("mimelite", up="randk:0.5"),
    # local steps with control variates
    "SCAFFOLD-momentum": row("scaffold-momentum", None, beta=0.5, eta_g=1.5, **CONTROLLED),
    "FedDyn": row(
        "feddyn",
        None,
        mu=1.0,
        eta_l=0.1,
        rest=lambda run, gradients: put(run, -gradients / run.method.mu),
        mean=("a", "a"),
    ),
    "Scaffnew": row("scaffnew", p=lambda K: 1 / K, rest=rest_points),
    # EF21 and its variants, SAG, DASHA and SCALLION
    "EF21": row("ef21", **ESTIMATES),
    "EF21-HB-TopK": row("ef21", None, beta=0.4, up="topk:0.5", **ESTIMATES),
    "SAG": row("sag", scale=0.5, **ESTIMATES),
    "EF21-PP-TopK": row("ef21-pp", None, up="topk:0.5", scale=0.3, **ESTIMATES),
    "EF21-SGDM": row("ef21-sgdm", None, m=0.3, up="scaled(randk:0.5)", **ESTIMATES),
    "EF21-BC": row("ef21-bc", rest=rest_bc, mean=("g", "g")),
    "EF21-BC-TopK": row(
        "ef21-bc", None, up="topk:0.5", down="topk:0.5", rest=rest_bc, mean=("g", "g")
    ),
    "DASHA": row("dasha", None, up="randk:0.5", **ESTIMATES),
    "DASHA-PP": row("dasha-pp", scale=0.5, **ESTIMATES),
    "SCALLION": row("scallion", eta_g=1.5, **CONTROLLED),
    "SCALLION-RandK": row("scallion", None, eta_g=1.5, up="randk:0.5", scale=0.5, **CONTROLLED),
    # codecs; a share of the numbers, because the laws' problems have 4 or 123 of them
    "FedPAGE+randk": row("fedpage", None, messages=2, up="randk:0.5", **PAGE),
    "FedPAGE+natural": row("fedpage", None, messages=2, up="natural", **PAGE),
    "FedPAGE+float32": row("fedpage", None, messages=2, rests=False, **CASTS, **PAGE),
    "FedPAGE-leak-free+natural": row("fedpage-leak-free", None, messages=2, up="natural", **PAGE),
    "PAGE+natural": row("page", None, messages=2, p=0.3, up="natural"),
    "PP-MARINA": row("pp-marina", p=0.3),
    "PP-MARINA+natural": row("pp-marina", None, p=0.3, up="natural"),
    "MARINA+randk": row("marina", None, p=0.3, up="randk:0.5"),
    "VR-MARINA+natural": row("vr-marina", None, p=0.3, up="natural"),
    "FedAvg+natural": biased("fedavg", eta_g=1.5, up="natural"),
    "FedAvg+float32": biased("fedavg", eta_g=1.5, **CASTS),
    "FedProx+randk": biased("fedprox", mu=0.2, up="randk:0.5"),
    "VRL-SGD+float32": row("vrl-sgd", None, rest=rest_points, up="float32"),
    "S-Local-SVRG+float32": row("s-local-svrg", None, rests=False, S=None, up="float32", **SVRG),
    **PAPER,
    # SecantPAGE, and FedPAGE and PAGE that begin with a pass over the clients
    "SecantPAGE": row("secantpage", None, **SECANT),
    "SecantPAGE-window": row("secantpage", None, metric="window", window=3, **SECANT),
    "SecantPAGE-none": row("secantpage", None, metric="none", **SECANT),
    "SecantPAGE-fixed": row("secantpage", metric="none", eta=1.0, **SECANT),
    "SecantPAGE+natural": row("secantpage", None, up="natural", **SECANT),
    "SecantPAGE+float32": row("secantpage", None, messages=2, rests=False, **CASTS),
    "FedPAGE-average": row("fedpage-pass-start", **START | PAGE),
    "FedPAGE-leak-free-average": row(LeakFreePassStart, **START | PAGE),
    "PAGE-average": row("fedpage-pass-start", K=1, **START),
    # rounds that depend on how similar the clients' Hessians are; with S = N a full gradient comes
    # before every round of local steps of SVRP and SABER, and two rounds of DANE make a step
    "SVRP": row("svrp", 2, gamma=1.0, **PROX),
    "SVRP-no-prox": row("svrp", 2, gamma=None, **PROX),
    "SABER": row("saber", 2, gamma=1.0, eta_l=0.3, messages=3),
    "I-CGM-RG-SAGA": row("i-cgm-rg-saga", 2, p=lambda K: 1 / K, mean=("h", "b"), **DANE),
    "DANE": row("dane", 2, S=None, **DANE),
    "DANE-sampled": biased("dane", 2, **DANE),
    "S-DANE": row("s-dane", None, S=None, **DANE),
    "S-DANE-sampled": biased("s-dane", mu=0.3, **DANE),
    "Acc-S-DANE": row("acc-s-dane", None, S=None, mu=0.3, **DANE),
    "Newton": row("newton", None),
    # clients keep a table of gradients
    "SAGA": row("saga", **TABLES),
    "COFIG-natural": row("cofig", None, up="natural", **TABLES),
    "COFIG-randk": row("cofig", None, up="randk:0.5", **TABLES),
    "COFIG-half-rate": row("cofig", a=0.5, **TABLES),
    "DIANA": row("diana", **TABLES),
    "DIANA-natural": row("diana", None, up="natural", **TABLES),
    "ZeroSARAH": row("zerosarah", **DIFFERENCES),
    "FRECON": row("frecon", **DIFFERENCES),
    "FRECON-natural": row("frecon", None, up="natural", **DIFFERENCES),
    "FRECON-randk": row("frecon", None, up="randk:0.5", **DIFFERENCES),
}
"""Every method under the laws, by its name in the tests."""
KINDS = (
    "FedPAGE", "FedPAGE-average", "FedAvg", "SCAFFOLD-I", "VRL-SGD", "S-Local-SVRG-sampled",
    "FedAdam", "Mime", "Scaffnew", "EF21-BC-TopK", "DASHA-PP", "COFIG-randk", "FRECON",
    "SecantPAGE-window", "I-CGM-RG-SAGA", "SVRP", "S-DANE", "Newton",
)  # fmt: skip
"""A method of each kind, by what it sends, draws and keeps, for tests that take long."""
