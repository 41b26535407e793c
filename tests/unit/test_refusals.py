"""What the command line refuses: one line on stderr, code 2 (1 for files), no traceback, no files.

Every line of a table is a command and, after " -> ", the words that matter in the message.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BIG = str(10**12)
SHORT = {
    "RUN": "run fedpage --data census:rows=200 --clients 20",
    "COMPARE": "compare --data census:rows=200 --clients 20",
    "TUNE": "tune fedpage --data census:rows=200 --clients 20",
    "CHOOSE": "choose --data census:rows=200 --clients 20",
    "PLAN": "plan --target 0.1",
    "REPRODUCE": "reproduce comparison/a9a-robust",
    "TABLE": "run fedpage --data table.csv --rounds 12 --S 2",
    "OWN": "run --config own.toml",
    "BIG": BIG,
}
"""Words that stand for others in the tables."""
WORDS = r"""
run -> name a method, such as `fedpage run fedpage`, or give --config run.toml
run fedpge -> did you mean 'fedpage'
run fedpage extra -> unexpected 'extra'
run nowhere.py@Mine -> no such file
run x.py@
run ""
RUN --round 10 -> did you mean '--rounds'?
RUN --eta 0.1 -> has no hyper-parameter '--eta'
RUN --upp natural -> did you mean '--up'?
run fedavg --epochs 2 -> fedavg-training has it
RUN --eta-g fast -> eta_g must be a finite number
RUN --eta-g -> --eta-g needs a value
RUN --eta-g 1 --eta_g 2 -> given twice
RUN -S 1
RUN --S 4000 -> cannot sample S=4000 of N=20
RUN --K 0 -> K must be a whole number from 1 to
RUN --clients 0 -> --clients must be
RUN --clients 99999999 -> need at least
RUN --clients many -> '--clients'
RUN --rounds -5 -> rounds must be
RUN --rounds
RUN --seed -1 -> seed must be
RUN --record-every -1 -> --record-every must be
RUN --threads 0 -> threads must be
RUN --weights rows -> weights must be
RUN --objective robst -> did you mean 'robust'
RUN --alpha 0.5 -> has no regulariser
RUN --objective logistic-l2 --alpha nan
RUN --partition bloks -> did you mean 'blocks'
RUN --partition "" -> partition
RUN --partition label-shards:BIG
RUN --data a9b -> unknown data set 'a9b': did you mean 'a9a'
RUN --data "" -> unknown data set
RUN --data nowhere/x.txt -> no such file
RUN --data "a\nb.txt"
RUN --data census:foo=1 -> unknown 'foo'
RUN --data census:rows=BIG -> rows must be a whole number
RUN --data census --label age -> label is for tables
RUN --target nan -> --target: a target must be a finite number
RUN --target acc:0.9 -> no column 'acc' is recorded
RUN --target accuracy:90 --objective logistic -> 90 percent is accuracy:0.9
RUN --target held_out_accuracy:0.9 -> hold rows out, such as with --held-out 0.2
RUN --steps x -> 'given' or 'theory'
RUN --steps theory --eta-g 0.1 -> chooses eta_g; leave it out
run vrl-sgd --steps theory -> step sizes for VRL-SGD; give eta_l, or
run fedadam --steps theory -> no theorem gives step sizes for FedAdam
run svrp --steps theory -> SVRP needs mu; choose --objective logistic-l2
run svrp --objective squares-l2 --gamma 0.5 --steps theory -> chooses gamma
RUN --devices phone -> devices: 'phone' is not a profile
RUN --devices none.csv -> none.csv: there is no such file
RUN --up natral -> unknown codec 'natral': did you mean 'nat
RUN --up randk:5000 -> cannot keep 5000 of 123 numbers
RUN --down natural -> is not a cast
RUN --up natural --steps theory -> that of pp-marina does
run marina --S 3 -> PP-MARINA
run pp-marina --eta-g 1 --steps theory -> --steps theory chooses eta_g
RUN --track nothing -> --track
RUN --checkpoint-every soon
compare x
COMPARE --methods fedpage,scafold -> did you mean 'scaffold'
COMPARE --methods fedpage:eta=1 -> FedPAGE: unknown key 'eta'
COMPARE --methods fedpage:K
COMPARE --methods fedpage,fedpage -> occurs twice
COMPARE --methods , -> no method is named
COMPARE --seeds 0 -> --seeds must be a whole number from 1
COMPARE --jobs 0
COMPARE --S 0 -> at least 1
COMPARE --step -1 -> must be a finite number above 0
COMPARE --target 0 -> --target: a gradient norm must be above 0
COMPARE --cost seconds_simulated -> seconds_simulated needs devices
COMPARE --table x.doc -> a table is written to
COMPARE --figure x.doc -> no such format
COMPARE --x bytes -> say which file to draw
TUNE --serch step=1 -> did you mean '--search'?
tune -> METHOD
TUNE --cost byte -> did you mean 'bytes'?
TUNE --cost seconds -> latency
TUNE --record-every log -> record_every must be a whole number
TUNE --search
TUNE --search step=,
TUNE --search eta=1 -> did you mean
TUNE --seeds BIG -> --seeds
TUNE --held-out-seeds 0 -> --held-out-seeds
TUNE --budget soon -> budget
CHOOSE --cost seconds_simulated -> needs devices
CHOOSE --methods , -> no method is named
CHOOSE --held-out-seeds 1 -> use at least
CHOOSE --rounds 0 -> --rounds
plan
plan --targt 5 -> did you mean '--target'?
plan --target 0 -> above 0
plan --target nan -> finite
plan --target 1e-300
plan --target accuracy:0.9 -> theorems are about
plan --target gap:0.1 -> a convex objective only
PLAN --S 5000 -> S must be
PLAN --L inf -> L must be
PLAN --mu 2 -> mu must be at most L=1
PLAN --rows 0 -> '--rows'
PLAN --up foo -> unknown codec 'foo'
PLAN --up bernoulli:0.1 -> has the same size
PLAN --up randk:200 -> cannot keep 200 of 100
PLAN --cost seconds -> needs at least one of latency
PLAN --data cencus -> did you mean 'census'?
PLAN --data census --rows 3 -> without --data
PLAN --clients 0
PLAN --clients 1000000000000000000000000000000
PLAN --parameters 0
PLAN --latency inf -> latency must be
PLAN --uplink 0
PLAN --L 1e308 --D0 1e308
PLAN --cost seconds_simulated -> has no seconds_simulated
demo x
demo --seeds 0 -> from 1 to 100,000
reproduce -> name a figure
reproduce ""
reproduce comparison/a9a-robst -> did you mean 'comparison/a9a-robust'?
REPRODUCE --seeds 0 -> --seeds
REPRODUCE --data nowhere.txt -> there is no such file
REPRODUCE --data nope -> unknown data set
REPRODUCE --tune --data census -> only local-steps
methods nope -> unknown method
methods a b
methods fedavg --markdown -> leave out the name
resume nowhere -> is not a directory
resume folder -> has no run in it
run done -> is a run; continue it with `fedpage resume done`
watch nowhere -> is not a directory
study rn -> did you mean 'run'
study run nowhere.toml -> there is no such file
study add own.toml -> say what to add
study add own.toml --seeds -1 -> say what to add
data lst -> did you mean 'list'?
data show census --partition iid -> --clients
data fetch
data fetch a9b -> did you mean 'a9a'
data fetch census -> embedded
data fetch a9a --mirror foo -> not an address
data verify census -> is embedded
data path ""
dmeo -> No such command
TABLE --label outcom -> there is no column 'outcom'; did you mean 'outcome'
TABLE -> (--label on the command line)
TABLE --label outcome -> say who holds the rows: --client-column COLUMN
TABLE COLUMNS --clients 4 -> --clients 4: with --partition by-id:drop, every id
TABLE COLUMNS --clients 4 --partition by_id -> leave --clients out
TABLE COLUMNS --partition iid -> say who holds the rows: --clients N
TABLE COLUMNS --held-out 1 -> --held-out 1: split: test must be between 0 and 1
TABLE COLUMNS --held-out-by clients -> such as --held-out 0.2
TABLE COLUMNS --drop age,names -> there is no column 'names'
TABLE COLUMNS --drop age -> no column is left to be a feature
TABLE COLUMNS --missing skip -> --missing must be 'error' or 'drop' or 'mean'
TABLE COLUMNS --min-rows 99 -> ; lower min_rows
TABLE COLUMNS --min-rows 6 --partition by-id -> by-id:drop or by-id:merge
TABLE COLUMNS --objective logistic --alpha 1 -> choose logistic-l2
TABLE COLUMNS --objective no.py@Hinge -> no.py: there is no such file
TABLE COLUMNS --objective mine.py@Hing -> mine.py: has no class 'Hing'
TABLE COLUMNS --objective mine.py@Hinge-l3 -> -l2, -nonconvex
TABLE COLUMNS --objective mine.py@VALUE -> mine.py: has no class 'VALUE'
OWN --set ronds=3 -> did you mean 'rounds'?
OWN --set rn.rounds=3 -> there is no such setting
OWN --set run.ronds=3 -> own.toml with --set, [run]: unknown key 'ronds'; did you mean
OWN --set rounds -> expected KEY=VALUE
OWN --set method.name.x=3 -> name is a value, not a table
OWN --set method.Q=1 -> FedPAGE: unknown key 'Q'
OWN --set method.name=fedavgg -> did you mean 'fedavg'?
OWN --rounds 5 -> --rounds cannot be given with --config
OWN --eta-g=5 -> --eta-g=5 cannot be given with --config
OWN fedavg -> fedavg cannot be given with --config
run fedpage --set rounds=3 -> give the file with --config
run --config none.toml -> none.toml: there is no such file
run exit.py@C -> cannot be imported
run broken.py@C -> ZeroDivisionError
run mine.py@Yours -> has no dataclass 'Yours'
"""
"""Commands, and the words that matter."""
OPTIONS = ("--label", "outcome", "--client-column", "hospital")
EVERY = ("RUN", "COMPARE", "TUNE", "PLAN", "REPRODUCE", "demo", "methods", "codecs", "data list",
         "data fetch a9a", "data verify a9a", "data path", "resume folder")  # fmt: skip


def expand(line: str) -> list[str]:
    """Return the words of a line, with those of `SHORT` in place of a word in capitals."""
    short = {**SHORT, "COLUMNS": shlex.join(OPTIONS)}
    first = " ".join(short.get(word, word) for word in line.split())
    return [word.replace("BIG", BIG) for word in shlex.split(first.replace("\\n", "\n"))]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Create files that can be read, and others that cannot, in the working directory."""
    texts = {
        "file": "x\n",
        "empty": "",
        "table.csv": "hospital,age,outcome\n"
        + "".join(f"{'AB'[i > 4]},{20 + i},{('well', 'ill')[i % 2]}\n" for i in range(40)),
        "own.toml": '[method]\nname = "fedpage"\nS = 4\n[problem]\nclients = 40\n',
        "mine.py": "VALUE = 3\nclass Hinge:\n    pass\n",
        "exit.py": "raise SystemExit(0)",
        "broken.py": "1/0",
        "cut.py": "def (",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "run.toml").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "cut.xz").write_bytes(b"\xfd7zXZ\0\0\4")
    return tmp_path


