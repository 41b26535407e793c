"""Feed random files to every reader: each is read exactly, or refused in one line that names it.

    make fuzz                                            a million cases
    python tests/fuzz.py --target libsvm --cases 1000    one reader
    python tests/fuzz.py --target libsvm --replay FILE   one case again

Cases are mutations of a target's seeds, and a function of the seed.
Each reader is compared with a slow one, or with assertions about what it accepts. A case may take
`SECONDS`, and the process a GiB more than at its start. To add a reader, add a Target to `targets`.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import math
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.callbacks.base import Callback, RoundEnd
from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.cli.common import read_command
from fedpage.cli.run_config import RunCommand
from fedpage.codecs import Codec
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.data import Sparse, libsvm
from fedpage.engine import faults
from fedpage.engine.faults import Faults, FaultSampler
from fedpage.engine.simulate import prepare
from fedpage.engine.transport import RoundFailed
from fedpage.methods import SCAFFOLD, FedAvg
from fedpage.methods.registry import describe_method
from fedpage.problems import Quadratic
from fedpage.runs import checkpoint, toml
from fedpage.runs.config import structure
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec
from fedpage.runs.store import RunStore
from fedpage.studies.claims import UNDECIDED, evaluate
from fedpage.studies.grid import StudyConfig
from fedpage.studies.study import Study
from fedpage.studies.trials import Trial, append_trial, read_trials

SECONDS = 10.0
MEMORY = 1 << 30
LONGEST = 4096
"""The most bytes of a mutated case; the cases of `once` may be longer."""
SOURCE = "fuzzed"


@dataclass(frozen=True)
class Target:
    """Describe a reader: seeds to start from, and a check of what it does with any bytes.

    check returns, raises InputError, or fails by raising anything else.
    """

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: Sequence[bytes] = ()
    """Tokens that mutations insert."""
    once: tuple[bytes, ...] = ()
    """Cases that are tried once, without mutation, because they are slow or long."""
    share: int = 1
    """The share of the cases, in thousandths."""


class Invalid(Exception):
    """A slow reader refuses its input, at a line if the format has lines."""

    def __init__(self, line: int | None = None) -> None:
        super().__init__(line)
        self.line = line


def agree(
    read: Callable[[], Any], slow: Callable[[], Any], same: Callable[[Any, Any], bool]
) -> None:
    """Check that both readers return equal values, or refuse the same line."""
    try:
        expected = slow()
    except Invalid as fault:
        expected = fault
    try:
        found = read()
    except InputError as refusal:
        if not isinstance(expected, Invalid):
            raise AssertionError("refused, but it is valid") from refusal
        if expected.line is not None and f", line {expected.line}: " not in str(refusal):
            raise AssertionError(f"refused, but does not name line {expected.line}") from refusal
        raise
    assert not isinstance(expected, Invalid), f"accepted, but line {expected.line} is invalid"
    assert same(found, expected), f"{found} is not {expected}"


# --- LIBSVM text ----------------------------------------------------------------------------------


NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
INDEX = re.compile(rb"[+-]?\d{1,4300}")


def plain_number(token: bytes) -> float:
    """Read a finite decimal number, or raise ValueError."""
    if not NUMBER.fullmatch(token) or not math.isfinite(float(token)):
        raise ValueError
    return float(token)


def plain_index(token: bytes) -> int:
    if not INDEX.fullmatch(token):
        raise ValueError
    return int(token)


def slow_libsvm(text: bytes, features: int | None, one_based: bool) -> tuple[Any, ...]:
    labels, indptr, indices, values = [], [0], [], []
    lowest = 1 if one_based else 0
    highest = (2**31 - 2 if features is None else features) - 1 + lowest
    widest = lowest
    for number, line in enumerate(text.split(b"\n"), start=1):
        tokens = [t for t in re.split(rb"[ \t\r\x0b\x0c]+", line.partition(b"#")[0]) if t]
        if not tokens:
            continue
        try:
            labels.append(plain_number(tokens[0]))
            before = -1
            for token in tokens[1:]:
                index, colon, value = token.partition(b":")
                if not colon or not max(lowest, before + 1) <= plain_index(index) <= highest:
                    raise ValueError
                before = plain_index(index)
                indices.append(before - lowest)
                values.append(plain_number(value))
                widest = max(widest, before)
        except ValueError:
            raise Invalid(number) from None
        indptr.append(len(indices))
    if not labels:
        raise Invalid
    if features is None and widest - lowest + 1 > 20_000_000:
        raise Invalid
    return labels, indptr, indices, values, widest - lowest + 1 if features is None else features


def same_parsed(found: tuple[Any, Sparse], expected: tuple[Any, ...]) -> bool:
    kinds = (np.float64, np.int64, np.int32, np.float64)
    arrays: tuple[Any, ...] = (found[0], *found[1][:3])
    return found[1].features == expected[4] and all(
        array.dtype == kind and array.tobytes() == np.array(plain, dtype=kind).tobytes()
        for array, plain, kind in zip(arrays, expected[:4], kinds, strict=True)
    )


def check_libsvm(data: bytes, features: int | None, one_based: bool) -> None:
    agree(
        lambda: libsvm.parse(data, features=features, one_based=one_based, source=SOURCE),
        lambda: slow_libsvm(data, features, one_based),
        same_parsed,
    )


NUMBERS = (*rb"""
0 1 -1 +1 2 3 4 10 0.5 -.5 5. . 1e3 1E-3 1e e1 1e999 -1e999 1e-999 nan NaN inf -Infinity 0x1p3 0x10
1_0 +-1 --1 1,2 1.2.3 1:1 007 -0 +0 -0.0 4e-324 1.7976931348623157e308 9007199254740993
0.1000000000000000055511151231257827 1d3 true None 20000000 20000001 2147483645 2147483646
2147483647 2147483648 4294967297 99999999999999999999 00000000000000000000001
""".split(), b"", b"\xd9\xa1", b"\xef\xbb\xbf1", b"1\0", b"\0", b"1" * 400, b"0" * 4299 + b"1",
    b"0" * 4300 + b"1")  # fmt: skip
SPACES = [b" ", b"  ", b"\t", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xc2\xa0"]
LIBSVM_WORDS = (
    *NUMBERS, *SPACES, b"\n", b"\r\n", b"#", b"# 1:1", b"qid:1", b"qid", b":", b"1:", b":1",
    b"1:1:1", b"\xff\xfe",
)  # fmt: skip
LIBSVM_SEEDS = (
    b"1 1:0.5 3:2\n-1 2:1\n", b"+1 1:1 2:1 3:1\r\n-1 1:0\r\n", b"# only\n", b"", b"1\n-1\n2",
    b"1 3:4e-1 # c\n\n \n0 1:1", b"1 0:1 1:1\n", b"0.25 1:1e-3\t2:+.5\n", b"1 2:1\n" * 40,
    b"2 1:-7.25e-3 2:1e9 03:+4\n-2 +2:0.1\n1 1:5. 4:4e-324\n",
)  # fmt: skip
LIBSVM_ONCE = (
    b"1" * 2_000_000 + b"x", b"1 1:" + b"1" * 2_000_000 + b"x\n", b"1 " * 500_000, b"\n" * 200_000,
    b"\0" * 2_000_000, b"1 " + b"0" * 1_000_000 + b"1:1\n", b"1 1:1e" + b"9" * 1_000_000,
    b"1 " + b" ".join(b"%d:1" % i for i in range(1, 100_001)),
)  # fmt: skip


# --- TOML -----------------------------------------------------------------------------------------


def check_study(data: bytes) -> None:
    """Check a study that was accepted against its table."""
    text = data.decode("utf-8", "replace")
    table = toml.loads(text, SOURCE)
    table.pop("tuning", None)  # of the paper's studies
    config = structure(StudyConfig, table, SOURCE)
    study = Study.of(config, store="store", where=SOURCE)
    assert config.rounds == table["rounds"] >= 0
    assert 1 <= len(config.seed_list) == len(set(config.seed_list))
    assert {curve.problem for curve in study.curves} == set(table["problems"])
    assert {curve.method for curve in study.curves} == set(table["methods"])
    for curve in study.curves:
        built: Any = curve.value
        for entry in fields(built):
            value = getattr(built, entry.name)
            assert value is None or isinstance(value, str | Codec) or math.isfinite(value)
        if "step" in curve.setting and "rho" not in curve.setting:
            assert math.isclose(built.effective_step, curve.setting["step"], rel_tol=1e-9)
    for claim, given in zip(config.claims, table.get("claims", []), strict=True):
        assert list(claim.curves) == given["curves"]
        assert evaluate(claim, {}).verdict == UNDECIDED


TOML_WORDS = (*rb"""
= [ ] { } " \"\"\" ' # . , [methods.a] [problems.a] [[figures]] [grid] [[claims]] true false
nan inf -inf -1 0 1 2 1.5 1e400 1e-400 2147483648 1_0 1979-05-27 07:32:00 2021-13-45 [] [1] ["a"]
[[1]] {}
{a=1} "a" "" a.b.c S K b b3 rho rival step eta_g clients rows rounds S_rivals kind curves printed at
"page" "vrl-sgd" "s-local-svrg" "fedpage-full" "order" "alike"
""".split(), b"\n", b"9" * 5000, b"0x" + b"f" * 40, b"[" * 50, b"\xff", b"\0", b"\r",
    b"\xe2\x80\xa8")  # fmt: skip
TOML_ONCE = (
    b'a = "' + b"x" * 1_000_000 + b'"', b"#" * 1_000_000, b"\n" * 100_000,
    b"a = [" + b"1," * 100_000 + b"]", b"claim = [1]", b"claim = 1",
)  # fmt: skip
SMALL_STUDY = Path(__file__).with_name("fuzz_study.toml").read_bytes()


def read_package_studies() -> tuple[bytes, ...]:
    places = files("fedpage.studies.paper").iterdir()
    return tuple(
        place.read_bytes()
        for place in sorted(places, key=lambda place: place.name)
        if place.name.endswith(".toml")
    )


# --- histories ------------------------------------------------------------------------------------

_scratch = Path(tempfile.gettempdir())


def scratch(name: str) -> Path:
    """Return a path of this process whose name contains SOURCE."""
    return _scratch / f"{SOURCE}-{name}"


def check_history(found: History) -> None:
    """Check that a history that was read can be used."""
    assert isinstance(found.label, str)
    for name in set(found.columns) - {"bytes"}:  # "bytes" is derived: up and down
        assert found[name].shape == (len(found),)
    rounds = [row["round"] for row in found.rows]
    assert all(b > a for a, b in itertools.pairwise(rounds))


def check_jsonl(data: bytes) -> None:
    """Check that only a file is read whose last line has the checksum of all lines."""
    path = scratch("history.jsonl")
    path.write_bytes(data)
    check_history(History.load(path))
    header, *body, end = data.decode("utf-8").removesuffix("\n").split("\n")
    text = end.rpartition(', "digest": ')[0]
    lines = "".join(f"{line}\n" for line in [*body, header])
    digest = hashlib.sha256((lines + text).encode()).hexdigest()
    assert end == f'{text}, "digest": "{digest}"}}', "accepted, but the checksum differs"


def check_csv(data: bytes) -> None:
    path = scratch("history.csv")
    path.write_bytes(data)
    check_history(History.load(path))


MODEL = np.array([0.5, -1e-300, math.nan])


def history_seeds(kind: str) -> tuple[bytes, ...]:
    history = History({"seed": 0, "method": {"name": "FedAvg"}, "problem": {"rows": 3}})
    for number in range(3):
        history.append(
            {
                "round": 5 * number,
                "loss": 1.0 / (1 + number),
                "grad_norm": 0.1,
                "bytes_up": 10**9 * number,
            }
        )
    history.append({"round": 20, "loss": math.inf, "grad_norm": math.nan, "bytes_up": 10**10})
    history.stop_reason, history.x, history.first_loss = StopReason.FINISHED, MODEL, 1.0
    path = scratch(f"history{kind}")  # the model's file stays for the cases
    whole = (history.to_jsonl(path) if kind == ".jsonl" else history.to_csv(path)).read_bytes()
    path.unlink()
    return whole, whole[: len(whole) // 2]


JSON_WORDS = (*rb"""
{ } [ ] , : " null true false NaN Infinity -Infinity "inf" "nan" "1" "1_0" 0 1 -1 1.5 1e400 1e-400
\u2028 "end" "x" "round" "meta" "method" [] {} "" [null] [[1]] [true] "seed" "cost" "diverged"
"question"
"key" "spent" "rounds" "capped" "best" 2e3 inf nan 1_0 round loss
""".split(), b"\n", b"\r", b"\xe2\x80\xa8", b"\x1c", b"[" * 200, b'{"a":' * 50, b"\xff", b"\0",
    b"\xd9\xa1")  # fmt: skip
JSON_ONCE = (
    b"\n" * 100_000,
    b'"' + b"a" * 200_000 + b'"\n1,2\n',
    b"round\n1\n" + b"," * 200_000,
)  # fmt: skip


# --- the trials of a search -----------------------------------------------------------------------

METHOD = FedAvg(S=2)
TRIALS = {"one": Trial(12.0, 0.004, 13.0, 20, False), "two": Trial(math.inf, 0.2, 9.0, 7, True)}


def check_trials(data: bytes) -> None:
    """Check that only lines that were written are used, and that a trial can be added to any."""
    path = scratch("trials.jsonl")
    path.write_bytes(data)
    assert read_trials(path).items() <= TRIALS.items()
    if zlib.crc32(data) % 64 == 0:
        append_trial(path, {"key": "one", "trial": asdict(TRIALS["one"])})
        assert read_trials(path)["one"] == TRIALS["one"]


def trial_seeds() -> tuple[bytes, ...]:
    path = scratch("seed-trials.jsonl")
    path.unlink(missing_ok=True)
    for key, trial in TRIALS.items():
        about = {"method": describe_method(METHOD), "seed": 0}
        append_trial(path, {"key": key, "trial": asdict(trial), **about})
    whole = path.read_bytes()
    path.unlink()
    return whole, whole[:-30], whole.replace(json.dumps(describe_method(METHOD)).encode(), b"{}")


# --- runs on disk ---------------------------------------------------------------------------------

STOPS = {
    "rounds": 9,
    "seed": 0,
    "record_every": 2,
    "options": RunOptions(faults=Faults(late=0.3, dropout=0.2)),
}


def prepare_run() -> Any:
    return prepare(RunSpec(Quadratic.random(4, 2, 3, seed=0), SCAFFOLD(S=2, K=1), **STOPS))


class _Killed(BaseException):
    pass


def killed_run() -> Path:
    """Return the directory of a run that was killed after round 6, with a checkpoint."""
    out = _scratch / "killed"
    if not out.exists():

        class Kill(Callback):
            def on_round_end(self, info: RoundEnd) -> None:
                if info.round == 6:
                    raise _Killed

        with contextlib.suppress(_Killed):
            run = prepare_run()
            with RunStore(out, checkpoint_every=5, command=RUN_COMMAND) as store:
                store.open_run(run, resume=False)
                run.run([Kill(), Checkpointing(store)])
    return out


def check_checkpoint(data: bytes) -> None:
    """Check that an accepted checkpoint can be packed again, and restored or refused."""
    tree = checkpoint.unpack(data, SOURCE)
    again = checkpoint.unpack(checkpoint.pack(tree), SOURCE)
    assert repr(again) == repr(tree)
    run = prepare_run()
    if not isinstance(tree.get("run"), dict):
        return
    run.restore(tree["run"], SOURCE)
    with np.errstate(all="ignore"), contextlib.suppress(RoundFailed):
        run.engine.step()


RUN_COMMAND = {
    "method": {"name": "scaffold", "hyper": {"S": "2"}},
    "problem": {
        "data": "census", "clients": 20, "objective": "robust", "partition": "blocks",
        "partition_seed": 0, "alpha": 0.1, "weights": "uniform", "label": "outcome",
        "client_column": "hospital", "standardise": True, "missing": "drop", "drop": "name",
        "min_rows": 2, "intercept": False, "held_out": 0.2, "held_out_by": "clients",
    },
    "run": {
        "rounds": 9, "seed": 0, "record_every": 2, "target": "0.01", "stop": False,
        "steps": "given",
    },
    "faults": {"faults": {"dropout": 0.1}, "policy": {"retries": 1}},
}  # fmt: skip


def check_run(data: bytes) -> None:
    """Check that an edited run.toml is read or refused, and that only the same run resumes."""
    path = scratch("run.toml")
    path.write_bytes(data)
    command = read_command(RunCommand, path)
    if command.faults is not None:
        faults.parse(command.faults, SOURCE)
    if zlib.crc32(data) % 32 == 0:
        out = _scratch / f"{SOURCE}-copy"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(killed_run(), out)
        (out / "run.toml").write_bytes(data)
        run = prepare_run()
        with RunStore(out, notify=lambda text: None) as store:
            store.open_run(run, resume=True)
            assert run.engine.costs.round in (0, 5)


def check_faults(data: bytes) -> None:
    path = scratch("faults.toml")
    path.write_bytes(data)
    parsed, _ = faults.read(path)
    try:
        sampler = FaultSampler(parsed, Quadratic.random(4, 2, 3, seed=0), 0)
    except InputError as error:
        # the file is valid but does not fit the problem, so the error does not name the file
        raise InputError(f"{SOURCE}: {error}") from None
    sampler.sample_outcomes(np.arange(4), 3, 1)


def checkpoint_seeds() -> tuple[bytes, ...]:
    (place,) = (killed_run() / "checkpoints").glob("*.npz")
    whole = place.read_bytes()
    small = checkpoint.pack({"a": np.arange(3), "b": [1.5, None, "x"], "run": {"round": 1}})
    big = io.BytesIO()
    np.savez(
        big,
        outline=np.frombuffer(b'{"format": "fedpage-checkpoint-2", "tree": {}}', dtype=np.uint8),
    )
    one = io.BytesIO()
    np.save(one, np.arange(3))
    greedy = io.BytesIO()
    with zipfile.ZipFile(greedy, "w") as archive:  # its header declares 32 GB
        archive.writestr("0.npy", one.getvalue().replace(b"(3,), }         ", b"(4000000000,), }"))
        archive.writestr("outline.npy", one.getvalue())
    return whole, small, big.getvalue(), greedy.getvalue(), whole[:-50]


FAULTS_SEEDS = (
    b'[faults]\ndropout = 0.2\ntied = "size"\nlost = 0.1\nnan = 0.01\nlate = 0.1\n'
    b"spread = 0.5\nnoise = 0.5\ndeadline = 2.0\ngone = [1, 2]\ngone_from = 10\nseed = 3\n"
    b"[policy]\nretries = 2\npatience = 5\n",
    b'[policy]\nvalidate = false\nfall_back = false\ncommit = "always"\nlost_after = 3\n',
    b"[faults]\ninfinite = 0.1\nshape = 0.1\n",
)


def targets(folder: Path) -> dict[str, Target]:
    """Return every reader; files are written below the folder."""
    global _scratch
    _scratch = folder
    text = partial(Target, seeds=LIBSVM_SEEDS, words=LIBSVM_WORDS, once=LIBSVM_ONCE)
    toml = partial(Target, words=TOML_WORDS, once=TOML_ONCE, share=25)
    return {
        "libsvm": text(partial(check_libsvm, features=None, one_based=True), share=280),
        "libsvm-zero": text(partial(check_libsvm, features=None, one_based=False), share=160),
        "libsvm-3": text(partial(check_libsvm, features=3, one_based=True), share=160),
        "libsvm-zero-10": text(partial(check_libsvm, features=10, one_based=False), share=160),
        "study": toml(check_study, (*[SMALL_STUDY] * 10, *read_package_studies())),
        "jsonl": Target(check_jsonl, history_seeds(".jsonl"), JSON_WORDS, once=JSON_ONCE, share=30),
        "csv": Target(check_csv, history_seeds(".csv"), JSON_WORDS, once=JSON_ONCE, share=20),
        "trials": Target(check_trials, trial_seeds(), JSON_WORDS, once=JSON_ONCE, share=20),
        "checkpoint": Target(check_checkpoint, checkpoint_seeds(), share=40),
        "run": toml(check_run, ((killed_run() / "run.toml").read_bytes(),)),
        "faults": toml(check_faults, FAULTS_SEEDS),
    }  # fmt: skip


# --- cases ----------------------------------------------------------------------------------------

_TOKENS = re.compile(rb"[A-Za-z_]+|[0-9.eE+-]+|\s+|.", re.DOTALL)


def mutate(data: bytes, target: Target, rng: random.Random) -> bytes:
    """Make one to four small changes, of bytes or of tokens."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        kind = rng.randrange(8)
        if kind < 3 and target.words and data:  # another token
            tokens = _TOKENS.findall(data)
            tokens[rng.randrange(len(tokens))] = rng.choice((*target.words, rng.choice(tokens)))
            data = b"".join(tokens)
        elif kind == 3 and target.words:  # one more token
            data = data[:at] + rng.choice(target.words) + data[at:]
        elif kind == 4:  # up to 16 bytes less
            data = data[:at] + data[min(end, at + 1 + rng.randrange(16)) :]
        elif kind == 5:  # a part once more
            data = data[:end] + data[at:end] + data[end:]
        elif kind == 6 and data:  # another bit
            at = rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        else:  # the end of another seed, or none
            other = rng.choice((b"", *target.seeds))
            data = data[:at] + other[rng.randrange(len(other) + 1) :]
    return data[: max(LONGEST, max(map(len, target.seeds)))]


