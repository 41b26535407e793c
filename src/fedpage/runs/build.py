"""Build methods from their configuration, and write them as commands.

`fedpage.runs.build_problem` builds data sets and problems; its functions are here too.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.schedules import effective_step, with_step
from fedpage.core.types import AnyMethod, HyperParameter, Problem
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.fair import at_step, match_terms
from fedpage.problems import LinearModel
from fedpage.runs.build_problem import build_problem as build_problem
from fedpage.runs.build_problem import load_dataset as load_dataset
from fedpage.runs.build_problem import open_problem as open_problem
from fedpage.runs.build_problem import record_target as record_target
from fedpage.runs.build_problem import split_settings as split_settings
from fedpage.runs.config import MethodConfig, dataclass_fields, field_values
from fedpage.runs.import_class import import_class


def median_rows(problem: Problem) -> int:
    """Return the median number of rows of a client, from which minibatches are chosen."""
    return int(np.median(problem.sizes))


def find_method(name: str) -> MethodEntry:
    """Return the entry of a method's name, or of the class that `file.py@Class` names.

    Raises:
        InputError: the name is unknown, or the file has no such method.
    """
    if name.lower() in METHODS:
        return METHODS[name.lower()]
    path, at, cls = name.rpartition("@")
    if at:
        return _import_method(Path(path), cls)
    hint = did_you_mean(name, METHODS)
    raise InputError(
        f"unknown method {name!r}:{hint} `fedpage methods` lists all; one of your own is "
        "file.py@ClassName"
    )


def _import_method(path: Path, name: str) -> MethodEntry:
    cls = import_class(path, name, "method")
    if cls is None or not dataclasses.is_dataclass(cls):
        raise InputError(f"{path}: has no dataclass {name!r}")
    needed = [
        "init",
        "call",
        "client",
        "server",
        "effective_step",
        "client_state",
        "name",
        "messages",
    ]
    missing = [attribute for attribute in needed if not hasattr(cls, attribute)]
    if missing:
        raise InputError(f"{path}: {name} is not a method: it lacks {', '.join(missing)}")
    method_class: Any = cls
    return MethodEntry(method_class, method_class.name)


def parse_hyper_parameters(
    entry: MethodEntry, words: Mapping[str, str]
) -> dict[str, HyperParameter]:
    """Convert the given hyper-parameters of a method from words to their types.

    Raises:
        InputError: a name is unknown, or a value is not of its type.
    """
    return field_values(entry.cls, words, entry.label, words=True)


def build_method(config: MethodConfig) -> AnyMethod:
    """Return the method with the given hyper-parameters and, for others, its own defaults."""
    entry = find_method(config.name)
    return entry(**parse_hyper_parameters(entry, config.hyper))


def build_fair_method(text: str, *, N: int, M: int, S: int, K: int, step: float) -> AnyMethod:
    """Return a method on the paper's equal terms, such as "fedavg" or "fedpage:eta_l=0.01".

    Args:
        text: its name, or file.py@Class, and hyper-parameters that are not on equal terms.
        N: the number of clients.
        M: rows of a client, from which minibatches are chosen.
        S: clients that FedPAGE samples.
        K: local steps.
        step: the effective step, unless a step size is given.
    """
    name, settings = split_settings(text)
    entry = find_method(name)
    given = parse_hyper_parameters(entry, settings)
    method = match_terms(entry, N=N, M=M, S=S, K=int(given.get("K") or K), step=step)
    sizes = _step_sizes(method)
    method = _replace(entry, method, given)
    return method if sizes & given.keys() or not given else at_step(method, step)


def _step_sizes(method: AnyMethod) -> set[str]:
    """Return the hyper-parameters that set the effective step, such as eta_l, lam or gamma."""
    other = with_step(method, 2 * effective_step(method))
    names = dataclass_fields(type(method))
    changed = {name for name in names if getattr(other, name) != getattr(method, name)}
    return changed | {"eta", "eta_g", "eta_l"}


def build_default_method(
    entry: MethodEntry, given: Mapping[str, HyperParameter], problem: Problem
) -> AnyMethod:
    """Return a method with the given values and, for others, the paper's terms on a problem."""
    K = int(given.get("K") or (1 if entry.hyper_parameters.get("K") == 1 else 10))
    N = problem.N
    method = match_terms(entry, N=N, M=median_rows(problem), S=min(10, N), K=K, step=0.1)
    return _replace(entry, method, given)


