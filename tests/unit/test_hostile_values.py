"""Check that wrong values of every argument are refused in one line of at most 200 characters.

The matrix is built from the signatures: every field of every method, codec and public dataclass,
and every argument of the public functions and constructors of a table below.
"""

import dataclasses
import inspect
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError, one_line, short_repr

WRONG = (
    float("nan"), float("inf"), -1, 0.5, 10**400, True, None, "x" * 1000, "a\nb", b"\xff",
    [0] * 1000, object, np.float64("nan"), np.int64(-(2**63)), np.ones((3, 2)), 1j, {"x" * 1000: 1},
)  # fmt: skip


DATA = fp.Dataset.from_arrays(np.eye(6), np.array([1.0, -1.0] * 3), clients=[0, 0, 1, 1, 2, 2])
PROBLEM = fp.LogisticRegression(DATA, clients=3)
METHOD = fp.FedAvg(S=2)
RUN = {"rounds": 2, "seed": 0}


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
    given = set(filter(dataclasses.is_dataclass, classes)) - {fp.Tuning, fp.FitResult}  # results
    for cls in sorted(given, key=lambda cls: cls.__name__):
        yield cls, needed.get(cls, {})


NUMBERS_AND_TEXTS = (int, float, str, np.number)
OBJECTS = {
    "aggregation", "constants", "costs", "data", "histories", "options", "out", "partition",
    "problem",
}  # fmt: skip
"""Arguments that are objects of this library or mappings; what they are is not checked first."""
SWITCHES = {"interpolate", "progress", "stratify"}
"""Arguments of which only the truth is used, which an array does not have."""


def assert_refused_in_one_line(call, value, name):
    """Call a function: what it refuses, it refuses by an error of one short line.

    Numbers and texts are refused by an InputError; an object of another kind may also meet an error
    of Python or numpy where it is used.
    """
    kinds: tuple = (InputError,)
    if name in OBJECTS or not isinstance(value, NUMBERS_AND_TEXTS):
        kinds = (ValueError, TypeError, AttributeError)
    try:
        call()
    except kinds as error:
        text = str(error)
        assert 0 < len(text) <= 200, text
        assert text.isprintable(), text


@pytest.mark.parametrize(
    ("cls", "base"), list(public_dataclasses()), ids=lambda value: getattr(value, "__name__", "")
)
def test_fields_of_dataclasses(cls, base):
    for name in (field.name for field in dataclasses.fields(cls) if field.init):
        for value in WRONG:
            given = {**base, name: value}
            assert_refused_in_one_line(lambda given=given: cls(**given), value, name)


HISTORY = fp.simulate(PROBLEM, METHOD, **RUN)
LABELS = np.array([1.0, -1.0] * 6)
CALLS: dict[Any, dict[str, Any]] = {
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
    fp.plan: {"problem": PROBLEM, "target": 0.1},
    fp.table: {"histories": [HISTORY], "target": 0.1},
    fp.rank_over_problems: {"costs": {"p": {"a": 1.0, "b": 2.0}, "q": {"a": 1.0, "b": 3.0}}},
    fp.load: {"path": "census"},
    HISTORY.cost_to: {"target": 0.1},
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__qualname__)
@pytest.mark.filterwarnings("ignore")
def test_arguments_of_functions(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name in SWITCHES:
            continue
        for value in WRONG:
            if name in OBJECTS and isinstance(value, np.ndarray):
                continue
            given = {**CALLS[function], name: value}
            assert_refused_in_one_line(lambda given=given: function(**given), value, name)


def test_messages_keep_the_sentence_around_a_long_value():
    text = str(InputError(f"file {'x' * 100_000} was not found;\nchoose another \x1b[31m\udcff"))
    assert text.startswith("file xxx")
    assert text.endswith("xxx was not found; choose another \\x1b[31m\\udcff")
    assert len(text) == 200
    assert 190 < len(one_line("word " * 100)) <= 200
    assert one_line("as it is") == "as it is"


def test_values_are_quoted_in_sixty_characters():
    assert short_repr("x" * 1000) == f"'{'x' * 28}...{'x' * 27}'"
    assert short_repr(10**5000) == "this int"
    assert all(len(short_repr(value)) <= 60 for value in WRONG)


def test_a_long_list_of_words_is_cut_between_two_of_them():
    known = [f"method-{i}" for i in range(200)]
    text = str(InputError(f"unknown method 'x': known are {', '.join(known)}; see the guide"))
    assert len(text) <= 200
    before, after = text.split(" ... ")
    assert before.endswith("method-5,")
    assert after.split(", ")[0] in known
    assert after.endswith("; see the guide")
