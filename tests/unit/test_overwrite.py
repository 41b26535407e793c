"""Directories with runs: nothing is deleted by accident, and what a full disk advises works."""

import re
import shlex
import shutil

import pytest
from support import FullDisk, quadratic

import fedpage as fp
from fedpage.runs.lock import DirectoryLock, RunInUse, is_in_use

SMALL = ["--clients", "20", "--rounds", "12", "--S", "4"]
COMMANDS = {
    "run": ["run", "fedavg", *SMALL, "--out", "out"],
    "compare": ["compare", "--methods", "fedavg,page", *SMALL, "--seeds", "1", "--out", "out"],
    "tune": ["tune", "fedavg", *SMALL, "--K", "2", "--search", "eta_l=0.1,0.2", "--fixed-grid",
             "--target", "0.2", "--seeds", "2", "--held-out-seeds", "2", "--record-every", "4",
             "--out", "out"],
    "choose": ["choose", "--clients", "20", "--target", "0.1", "--methods", "fedavg", "--budget",
               "5s", "--rounds", "20", "--jobs", "1", "--out", "out"],
    "demo": ["demo", "--rounds", "10", "--seeds", "1", "--out", "out"],
}  # fmt: skip


def content(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_that_is_there_is_not_deleted(tmp_path):
    problem, method = quadratic(), fp.FedAvg(S=2)
    first = fp.simulate(problem, method, rounds=5, seed=0, out=tmp_path)
    before = content(tmp_path)
    for call in (
        lambda: fp.simulate(problem, method, rounds=5, seed=1, out=tmp_path),
        lambda: fp.simulate(problem, method, rounds=5, seed=0, out=tmp_path),
    ):
        with pytest.raises(fp.InputError) as error:
            call()
        assert str(error.value) == (
            f"{tmp_path}: there is a run in it; choose another directory, resume it with "
            "RunOptions(resume=True), or delete it with RunOptions(overwrite=True)"
        )
        assert content(tmp_path) == before
    assert fp.History.load(tmp_path).same(first)
    options = fp.RunOptions(overwrite=True)
    other = fp.simulate(problem, method, rounds=5, seed=1, out=tmp_path, options=options)
    assert fp.History.load(tmp_path).same(other)
    resume = fp.RunOptions(resume=True, overwrite=True)
    assert fp.simulate(problem, method, rounds=5, seed=1, out=tmp_path, options=resume).same(other)


def test_a_sweep_that_is_there_is_not_deleted(tmp_path):
    def sweep(S, **options):
        more = {"rounds": 5, "seeds": 2, "out": tmp_path, "options": fp.RunOptions(**options)}
        fp.sweep(quadratic(), [fp.FedAvg(S=S)], **more)
        return content(tmp_path)

    before = sweep(2)
    with pytest.raises(fp.InputError, match="there is a run in it"):
        sweep(3)
    assert content(tmp_path) == before
    assert sweep(3, overwrite=True) != before


@pytest.fixture
def used(tmp_path):
    """Make a directory as a command leaves it: settings, runs and trials."""
    for name in ("compare.toml", "run.toml", "runs/0-fedavg-seed0/history.jsonl", "trials.jsonl"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("precious")
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, "out") for name in COMMANDS]
    + [(name, "out/runs/0-fedavg-seed0") for name in ("compare", "demo")],
)
def test_force_does_not_touch_what_another_process_is_writing(refused, used, name, place):
    with DirectoryLock(used.parent / place):
        before = content(used)
        refused([*COMMANDS[name], "--force"], f"{place}: another process is writing to it")
        assert {path: data for path, data in content(used).items() if path in before} == before


def test_the_directory_of_a_flower_demo_is_locked(refused, tmp_path):
    pytest.importorskip("flwr")
    place = tmp_path / "flower-demo"
    with DirectoryLock(place):
        (place / "superlink.log").write_text("precious")
        refused(["deploy", "demo"], "flower-demo: another process is writing to it")
        assert (place / "superlink.log").read_text() == "precious"


def test_a_directory_is_locked_and_cleared(tmp_path):
    with DirectoryLock(tmp_path / "a") as lock:
        assert is_in_use(tmp_path / "a")
        with pytest.raises(RunInUse), DirectoryLock(tmp_path / "a"):
            pass
        (tmp_path / "a" / "b" / "c").mkdir(parents=True)
        (tmp_path / "a" / "file").touch()
        (tmp_path / "a" / "link").symlink_to(tmp_path)
        with DirectoryLock(tmp_path / "a" / "b" / "c"), pytest.raises(RunInUse, match="a/b/c"):
            lock.clear()
        lock.clear("file")
        assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [".lock", "b", "link"]
        lock.clear()
        assert [p.name for p in (tmp_path / "a").iterdir()] == [".lock"]
    assert not is_in_use(tmp_path / "a")
    assert tmp_path.is_dir()


# --- a full disk ----------------------------------------------------------------------------------


STUDY = """
rounds = 12
seeds = 2
target = "0.2"
[problems.census]
data = "census:rows=200"
clients = 20
[methods.fedavg]
S = 4
"""


@pytest.mark.parametrize(
    ("name", "moments"), [("run", (0, 6)), ("compare", (5,)), ("tune", (2,)), ("study", (3,))]
)
def test_what_a_full_disk_advises_works(run, tmp_path, monkeypatch, name, moments):
    (tmp_path / "study.toml").write_text(STUDY)
    words = COMMANDS.get(name, ["study", "run", "study.toml", "--store", "out", "--out", "report"])
    disk, advised = FullDisk(monkeypatch), 0
    for writes in moments:
        disk.left = writes
        code, _, err = run(*words)
        disk.left = 10**9
        assert code in (1, 2)
        last = err.splitlines()[-1]  # after the bars
        assert last.startswith("fedpage: ")
        assert "No space left on device" in last
        found = re.search(r"`fedpage (.*?)` continues", last)
        advised += found is not None or "the same command continues" in last
        code, _, why = run(*(words if found is None else shlex.split(found[1])))
        assert code == 0, (last, why)
        shutil.rmtree(tmp_path / "out")
    assert advised
