"""Hostile values in every checked argument: one line of at most 200 characters, and nothing else.

The matrix is built from the signatures: every field of every method, codec and public dataclass,
and every argument of the public functions and constructors of a table below.
"""

from __future__ import annotations

import dataclasses
import inspect
from importlib.util import find_spec

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError, one_line, short_repr


class Silent:
    """An object that cannot be written down."""

    def __repr__(self):
        raise RuntimeError("no representation")


def nested(depth):
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = {
    "huge": 10**5000,
    "minus huge": -(10**5000),
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus one": -1,
    "half": 0.5,
    "true": True,
    "none": None,
    "long text": "x" * 100_000,
    "control characters": "a\nb\r\x1b[31m\0\u2028c",
    "surrogate": "\udcff\ud800",
    "bytes": b"\xff" * 1000,
    "deep list": nested(20_000),
    "long list": [0] * 1000,
    "no repr": Silent(),
    "class": object,
    "numpy nan": np.float64("nan"),
    "numpy integer": np.int64(-(2**63)),
    "unsigned": np.uint64(2**64 - 1),
    "array": np.ones((3, 2)),
    "objects": np.array([Silent(), None], dtype=object),
    "complex": 1j,
    "mapping": {"x" * 1000: Silent()},
    "date": np.datetime64("NaT"),
}


def public_dataclasses():
    """Yield every public dataclass that a user fills, and the arguments it needs."""
    needed = {
        fp.Bernoulli: {"q": 0.5},
        fp.RandK: {"k": 2},
        fp.TopK: {"k": 2},
        fp.Dither: {"s": 2},
        fp.Chain: {"sparsifier": fp.RandK(2), "second": fp.Natural()},
        fp.Scaled: {"codec": fp.RandK(2)},
        fp.ClippedMean: {"bound": 1.0},
        fp.FixedPointMean: {"bound": 1.0},
        fp.PrivateMean: {"clip": 1.0, "noise": 1.0},
        fp.Metric: {"name": "own", "function": max, "higher_is_better": True},
        fp.Partition: {"name": "p", "order": np.arange(4), "ptr": np.array([0, 2, 4])},
        fp.Dataset: {"name": "d", "matrix": np.ones((4, 2)), "y": np.array([1.0, -1.0, 1.0, -1.0])},
    }
    without = [] if find_spec("torch") else [n for n, m in fp._MODULE_OF.items() if ".torch." in m]
    public = [getattr(fp, name) for name in fp.__all__ if name not in without]
    classes = [value for value in public if inspect.isclass(value)]
    classes += [entry.cls for entry in fp.METHODS.values()]
    for cls in sorted(set(filter(dataclasses.is_dataclass, classes)), key=lambda cls: cls.__name__):
        yield cls, needed.get(cls, {})


CONSTRUCTIONS = [
    (cls, dict(base), field.name)
    for cls, base in public_dataclasses()
    for field in dataclasses.fields(cls)
    if field.init
]


NUMBERS_AND_TEXTS = (int, float, str, np.number)
OBJECTS = {"aggregation", "constants", "costs", "data", "histories", "partition", "problem"}
"""Arguments that are objects of this library or mappings; what they are is not checked first."""
SWITCHES = {"interpolate", "pilots", "progress", "stratify"}
"""Arguments of which only the truth is used, which an array does not have."""


def assert_refused_in_one_line(call, value, name):
    """Call a function: what it refuses, it refuses by an error of one short line.

    Numbers and texts are refused by an InputError; an object of another kind may also meet the
    TypeError or AttributeError of Python where its methods are used.
    """
    kinds: tuple = (InputError,)
    if name in OBJECTS or not isinstance(value, NUMBERS_AND_TEXTS):
        kinds = (InputError, TypeError, AttributeError)
    try:
        call()
    except kinds as error:
        text = str(error)
        assert 0 < len(text) <= 200, text
        assert text.isprintable(), text


@pytest.mark.parametrize(
    ("cls", "base", "name"), CONSTRUCTIONS, ids=lambda value: getattr(value, "__name__", None)
)
def test_fields_of_dataclasses(cls, base, name):
    for value in HOSTILE.values():
        assert_refused_in_one_line(lambda value=value: cls(**{**base, name: value}), value, name)