def _replace(
    entry: MethodEntry, method: AnyMethod, given: Mapping[str, HyperParameter]
) -> AnyMethod:
    """Replace hyper-parameters of a method, but none that the preset of its name fixes."""
    entry(**given)  # raises an error for those
    if given.get("epochs") is not None:
        given = {**given, "K": None}
    changed: AnyMethod = dataclasses.replace(method, **given)
    return changed


def build_theory_method(
    entry: MethodEntry, given: Mapping[str, HyperParameter], problem: LinearModel
) -> AnyMethod:
    """Return a method with the step sizes of its theorem on a problem, as `--steps theory` does.

    Raises:
        InputError: a step size is given too, or there is no theorem for the method.
    """
    from fedpage.methods import SCAFFOLD, FedAvg, FedPAGE
    from fedpage.theory import fedavg_steps, heterogeneity, reference, scaffold_steps

    method: Any = build_default_method(entry, given, problem)
    chosen = {"eta", "eta_g", "eta_l", "p"} & set(given)
    if chosen:
        raise InputError(f"--steps theory chooses {', '.join(sorted(chosen))}; leave it out")
    if issubclass(entry.cls, FedPAGE):
        if not method.up.is_cast:
            raise InputError(
                f"--steps theory: the theorems of {entry.label} do not cover up={method.up}; "
                "that of pp-marina does"
            )
        tuned = entry.cls.from_theory(problem, S=method.S, K=method.K)
        return dataclasses.replace(method, eta_g=tuned.eta_g, eta_l=tuned.eta_l, p=tuned.p)
    if hasattr(entry.cls, "from_theory"):
        return _apply_theorem(entry, method, given, problem)
    method.init(np.zeros(problem.d), problem.N)
    terms: dict[str, Any] = {
        "L": problem.smoothness().row,
        "N": problem.N,
        "S": getattr(method, "S", 1),
        "convex": problem.convex,
    }
    if issubclass(entry.cls, SCAFFOLD):
        return _at_step(method, scaffold_steps(**terms, K=method.K).effective_step)
    if entry.cls is FedAvg:  # not of its variants: FedProx, momentum, adaptive servers
        _, B = heterogeneity(problem, [reference(problem).x, np.zeros(problem.d)])
        return _at_step(method, fedavg_steps(**terms, K=method.K, B=B).effective_step)
    sizes = sorted(_step_sizes(method) & dataclass_fields(entry.cls).keys())
    raise InputError(
        f"--steps theory: no theorem gives step sizes for {entry.label}; "
        f"give {' and '.join(sizes)}, or use `fedpage tune`"
    )


def _apply_theorem(
    entry: MethodEntry, method: Any, given: Mapping[str, HyperParameter], problem: LinearModel
) -> AnyMethod:
    """Return what the method's own `from_theory` makes of its hyper-parameters."""
    own: Any = entry.cls
    known = dataclass_fields(entry.cls)
    options, missing = {}, []
    for name, parameter in list(signature(own.from_theory).parameters.items())[1:]:
        if name == "mu" and name not in given and problem.is_strongly_convex:
            options[name] = problem.alpha * float(problem._scale.min())  # of every client
        elif name in known and name not in ("p", *entry.preset):
            options[name] = getattr(method, name)
        elif parameter.default is Parameter.empty:
            missing.append(name)
    if missing:
        convex = "choose --objective logistic-l2 or squares-l2, or " if missing == ["mu"] else ""
        raise InputError(
            f"--steps theory: {entry.label} needs {', '.join(missing)}; "
            f"{convex}call {entry.cls.__name__}.from_theory in Python"
        )
    tuned: AnyMethod = own.from_theory(problem, **options)
    chosen = [
        name
        for name, value in given.items()
        if name not in options and getattr(tuned, name) not in (value, known[name].default)
    ]
    if chosen:
        raise InputError(f"--steps theory chooses {', '.join(chosen)}; leave it out")
    changed: AnyMethod = dataclasses.replace(tuned, **given)
    return changed


