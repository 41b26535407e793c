"""Mistakes on the command line: each ends with one line on stderr, a code and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BIN = [sys.executable, "-c", "from fedpage.cli.main import main; main()"]
BIG = str(10**12)
SMALL = ("--data", "census:rows=200", "--clients", "20")
RUN = ("run", "fedpage", *SMALL)
COMPARE = ("compare", *SMALL)
TUNE = ("tune", "fedpage", *SMALL)
PLAN = ("plan", "--target", "0.1")
REPRODUCE = ("reproduce", "comparison/a9a-robust")
EVERY = (RUN, COMPARE, ("demo",), ("methods",), ("codecs",), PLAN, TUNE, REPRODUCE,
         ("data", "list"), ("data", "fetch", "a9a"), ("data", "verify", "a9a"),
         ("data", "path"))  # fmt: skip


@pytest.fixture
def fail(run):
    """Return a function that asserts one line on stderr and code 1 or 2, and returns the line."""

    def check(*words):
        code, _, err = run(*words)
        assert code in (1, 2), words
        assert err.startswith("fedpage: "), err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert "please report it" not in err, err
        return err

    return check


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_unknown_options_are_refused(fail, words, tmp_path):
    assert "--bogus" in fail(*words, "--bogus") or "'bogus'" in fail(*words, "--bogus", "1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ((*RUN, "--round", "10"), "did you mean '--rounds'?"),
        ((*RUN, "--dat", "a9a"), "did you mean '--data'?"),
        ((*RUN, "--forc"), "did you mean '--force'?"),
        ((*RUN, "--eta-gg", "1"), "did you mean '--eta-g'?"),
        ((*TUNE, "--serch", "step=1"), "did you mean '--search'?"),
        ((*TUNE, "--seed", "3"), "did you mean '--seeds'?"),
        ((*COMPARE, "--round", "5"), "did you mean '--rounds'?"),
        (("demo", "--seds", "5"), "did you mean '--seeds'?"),
        (("plan", "--targt", "5"), "did you mean '--target'?"),
        ((*REPRODUCE, "--quik"), "did you mean '--quick'?"),
        (("rn",), "did you mean 'run'?"),
        (("tun", "fedpage"), "did you mean 'tune'"),
        (("data", "lst"), "did you mean 'list'?"),
        (("run", "scafold"), "did you mean 'scaffold'?"),
        (("tune", "fedavgg"), "did you mean 'fedavg'?"),
        (("methods", "fedpge"), "did you mean 'fedpage'?"),
        ((*COMPARE, "--methods", "fedpage,fedprx"), "did you mean 'fedprox'?"),
        ((*RUN, "--data", "mushroms"), "did you mean 'mushrooms'?"),
        ((*PLAN, "--data", "cencus"), "did you mean 'census'?"),
        (("data", "verify", "w9a"), "did you mean 'w8a'?"),
        ((*RUN, "--objective", "logistik"), "did you mean 'logistic'?"),
        ((*RUN, "--partition", "bloks"), "did you mean 'blocks'?"),
        ((*RUN, "--partition", "dirichle:1"), "did you mean 'dirichlet'?"),
        (("reproduce", "comparison/a9a-robst"), "did you mean 'comparison/a9a-robust'?"),
        ((*TUNE, "--cost", "byte"), "did you mean 'bytes'?"),
    ],
)  # fmt: skip
def test_misspelt_words_get_a_suggestion(fail, words, meant):
    assert meant in fail(*words)


@pytest.mark.parametrize(
    "words",
    [
        (*RUN, "--rounds"), (*RUN, "--rounds", "ten"), (*RUN, "--rounds", "1.5"),
        (*RUN, "--rounds", ""),
        (*RUN, "-S", "1"),
        (*RUN, "--rounds", "-1"), (*RUN, "--clients", BIG), (*RUN, "--clients", "-1"),
        (*RUN, "--clients", "9" * 5000),
        (*RUN, "--rounds", str(10**18), "--S", "4000"), (*RUN, "--S", BIG), (*RUN, "--K", BIG),
        (*RUN, "--b3", "-1"),
        (*RUN, "--eta-g", "1e999"), (*RUN, "--eta-g", "0x1"), (*RUN, "--periodic", "true"),
        (*RUN, "--seed", str(2**64)),
        (*RUN, "--partition", "dirichlet:inf"), (*RUN, "--partition", "dirichlet:nan"),
        (*RUN, "--partition", ""),
        (*RUN, "--partition", "power-law:-1"), (*RUN, "--partition", f"label-shards:{BIG}"),
        (*RUN, "--objective", ""),
        (*RUN, "--data", f"census:rows={BIG}"),
        (*RUN, "--data", "census:seed=-1"),
        (*RUN, "--data", "digits:rows=3"), (*RUN, "--data", "a\nb.txt"),
        (*RUN, "--data", "a\0b.txt"),
        (*RUN, "--steps", "x"),
        (*RUN, "--objective", "logistic-l2", "--alpha", "nan"), (*RUN, "--alpha"), ("run", ""),
        ("run", "@"),
        ("run", "x.py@"),
        (*RUN, "--out", "a\0b"), (*RUN, "--report", "a\0b"), (*RUN, "--=3"),
        (*COMPARE, "--seeds", BIG),
        (*COMPARE, "--seeds", "-3"), (*COMPARE, "--jobs", "0"), (*COMPARE, "--S", BIG),
        (*COMPARE, "--K", BIG),
        (*COMPARE, "--step", "nan"), (*COMPARE, "--methods", ""),
        (*COMPARE, "--methods", "fedpage:"),
        (*COMPARE, "x"),
        (*COMPARE, "--methods", "fedpage:K=0"), (*COMPARE, "--methods", "fedpage:K"),
        ("demo", "--rounds", "0"),
        ("demo", "--seeds", BIG), ("demo", "x"), ("methods", "a", "b"), ("plan",),
        ("plan", "--target", "1e-300"),
        ("plan", "--target", "nan"), ("plan", "--target", "-1"), (*PLAN, "--clients", "0"),
        (*PLAN, "--S", BIG),
        (*PLAN, "--clients", "1" + "0" * 400), (*PLAN, "--latency", "inf"),
        (*PLAN, "--uplink", "0"),
        (*PLAN, "--K", "0"),
        (*PLAN, "--parameters", "0"), (*PLAN, "--L", "1e308", "--D0", "1e308"), (*TUNE, "--search"),
        (*TUNE, "--search", "steps"), (*TUNE, "--search", "step=,"), (*TUNE, "--search", "eta=1"),
        (*TUNE, "--seeds", BIG),
        (*TUNE, "--search", "K=0"), (*TUNE, "--held-out-seeds", "0"),
        (*TUNE, "--held-out-seeds", BIG),
        (*TUNE, "--target", "0"),
        (*TUNE, "--cost", "seconds"), (*TUNE, "--jobs", "-1"), (*TUNE, "--clients", BIG),
        ("tune",), ("reproduce",),
        ("reproduce", ""), ("reproduce", "comparison"), (*REPRODUCE, "--seeds", "0"),
        (*REPRODUCE, "--seeds", BIG),
        (*REPRODUCE, "--data", "nowhere.txt"), ("data", "path", ""), ("data", "fetch"),
        ("data", "fetch", "census"),
        ("data", "fetch", "a9a", "--mirror", "ftp:/x"), ("data", "verify", "a9a", "b"),
        ("nothing",), ("--bogus",),
        ("-x",),
    ],
    ids=lambda words: " ".join(word for word in words if word not in SMALL)[:50],
)  # fmt: skip
def test_wrong_values_are_refused(fail, words, tmp_path):
    fail(*words)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def places(tmp_path):
    """Create a file, a directory, broken links, a binary file, a cut archive and an empty file."""
    (tmp_path / "file").write_text("x\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "cut.xz").write_bytes(b"\xfd7zXZ\0\0\4")
    (tmp_path / "empty").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("words", [RUN, COMPARE, TUNE, PLAN, REPRODUCE], ids=" ".join)
@pytest.mark.parametrize(
    "name",
    [
        "file",
        "folder",
        "./loop",
        "./broken",
        "binary",
        "cut.xz",
        "empty",
        "file/below.txt",
        "no/x",
        "/dev/null",
    ],
)
def test_unreadable_data_is_refused(fail, places, words, name):
    assert name.removeprefix("./") in fail(*words, "--data", name)


@pytest.mark.parametrize("name", ["folder@X", "binary@X", "loop@X", "file@X", "broken@X", "x.py@X"])
def test_unreadable_methods_are_refused(fail, places, name):
    (places / "x.py").write_text("def (")
    assert name.partition("@")[0] in fail("run", name)


@pytest.mark.parametrize("words", [RUN, COMPARE, ("demo",), TUNE, REPRODUCE], ids=" ".join)
@pytest.mark.parametrize(
    "name", ["file", "file/below", "loop", "loop/below", "/proc/none", "/dev/null"]
)
def test_unwritable_out_is_refused(fail, places, real, words, name):
    if words is REPRODUCE:
        real("a9a")
    assert f"--out {name}: " in fail(*words, "--out", name)


@pytest.mark.parametrize("name", ["folder", "file/below", "loop/below", "/proc/none/x.html"])
def test_unwritable_reports_are_refused_before_the_run(fail, places, name):
    assert f"--report {name}: " in fail(*RUN, "--report", name)


def call(*words, **options):
    env = os.environ | {"FEDPAGE_DEBUG": ""}
    return subprocess.run(
        [*BIN, *words], stderr=subprocess.PIPE, text=True, env=env, timeout=60, **options
    )


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
def test_closed_or_full_standard_output_is_reported():
    closed = call("methods", preexec_fn=lambda: os.close(1))
    assert closed.returncode == 1
    assert closed.stderr == "fedpage: standard output is closed: results cannot be printed\n"
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = call("methods", stdout=full)
        assert done.returncode == 1
        assert done.stderr == "fedpage: No space left on device\n"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
@pytest.mark.parametrize(
    ("words", "what"),
    [(("--data", "secret"), "Permission denied"), (("--out", "new"), "--out new")],
)
def test_missing_permissions_are_reported(words, what):
    """Root may do anything, so the process becomes nobody once it has imported what it needs."""
    become = (
        "import contextlib, os, sys, rich.progress, sklearn.datasets, fedpage.cli.main\n"
        "import fedpage.engine.simulate\n"
        "from fedpage.runs import build, config\n"
        "sys.argv = ['fedpage', 'run', '--help']\n"
        # typer imports some modules late
        "with contextlib.suppress(SystemExit):\n    fedpage.cli.main.main()\n"
        "build.build_problem(config.ProblemConfig(clients=10)); os.setuid(65534); "
        f"sys.argv = ['fedpage', 'run', 'fedpage', *{words!r}]; fedpage.cli.main.main()"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Path(folder, "secret").touch(mode=0o600)
        done = subprocess.run(
            [sys.executable, "-c", become], capture_output=True, text=True, timeout=60, cwd=folder
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("fedpage: ")
    assert done.stderr.count("\n") == 1
    assert what in done.stderr


def test_a_damaged_search_file_is_named(places):
    from fedpage.core.errors import InputError
    from fedpage.studies.paper import tuning

    path = places / "a9a.json"
    for text in ("{", "[1]", "[" * 100_000, '[{"panel": "x", "eta_g": "a", "within_tenth": []}]'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"a9a\.json: not a result of the search"):
            tuning.load(None, "local-steps/a9a", None, path)


@pytest.mark.parametrize("value", ["x" * 5000, "9" * 5000, "a\x1b[31m\rb", "\udcff" * 300])
@pytest.mark.parametrize(
    "words",
    [
        ("run",), (*RUN, "--rounds"), (*RUN, "--S"), (*RUN, "--eta-g"), (*RUN, "--partition"),
        (*RUN, "--objective"), (*RUN, "--data"), (*RUN, "--up"), (*RUN, "--target"),
        (*RUN, "--devices"), (*RUN, "--faults"), (*RUN, "--checkpoint-every"), (*RUN,),
        (*COMPARE, "--methods"), (*TUNE, "--search"), (*TUNE, "--cost"), ("plan", "--target"),
        ("reproduce",), ("resume",), ("study", "run"), ("data", "fetch"), ("methods",), (),
    ],
    ids=lambda words: " ".join(word for word in words if word not in SMALL)[:50] or "nothing",
)  # fmt: skip
def test_long_and_unprintable_words_give_one_short_line(fail, words, value):
    line = fail(*words, value).removeprefix("fedpage: ").removesuffix("\n")
    assert len(line) <= 200
    assert line.isprintable()
