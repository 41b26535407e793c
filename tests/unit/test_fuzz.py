"""A few hundred of tests/fuzz.py's cases for each reader, and what hypothesis makes up beside them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fuzz
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpage.data import libsvm, registry
from fedpage.types import InputError

FIXED = settings(
    derandomize=True, database=None, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck)
)
NAMES = ["libsvm", "libsvm-zero", "libsvm-3", "libsvm-zero-10", "xz", "gz", "bz2", "figure", "claims", "jsonl", "csv",
         "trials", "cache", "checkpoint", "run", "faults"]  # fmt: skip


@pytest.fixture(scope="module")
def targets():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(registry, "parsed_dir", registry.parsed_dir)  # put back what a target changes
        yield fuzz.targets(Path(folder))


def test_every_reader_is_here(targets):
    assert list(targets) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cases(targets, name):
    target = targets[name]
    verdicts = [fuzz.verdict(target, seed) for seed in target.seeds]
    start = len(target.once) + len(target.seeds)
    verdicts += [fuzz.verdict(target, fuzz.case(target, 0, number)) for number in range(start, start + 150)]
    assert any(verdicts)
    if name not in ("trials", "cache"):  # a damaged line or copy only means doing the work again
        assert not all(verdicts)


@pytest.mark.parametrize("name", ["libsvm", "libsvm-zero-10"])
def test_lines_of_tokens(targets, name):
    tokens = st.sampled_from(fuzz.LIBSVM_WORDS)
    pairs = st.builds(b"%s:%s".__mod__, st.tuples(st.sampled_from(fuzz.NUMBERS), st.sampled_from(fuzz.NUMBERS)))
    rows = st.lists(st.lists(pairs | tokens, max_size=5).map(b" ".join), max_size=4).map(b"\n".join)

    @FIXED
    @given(rows | st.binary(max_size=60))
    def check(data):
        fuzz.verdict(targets[name], data)

    check()


@pytest.mark.parametrize(
    "name", ["figure", "claims", "jsonl", "csv", "trials", "xz", "gz", "bz2", "cache", "checkpoint", "run", "faults"]
)
def test_a_seed_with_something_put_in(targets, name):
    target = targets[name]
    words = st.binary(max_size=8) | st.sampled_from(target.words) if target.words else st.binary(max_size=8)

    @settings(FIXED, max_examples=60)
    @given(st.sampled_from(target.seeds), st.floats(0, 1), st.floats(0, 1), words)
    def check(seed, one, two, word):
        first, last = sorted((int(one * len(seed)), int(two * len(seed))))
        fuzz.verdict(target, seed[:first] + word + seed[min(last, first + 20) :])

    check()


@pytest.mark.parametrize("name", ["figure", "claims", "jsonl", "csv", "trials"])
def test_long_and_deep_files(targets, name):
    for data in targets[name].once[:3]:
        fuzz.verdict(targets[name], data)


@pytest.mark.parametrize("name", ["xz", "gz", "bz2"])
def test_bombs_are_not_unpacked(targets, name):
    for data in (targets[name].once[0], *((fuzz.greedy_xz(),) if name == "xz" else ())):
        assert len(data) < 200_000
        with pytest.raises(InputError, match=r"unpacks to more than 200 times|Memory usage limit"):
            libsvm.unpack(data, f".{name}", "x")
    sound = targets[name].once[2]  # 30 MiB of zeros are let through
    assert libsvm.unpack(sound, f".{name}", "x") == bytes(30 << 20)


def test_a_long_number_with_a_slip_takes_no_time(targets):
    for number in (0, 1):
        assert not fuzz.verdict(targets["libsvm-3"], targets["libsvm-3"].once[number])


@pytest.mark.parametrize("features", [0, -1, 2**31, 10**18, 1.5, "3", True])
def test_a_number_of_features_that_is_none(features):
    with pytest.raises(InputError, match="features must be a whole number from 1 to 2,147,483,646"):
        libsvm.parse(b"1 1:1\n", features=features)


def test_cases_are_a_function_of_the_seed(targets):
    target = targets["libsvm"]
    numbers = range(40, 60)
    assert [fuzz.case(target, 3, n) for n in numbers] == [fuzz.case(target, 3, n) for n in numbers]
    assert [fuzz.case(target, 3, n) for n in numbers] != [fuzz.case(target, 4, n) for n in numbers]


def test_the_fuzzer_notices(targets):
    """Readers that are wrong in a value, in a line, and in what they let pass."""
    honest = targets["libsvm-3"]

    def wrong_value(*args, **options):
        found = real(*args, **options)
        return found._replace(values=found.values + 0.0 * found.values + (found.values == 2.0))

    def wrong_line(text, **options):
        return real(b"\n" + text, **options)

    def too_kind(text, **options):
        return real(text.replace(b"_", b""), **options)

    real = libsvm.parse
    for broken in (wrong_value, wrong_line, too_kind):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(libsvm, "parse", broken)
            with pytest.raises(AssertionError):
                all(fuzz.verdict(honest, data) or True for data in (b"1 1:2\n", b"x", b"1 1:1_0\n"))