def _at_step(method: AnyMethod, step: float) -> AnyMethod:
    return with_step(method, step)


def parse_grid(entry: MethodEntry, searches: Sequence[str]) -> dict[str, list[HyperParameter]]:
    """Parse the values that `--search name=value,value` gives for a method's hyper-parameters.

    "step", the effective step, and "rho" = K eta_l/eta_g of FedPAGE are accepted as names too. A
    name without values has an empty list.

    Raises:
        InputError: a name is unknown, or a value is not of its type.
    """
    grid: dict[str, list[HyperParameter]] = {}
    for text in searches:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or (equals and not values.strip()):
            raise InputError(f"--search {text!r}: expected name or name=value,value,...")
        if name == "rho" and not hasattr(entry.cls, "local_step"):
            raise InputError(
                f"--search {text!r}: rho is FedPAGE's; {entry.label} has eta_g and eta_l"
            )
        source = _Search if name in ("step", "rho") else entry.cls
        if not equals:
            known = [*dataclass_fields(source), "step", "rho"]
            if name not in known:
                hint = did_you_mean(name, known) or f" known are {', '.join(known)}"
                raise InputError(f"--search {entry.label}: unknown key {name!r};{hint}")
            grid.setdefault(name, [])
            continue
        for value in values.split(","):
            word, where = {name: value.strip()}, f"--search {entry.label}"
            parsed = field_values(source, word, where, words=True)
            ((field, number),) = parsed.items()
            grid.setdefault(field, []).append(number)
    return grid


@dataclasses.dataclass
class _Search:
    """What can be searched beside the hyper-parameters."""

    step: float = 0.0
    rho: float = 0.0


def describe_in_text(name: str, method: AnyMethod, left_out: Sequence[str] = ()) -> str:
    """Write a method with all its hyper-parameters as `fedpage compare --methods` takes it.

    Args:
        name: its name on the command line.
        method: the method.
        left_out: hyper-parameters that the name fixes.

    >>> import fedpage as fp
    >>> describe_in_text("vrl-sgd", fp.VRLSGD(K=5, b=None))
    'vrl-sgd:K=5:eta_l=0.01:b=all:up=none:down=none'
    """
    words = [name]
    for key in dataclass_fields(type(method)):
        value = getattr(method, key)
        if key not in left_out:
            none = "all" if key[:1] in "bS" else "default"  # both are words for None
            text = none if value is None else repr(value) if isinstance(value, float) else value
            words.append(f"{key}={text}")
    return ":".join(words)


def command_line(name: str, method: AnyMethod, options: Mapping[str, str]) -> str:
    """Write the `fedpage run` command that runs a method with other options as given."""
    words = [f"fedpage run {name}", *join_options(options)]
    for key, text in hyper_words(method).items():
        words.append(f"--{key.replace('_', '-')} {shlex.quote(text)}")
    return " ".join(words)


def join_options(options: Mapping[str, str]) -> list[str]:
    """Write options with their values; a flag has the value "".

    >>> join_options({"--S": "5", "--stop": ""})
    ['--S 5', '--stop']
    """
    return [f"{option} {value}" if value else option for option, value in options.items()]


def hyper_words(method: AnyMethod) -> dict[str, str]:
    """Return a method's hyper-parameters as words, where they are not defaults.

    `parse_hyper_parameters` reads them, and every number is written with all its digits.

    >>> from fedpage.methods import FedPAGE
    >>> hyper_words(FedPAGE(S=5, eta_g=0.1 / 3, b3=None, up="natural"))
    {'S': '5', 'eta_g': '0.03333333333333333', 'b3': 'all', 'up': 'natural'}
    """
    found = {}
    for key, field in dataclass_fields(type(method)).items():
        value = getattr(method, key)
        if value != field.default:
            short = f"{value:.6g}" if isinstance(value, float) else ""
            is_exact = short != "" and float(short) == value
            found[key] = "all" if value is None else short if is_exact else str(value)
    return found
