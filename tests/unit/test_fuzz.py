"""Some hundred cases of tests/fuzz.py for each reader."""

import tempfile
from pathlib import Path

import fuzz
import pytest

from fedpage.core.errors import InputError
from fedpage.data import libsvm, registry

NAMES = [
    "libsvm", "libsvm-zero", "libsvm-3", "libsvm-zero-10", "study",
    "jsonl", "csv", "trials", "checkpoint", "run", "faults",
]  # fmt: skip


@pytest.fixture(scope="module")
def targets():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(registry, "derived_dir", registry.derived_dir)  # restored at the end
        found = fuzz.targets(Path(folder))
        assert list(found) == NAMES
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_first_cases_are_read_or_refused(targets, name):
    target = targets[name]
    start = len(target.once) + len(target.seeds)
    long = 3 if name in ("study", "jsonl", "csv", "trials") else 0  # the others take too long
    cases = [*target.once[:long], *target.seeds]
    cases += [fuzz.case(target, 0, number) for number in range(start, start + 150)]
    accepted = [fuzz.is_accepted(target, data) for data in cases]
    assert any(accepted)
    if name != "trials":  # damaged ones are computed again
        assert not all(accepted)


HUGE = b"1" + b"0" * 400


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("libsvm", b"3:2", b"20000001:2"), ("libsvm", b"3:2", b"2147483647:2"),
        ("libsvm", b"3:2", b"4294967299:2"),
        ("libsvm", b"3:2", b"3:2:1"), ("libsvm-3", b"3:2", b"4:2"),
        ("libsvm", b"\n", b"\r"),
        ("study", b"S = 2", b"S = -1"), ("study", b"[0.1, 0.03]", b"[0.1, nan]"),
        ("study", b"[0.1, 0.03]", b"[]"), ("study", b"rounds = 10", b"rounds = -1"),
        ("study", b"[0, 3]", b"[0, 0]"), ("study", b"[0, 3]", b"-1"),
        ("study", b'like = "a"', b'like = "b"'), ("study", b'like = "a"', b"like = 1"),
        ("study", b"K = 2", b"b3 = 2"), ("study", b'"fedavg"', b'"fedavgg"'),
        ("study", b"methods.fedpage", b"methods.fedpagee"), ("study", b'["slow"]', b'["slw"]'),
        ("study", b'"problem", "step"', b'"problm"'), ("study", b"rho = 1.0", b'rho = "1"'),
        ("study", b'["A", ">=", "B", ">", "C"]', b'["A", ">="]'), ("study", b"300", b"-1"),
        ("study", b"at = 300", b"printed = [1]"),
        ("jsonl", b'"first_loss": 1.0', b'"first_loss": ' + HUGE),
        ("jsonl", b"1000000000", HUGE), ("jsonl", b'"end": "finished"', b'"end": "done"'),
        ("jsonl", b'"nan"', b'"1_0"'),
        ("jsonl", b'"model": "', b'"model": "0'), ("jsonl", b'{"name": "FedAvg"}', b"3"),
        ("csv", b"loss", b"round"), ("csv", b"\n5,", b"\n,"),
    ],
)  # fmt: skip
def test_particular_faults_are_refused(targets, name, old, new):
    seed = targets[name].seeds[0]
    assert old in seed
    assert fuzz.is_accepted(targets[name], seed)
    assert not fuzz.is_accepted(targets[name], seed.replace(old, new, 1))


def test_particular_lines_are_read_or_refused(targets):
    whole = targets["jsonl"].seeds[0]
    # a zero keeps its sign
    assert fuzz.is_accepted(targets["jsonl"], whole.replace(b"0.5, -1e-300", b"0.5, -0.0"))
    assert not fuzz.is_accepted(targets["jsonl"], whole + b'{"round": 99}\n')
    trials = targets["trials"].seeds[0]
    for old, new in (
        (b"12.0", HUGE),
        (b"12.0", b"-1"),
        (b"12.0", b"NaN"),
        (b'"seed": 0', b'"seed": Infinity'),
    ):
        assert old in trials
        fuzz.is_accepted(targets["trials"], trials.replace(old, new, 1))


@pytest.mark.parametrize("features", [0, -1, 2**31, 10**18, 1.5, "3", True])
def test_impossible_numbers_of_features_are_refused(features):
    with pytest.raises(InputError, match="features must be a whole number of at least 1"):
        libsvm.parse(b"1 1:1\n", features=features)