@pytest.fixture
def fail(run, places):
    """Return a function that checks that a command is refused, and returns the line."""
    before = sorted(places.iterdir())

    def check(words, *, codes=(2,), leaves_files=False):
        code, _, err = run(*words)
        assert code in codes, err
        assert err.startswith("fedpage: "), err
        assert err.count("\n") == 1, err
        assert "please report it" not in err, err
        assert leaves_files or sorted(places.iterdir()) == before
        return err

    return check


@pytest.mark.parametrize("line", WORDS.strip().splitlines())
def test_wrong_words_are_refused(fail, line):
    words, _, what = line.partition(" -> ")
    assert what in fail(expand(words))


@pytest.mark.parametrize("line", EVERY)
def test_unknown_options_are_refused(fail, line):
    assert "--bogus" in fail([*expand(line), "--bogus"])


PLACES = ["file", "folder", "./loop", "./broken", "binary", "cut.xz", "empty", "file/x", "no/x",
          "a\0b"]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name"),
    [*(("RUN", name) for name in PLACES),
     *((line, "folder") for line in ("COMPARE", "TUNE", "PLAN", "REPRODUCE"))],
)  # fmt: skip
def test_unreadable_data_is_refused(fail, line, name):
    assert name.removeprefix("./").partition("\0")[0] in fail([*expand(line), "--data", name])


