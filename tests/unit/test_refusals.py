"""What the command line refuses: one line on stderr, code 2 (1 for files), no traceback, no files.

Every line of refused_commands.txt is a command and, after " -> ", the words that matter in the
message.
"""

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
WORDS = Path(__file__).with_name("refused_commands.txt").read_text(encoding="utf-8")
"""Commands, and the words that matter, a line each."""
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
        "zero.txt": "1\n-1\n1\n-1\n",
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
import contextlib, io, os, sys, sklearn.datasets, fedpage.cli.main, typer.rich_utils
for words in (["--data", "census:rows=100", "--rounds", "1"], ["--data", "nothing"]):
    sys.argv = ["fedpage", "run", "fedpage", "--clients", "10", *words]
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        with contextlib.suppress(SystemExit):
            fedpage.cli.main.main()
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
