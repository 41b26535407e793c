"""From words to objects: what the command line's `--data`, `--partition`, `--objective` and `--methods` mean."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.errors import InputError
from fedpage.data import Dataset, load
from fedpage.data.partition import Partition, by_name
from fedpage.data.registry import EMBEDDED
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.fair import match_terms
from fedpage.problems import OBJECTIVES, LinearModel
from fedpage.problems.base import Weights


def did_you_mean(word: str, known: list[str]) -> str:
    """' did you mean ...?' or nothing."""
    near = get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""


def split(text: str) -> tuple[str, dict[str, str]]:
    """A name and its settings, from `name:key=value:key=value`.

    >>> split("census:skew=1:rows=500")
    ('census', {'skew': '1', 'rows': '500'})
    """
    name, *rest = text.split(":")
    settings = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise InputError(f"{text!r}: expected name:key=value, found {part!r}")
        settings[key.replace("-", "_")] = value
    return name, settings


def dataset(text: str) -> Dataset:
    """The data set that `--data` names; embedded ones take settings, such as census:skew=1."""
    name = text.partition(":")[0]
    if name not in EMBEDDED:
        return load(text)
    name, settings = split(text)
    options: dict[str, Any] = {}
    for key, value in settings.items():
        try:
            options[key] = int(value) if key in ("rows", "seed") else float(value)
        except ValueError:
            raise InputError(f"--data {text}: {key} must be a number, not {value!r}") from None
    return load(name, **options)


def problem(
    data: Dataset,
    clients: int,
    objective: str,
    partition: str,
    alpha: float | None = None,
    weights: Weights = "uniform",
    partition_seed: int = 0,
) -> LinearModel:
    """The objective over the divided data."""
    return objective_over(
        data, by_name(partition, data.y, clients, partition_seed), objective, alpha, weights
    )


def objective_over(
    data: Dataset,
    division: Partition,
    objective: str,
    alpha: float | None = None,
    weights: Weights = "uniform",
) -> LinearModel:
    """Make the problem of a named objective; alpha is its regulariser's weight, 0.1 by default."""
    return OBJECTIVES[objective].problem(data, division, alpha=alpha, weights=weights)


def method_class(name: str) -> MethodEntry:
    """The method of that name, or the class in `file.py@Class` that a user wrote."""
    if name.lower() in METHODS:
        return METHODS[name.lower()]
    path, at, cls = name.rpartition("@")
    if at:
        return _from_file(Path(path), cls)
    hint = did_you_mean(name, list(METHODS))
    raise InputError(
        f"unknown method {name!r}: {hint}known are {', '.join(METHODS)}, or file.py@ClassName"
    )


def _from_file(path: Path, cls: str) -> MethodEntry:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file to take the method {cls!r} from")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from None
    kind: Any = getattr(module, cls, None)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise InputError(f"{path}: has no dataclass {cls!r}")
    missing = [
        n
        for n in (
            "init",
            "call",
            "client",
            "server",
            "effective_step",
            "client_state",
            "name",
            "messages",
        )
        if not hasattr(kind, n)
    ]
    if missing:
        raise InputError(f"{path}: {cls} is no method yet: it lacks {', '.join(missing)}")
    return MethodEntry(kind, kind.name)


def parameters(kind: MethodEntry) -> dict[str, dataclasses.Field[Any]]:
    """A method's hyper-parameters by name."""
    return {
        field.name: field for field in dataclasses.fields(kind.cls) if field.name not in kind.preset
    }


def parsed(
    kind: MethodEntry, settings: Mapping[str, str], options: Sequence[str] = ()
) -> dict[str, Any]:
    """Hyper-parameters from words, by the types of the method's fields; "all" and "default" mean None.

    options: what else could have been meant, such as the command's own "--rounds".
    """
    known = parameters(kind)
    values: dict[str, Any] = {}
    for key, text in settings.items():
        name = key if key in known else next((n for n in known if n.lower() == key.lower()), None)
        if name is None:
            word = "--" + key.replace("_", "-")
            near = get_close_matches(word, options, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}? " if near else did_you_mean(key, list(known))
            raise InputError(
                f"{kind.label} has no hyper-parameter {key!r}: {hint}it has {', '.join(known)}"
            )
        values[name] = _value(kind.label, name, str(known[name].type), text)
    return values