@pytest.mark.parametrize("name", ["folder", "binary", "loop", "file", "broken", "cut.py"])
def test_unreadable_methods_are_refused(fail, name):
    assert name in fail(["run", f"{name}@X"])


@pytest.mark.parametrize("line", ["RUN", "COMPARE", "demo", "TUNE", "REPRODUCE"])
@pytest.mark.parametrize(
    "name", ["file", "file/below", "loop", "loop/below", "/proc/none", "/dev/null", "a\0b"]
)
def test_an_out_that_cannot_be_written_is_refused(fail, real, line, name):
    real("a9a")
    found = fail([*expand(line), "--out", name], codes=(1, 2))
    assert "NUL" in found or f"--out {name}: " in found


@pytest.mark.parametrize("option", ["--report", "--table"])
@pytest.mark.parametrize("name", ["folder", "file/below", "loop/below", "/proc/none/x"])
def test_files_that_cannot_be_written_are_refused_before_the_run(fail, option, name):
    name = name if name == "folder" else f"{name}.md"
    if option == "--table" and name == "folder":
        name = "folder.md"
        Path(name).mkdir()
    found = fail([*expand("COMPARE"), option, name], leaves_files=name == "folder.md")
    assert f"{option} {name}: " in found


LONG = ["x" * 5000, "9" * 5000, "a\x1b[31m\rb", "\udcff" * 300]
TAKING = [
    "", "run", "RUN", *(f"RUN --{name}" for name in
    ("rounds", "S", "eta-g", "partition", "objective", "data", "up", "target", "devices", "faults",
     "checkpoint-every")),
    "COMPARE --methods", "TUNE --search", "TUNE --cost", "plan --target", "reproduce", "resume",
    "study run", "data fetch", "methods",
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "value"),
    [*(("run", value) for value in LONG),
     *((line, LONG[(number + more) % 4]) for number, line in enumerate(TAKING) for more in (0, 1))],
)  # fmt: skip
def test_long_and_unprintable_words_give_one_short_line(fail, line, value):
    found = fail([*expand(line), value], codes=(1, 2)).removeprefix("fedpage: ")
    assert len(found) <= 201
    assert found.removesuffix("\n").isprintable()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("run = 3", "run must be a table, [run]"),
        ("[runs]\nrounds = 3", "unknown key 'runs'; did you mean 'run'?"),
        ("[run]\nrounds = 3", "'name' is missing"),
        ("[method]\nname = 'fedpage'\nhyper = 3", "method.hyper must be a table"),
        ("format = 1\n[command.compare]\nrounds = 3", "of a comparison"),
        ("[fingerprint]\nseed = 3", "of a run that was not started by `fedpage run`"),
    ],
)
def test_files_that_are_no_settings_of_a_run_are_refused(fail, places, text, what):
    (places / "own.toml").write_text(text)
    assert f"own.toml: {what}" in fail(expand("OWN")) or what in fail(expand("OWN"))