DATA = fp.Dataset.from_arrays(np.eye(6), np.array([1.0, -1.0] * 3), clients=[0, 0, 1, 1, 2, 2])
PROBLEM = fp.LogisticRegression(DATA, clients=3)
METHOD = fp.FedAvg(S=2)
RUN = {"rounds": 2, "seed": 0}
HISTORY = fp.simulate(PROBLEM, METHOD, **RUN)
LABELS = np.array([1.0, -1.0] * 6)
CALLS = {
    fp.blocks: {"n": 12, "clients": 3},
    fp.iid: {"n": 12, "clients": 3},
    fp.power_law: {"n": 12, "clients": 3},
    fp.quantity_dirichlet: {"n": 12, "clients": 3, "alpha": 1.0},
    fp.dirichlet: {"y": LABELS, "clients": 3, "alpha": 1.0},
    fp.dirichlet_hsu: {"y": LABELS, "clients": 3, "alpha": 1.0},
    fp.dirichlet_yurochkin: {"y": LABELS, "clients": 3, "alpha": 1.0},
    fp.label_shards: {"y": LABELS, "clients": 3},
    fp.by_id: {"ids": list("aabbcc")},
    fp.census: {"rows": 10},
    fp.shift_features: {"data": DATA, "partition": fp.blocks(6, 3)},
    fp.Dataset.from_arrays: {"X": np.eye(6), "y": [1, -1] * 3},
    fp.Dataset.from_clients: {"clients": [(np.eye(2), [1, -1])] * 2},
    DATA.split: {},
    fp.LogisticRegression: {"data": DATA, "clients": 3},
    fp.Softmax: {"data": DATA, "clients": 3},
    fp.Quadratic: {"A": np.ones((2, 2)), "b": np.ones((2, 2))},
    fp.simulate: {"problem": PROBLEM, "method": METHOD, **RUN},
    fp.Simulation: {"problem": PROBLEM, "method": METHOD, "seed": 0},
    fp.sweep: {"problem": PROBLEM, "methods": [METHOD], "rounds": 2, "seeds": 1},
    fp.plan: {"problem": PROBLEM, "target": 0.1, "pilots": False},
    fp.table: {"histories": [HISTORY], "target": 0.1},
    fp.rank_over_problems: {"costs": {"p": {"a": 1.0, "b": 2.0}, "q": {"a": 1.0, "b": 3.0}}},
    fp.load: {"path": "census"},
    HISTORY.cost_to: {"column": "grad_norm", "target": 0.1},
}
ARGUMENTS = [
    (function, base, name)
    for function, base in CALLS.items()
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD and name not in SWITCHES
]


@pytest.mark.parametrize(
    ("function", "base", "name"),
    ARGUMENTS,
    ids=[f"{getattr(function, '__qualname__', '')}-{name}" for function, _, name in ARGUMENTS],
)
@pytest.mark.filterwarnings("ignore")
def test_arguments_of_functions(function, base, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in HOSTILE.values():
        if name in OBJECTS and isinstance(value, np.ndarray):
            continue
        assert_refused_in_one_line(
            lambda value=value: function(**{**base, name: value}), value, name
        )


def test_messages_keep_the_sentence_around_a_long_value():
    text = str(InputError(f"file {'x' * 100_000} was not found;\nchoose another \x1b[31m\udcff"))
    assert text.startswith("file xxx")
    assert text.endswith("xxx was not found; choose another \\x1b[31m\\udcff")
    assert len(text) == 200
    assert one_line("word " * 100) == one_line("word " * 100)[:200]
    assert len(one_line("word " * 100)) == 200
    assert one_line("as it is") == "as it is"


def test_values_are_quoted_in_sixty_characters():
    assert short_repr(10**5000) == "a number of about 5,001 digits"
    assert short_repr(Silent()) == "this Silent"
    assert short_repr(nested(20_000)) == "this list"
    assert short_repr("x" * 1000) == f"'{'x' * 28}...{'x' * 27}'"
    assert all(len(short_repr(value)) <= 60 for value in HOSTILE.values())
