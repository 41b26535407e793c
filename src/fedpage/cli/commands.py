"""Read the grids of --search, and write methods and options as commands."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import AnyMethod, HyperParameter
from fedpage.methods import MethodEntry
from fedpage.runs.build import hyper_words
from fedpage.runs.config import dataclass_fields, field_values


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
    """Quantities that can be searched beside the hyper-parameters."""

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