def test_cells_that_cannot_be_used_name_the_option_that_helps(run, fail, places):
    words, path = [*expand("TABLE"), *OPTIONS], places / "table.csv"
    text = path.read_text()
    path.write_text(text.replace("B,25", "B,"))
    found = fail(words)
    assert "table.csv, row 7, column 'age': the value is missing" in found
    assert "(--missing drop)" in found
    assert run(*words, "--missing", "drop")[0] == 0
    assert run(*words, "--missing", "mean")[0] == 0
    path.write_text(text.replace("B,25", "B,old"))
    found = fail(words)
    assert "'old' is not a number" in found
    assert "(--drop)" in found


def call(*words, **options):
    code = [sys.executable, "-c", "from fedpage.cli.main import main; main()"]
    env = os.environ | {"FEDPAGE_DEBUG": ""}
    return subprocess.run([*code, *words], stderr=-1, text=True, env=env, timeout=60, **options)


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
def test_closed_or_full_standard_output_is_reported():
    closed = call("methods", preexec_fn=lambda: os.close(1))
    assert closed.returncode == 1
    assert closed.stderr == "fedpage: standard output is closed: results cannot be printed\n"
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = call("methods", stdout=full)
        assert (done.returncode, done.stderr) == (1, "fedpage: No space left on device\n")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
def test_missing_permissions_are_reported():
    """Root may do anything, so the process becomes nobody once it has imported what it needs."""
    become = """
import os, sys, rich.progress, sklearn.datasets, fedpage.cli.main, fedpage.cli.run, typer.rich_utils
from fedpage.runs import build, config
build.build_problem(config.ProblemConfig(data="census:rows=100", clients=10))
os.setuid(65534)
for words in (["--data", "secret"], ["--data", "census:rows=100", "--out", "new"]):
    sys.argv = ["fedpage", "run", "fedpage", "--clients", "10", *words]
    try:
        fedpage.cli.main.main()
    except SystemExit as end:
        assert end.code == 2
"""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.chmod(folder, 0o755)
        Path("secret").touch(mode=0o600)
        done = subprocess.run(
            [sys.executable, "-c", become], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    for line, what in zip(
        done.stderr.splitlines(), ("Permission denied", "--out new"), strict=True
    ):
        assert line.startswith("fedpage: ")
        assert what in line