def _value(method: str, name: str, kind: str, text: str) -> Any:
    if "None" in kind and text.lower() in ("none", "all", "default"):
        return None
    try:
        if "bool" in kind:
            return {"true": True, "false": False}[text.lower()]
        if "int" in kind:
            return int(text)
        if "float" in kind:
            value = float(text)
            if not math.isfinite(value):
                raise ValueError
            return value
        return text
    except (ValueError, KeyError):
        sort = (
            "true or false"
            if "bool" in kind
            else "a whole number"
            if "int" in kind
            else "a finite number"
        )
        raise InputError(f"{method}: {name} must be {sort}, not {text!r}") from None


def method(text: str, *, N: int, M: int, S: int, K: int, step: float) -> Any:
    """A method from `name:key=value`, on the paper's equal terms but for what is set.

    A step size that is given stands; otherwise the effective step is `step`.
    """
    name, settings = split(text)
    kind = method_class(name)
    values = parsed(kind, settings)
    made = match_terms(kind, N=N, M=M, S=S, K=int(values.get("K", K)), step=step)
    if not {"eta_g", "eta_l"} & values.keys():
        return dataclasses.replace(made, **values).with_step(step) if values else made
    return dataclasses.replace(made, **values)


def typical_size(problem: LinearModel) -> int:
    """The median M_i, for choosing minibatches."""
    return int(np.median(problem.sizes))


def method_like(kind: MethodEntry, settings: Mapping[str, Any], problem: LinearModel) -> Any:
    """A method with the given settings and, for what is not given, the paper's equal terms on this problem."""
    N, M = problem.N, typical_size(problem)
    K = int(
        settings.get(
            "K", 1 if parameters(kind).get("K") and parameters(kind)["K"].default == 1 else 10
        )
    )
    made = match_terms(kind, N=N, M=M, S=min(10, N), K=K, step=0.1)
    return dataclasses.replace(made, **settings)


def grid(kind: MethodEntry, searches: list[str]) -> dict[str, list[Any]]:
    """Values to search, from `name=value,value`; "step" (effective) and "rho" = K eta_l/eta_g are known too."""
    found: dict[str, list[Any]] = {}
    for text in searches:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise InputError(f"--search {text!r}: expected name=value,value,...")
        if name in ("step", "rho"):
            if name == "rho" and not hasattr(kind.cls, "local_step"):
                raise InputError(
                    f"--search {text!r}: rho is FedPAGE's; {kind.label} has eta_g and eta_l"
                )
            found[name] = [
                _value(kind.label, name, "float", value.strip()) for value in values.split(",")
            ]
            continue
        for value in values.split(","):
            ((name, parsed_value),) = parsed(kind, {name: value.strip()}).items()
            found.setdefault(name, []).append(parsed_value)
    return found


def command_line(name: str, method: Any, where: Mapping[str, str]) -> str:
    """The `fedpage run` that runs this method there."""
    words = [f"fedpage run {name}"]
    words += [f"{option} {value}" for option, value in where.items()]
    for key, field in parameters(MethodEntry(type(method), method.name)).items():
        value = getattr(method, key)
        if value != field.default:
            shown = (
                f"{value:.6g}"
                if isinstance(value, float)
                else "all"
                if value is None
                else str(value)
            )
            words.append(f"--{key.replace('_', '-')} {shown}")
    return " ".join(words)


def with_theory(kind: MethodEntry, settings: Mapping[str, Any], problem: LinearModel) -> Any:
    """The method with its theorem's step sizes: `--steps theory`."""
    from fedpage.methods import SCAFFOLD, FedAvg, FedPAGE, FedProx
    from fedpage.theory import fedavg_steps, heterogeneity, reference, scaffold_steps

    base = method_like(kind, settings, problem)
    given = {"eta_g", "eta_l", "p"} & set(settings)
    if given:
        raise InputError(f"--steps theory chooses {', '.join(sorted(given))} itself; leave it out")
    if issubclass(kind.cls, FedPAGE):
        tuned = kind.cls.from_theory(problem, S=base.S, K=base.K)
        return dataclasses.replace(base, eta_g=tuned.eta_g, eta_l=tuned.eta_l, p=tuned.p)
    base.init(np.zeros(problem.d), problem.N)
    L = problem.smoothness().row
    common: dict[str, Any] = {
        "L": L,
        "N": problem.N,
        "S": getattr(base, "S", 1),
        "convex": problem.convex,
    }
    if issubclass(kind.cls, SCAFFOLD):
        return base.with_step(scaffold_steps(**common, K=base.K).effective_step)
    if issubclass(kind.cls, FedAvg) and not issubclass(kind.cls, FedProx):
        _, B = heterogeneity(problem, [reference(problem).x, np.zeros(problem.d)])
        return base.with_step(fedavg_steps(**common, K=base.K, B=B).effective_step)
    raise InputError(f"--steps theory: the paper gives no step sizes for {kind.label}; give eta_l")