def case(target: Target, seed: int, number: int) -> bytes:
    """Make the case of a number, which is a function of the seed."""
    if number < len(target.once) + len(target.seeds):
        return (*target.once, *target.seeds)[number]
    rng = random.Random(seed << 40 | number)
    return mutate(rng.choice(target.seeds), target, rng)


def is_accepted(target: Target, data: bytes) -> bool:
    """Return whether the reader accepted the case; raise if it neither read nor refused it."""
    try:
        target.check(data)
    except InputError as error:
        text = str(error)
        assert "\n" not in text, f"more than one line: {text!r}"
        assert "\r" not in text, f"more than one line: {text!r}"
        assert SOURCE in text, f"does not name the file: {text!r}"
        assert len(text) < 600, f"a line of {len(text)} characters"
        return False
    return True


class Hang(BaseException):
    """Raised in a case that takes too long; readers that catch Exception do not catch it."""


def _hang(*_: object) -> None:
    raise Hang(f"more than {SECONDS:g} s")


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def check_with_time_limit(target: Target, data: bytes) -> bool:
    """Call `is_accepted` with a time limit."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return is_accepted(target, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="only this reader")
    parser.add_argument("--cases", type=int, default=1_000_000, help="cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=Path, help="repeat one case from its file")
    options = parser.parse_args()
    import sklearn

    sklearn.set_config(skip_parameter_validation=True)  # saves a third of the time for a small file
    signal.signal(signal.SIGALRM, _hang)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fedpage-fuzz-", dir=memory) as folder:
        every = targets(Path(folder))
        if options.target and options.target not in every:
            parser.error(f"unknown target {options.target!r}; known are {', '.join(every)}")
        chosen = {options.target: every[options.target]} if options.target else every
        for target in chosen.values():  # import and compile before time and memory are limited
            for data in target.seeds:
                is_accepted(target, data)
        _limit_memory()
        if options.replay:
            (target,) = chosen.values()
            is_read = check_with_time_limit(target, options.replay.read_bytes())
            print("accepted" if is_read else "refused")
            return 0
        total = sum(target.share for target in chosen.values())
        return max(
            _run_all(name, target, -(-options.cases * target.share // total), options.seed)
            for name, target in chosen.items()
        )


def _run_all(name: str, target: Target, count: int, seed: int) -> int:
    """Run the cases of a reader; return 1 and keep the case if one fails."""
    accepted, start = 0, time.perf_counter()
    for number in range(count):
        data = case(target, seed, number)
        try:
            accepted += check_with_time_limit(target, data)
        except KeyboardInterrupt:
            raise
        except BaseException:
            traceback.print_exc()
            place = Path(f"fuzz-{name}.case")
            place.write_bytes(data)
            print(f"{name}: {data[:300]!r}{'...' * (len(data) > 300)}", file=sys.stderr)
            again = f"python tests/fuzz.py --target {name} --replay {place}"
            print(f"replay: {again}", file=sys.stderr)
            return 1
    spent = time.perf_counter() - start
    print(f"{name:<15} {count:>9,} cases  {spent:6.1f} s  {accepted:>8,} accepted", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
