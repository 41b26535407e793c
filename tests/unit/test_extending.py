"""A run with more rounds: bit for bit the longer run, or a clear refusal."""

import re
import shutil
import tomllib

import pytest
from support import KillAtWrite, Killed, make_method, quadratic, uneven

import fedpage as fp
from fedpage.runs import toml

SOME = ("FedPAGE", "SCAFFOLD-II", "COFIG-randk", "SecantPAGE")
"""Methods with no, one and random states of clients, and passes; tests/unit/test_rundir.py resumes
all.
"""


class Start(fp.Callback):
    """Remember how many rounds were done when the run started."""

    def on_run_start(self, info):
        self.start = info.start


def extend(out, rounds, problem, method, **arguments):
    """Resume a run with other rounds; return its history and the round that it started from."""
    start = Start()
    options = arguments.pop("options", fp.RunOptions(resume=True))
    history = fp.simulate(
        problem, method, rounds=rounds, out=out, options=options, callbacks=[start], **arguments
    )
    return history, getattr(start, "start", None)


@pytest.mark.parametrize("name", SOME)
def test_an_extended_run_has_the_bits_of_the_longer_run(name, tmp_path):
    problem, method = uneven(), make_method(name, 4, 3, 0.1)
    faults = fp.Faults(dropout=0.2, late=0.2)
    arguments = {"seed": 3, "record_every": 5}
    fp.simulate(
        problem, method, rounds=13, out=tmp_path, options=fp.RunOptions(faults=faults), **arguments
    )
    whole = fp.simulate(
        problem, method, rounds=22, options=fp.RunOptions(faults=faults), **arguments
    )
    options = fp.RunOptions(faults=faults, resume=True)
    history, start = extend(tmp_path, 22, problem, method, options=options, **arguments)
    assert start == 13
    assert history.same(whole)
    assert history.events == whole.events
    stored = fp.History.load(tmp_path)
    assert stored.same(whole)
    assert stored.meta["rounds"] == history.meta["rounds"] == 22


@pytest.mark.parametrize("every", [0, 1, 5, 13, 20, "log"])
def test_the_last_record_of_the_shorter_run_stays_only_where_the_longer_has_it(tmp_path, every):
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    arguments = {"seed": 1, "record_every": every}
    for rounds in (0, 13, 26, 39):  # one extension after the other
        history, start = extend(tmp_path, rounds, problem, method, **arguments)
        assert start == max(0, rounds - 13)
        assert history.same(fp.simulate(problem, method, rounds=rounds, **arguments))
        assert fp.History.load(tmp_path).same(history)


def test_patience_does_not_count_the_record_that_a_longer_run_has_not(tmp_path):
    problem, method = quadratic(), fp.FedAvg(S=3, K=2, eta_l=0.3)
    stop = fp.Stop(patience=3, monitor="grad_norm")
    arguments = {"seed": 0, "record_every": 4, "stop": stop}
    for rounds in (5, 6, 7, 40):
        history, _ = extend(tmp_path, rounds, problem, method, **arguments)
    assert history.same(fp.simulate(problem, method, rounds=40, **arguments))


def test_a_run_that_a_rule_has_ended_stays_ended(tmp_path, caplog):
    problem, method = quadratic(), fp.FedPAGE(S=3, K=2, eta_g=0.1)
    first = fp.simulate(problem, method, rounds=1, seed=0, record_every=1)
    arguments = {"seed": 0, "record_every": 1, "stop": fp.Stop(f"loss:{first.last('loss')},hold=0")}
    ended = fp.simulate(problem, method, rounds=20, out=tmp_path, **arguments)
    before = (tmp_path / "run.toml").read_bytes()
    with caplog.at_level("INFO", logger="fedpage"):
        history, start = extend(tmp_path, 50, problem, method, **arguments)
    assert (start, history.stop_reason) == (None, fp.StopReason.TARGET)
    assert history.same(ended)
    assert "already ended (target reached: " in caplog.text
    assert "it stays so with any number of rounds" in caplog.text
    assert (tmp_path / "run.toml").read_bytes() == before
    caplog.clear()
    with caplog.at_level("INFO", logger="fedpage"):
        extend(tmp_path, 20, problem, method, **arguments)
    assert caplog.messages == [f"{tmp_path}: the run has already ended"]


def test_an_extension_that_is_killed_at_any_write_is_resumed(tmp_path, monkeypatch):
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    arguments = {"seed": 0, "record_every": 7}
    fp.simulate(problem, method, rounds=20, out=tmp_path / "short", **arguments)
    whole = fp.simulate(problem, method, rounds=30, **arguments)
    killer = KillAtWrite(monkeypatch)
    kills = 0
    for moment in range(1, 100):
        out = tmp_path / str(moment)
        shutil.copytree(tmp_path / "short", out)
        killer.left = moment
        try:
            history, _ = extend(out, 30, problem, method, **arguments)
        except Killed:
            kills += 1
            killer.left = 0
            history, start = extend(out, 30, problem, method, **arguments)
            assert start in (None, 20, 30)  # None: it had ended
        assert history.same(whole)
        assert fp.History.load(out).same(whole)
        assert tomllib.loads((out / "run.toml").read_text())["fingerprint"]["rounds"] == 30
        if kills < moment:
            break
    assert kills >= 16


SMALL = ["--data", "census:rows=200", "--clients", "40", "--S", "4"]
RUN = ["run", "scaffold", *SMALL, "--record-every", "7"]


def test_the_command_line_extends_a_run(run, tmp_path):
    assert run(*RUN, "--rounds", "20", "--out", "r")[0] == 0
    code, _, err = run("resume", "r", "--rounds", "30")
    assert code == 0, err
    assert "r: resuming after round 20" in err
    assert run(*RUN, "--rounds", "30", "--out", "whole")[0] == 0
    extended, whole = (fp.History.load(tmp_path / name) for name in ("r", "whole"))
    assert extended.same(whole)
    assert extended.meta == whole.meta
    tables = [toml.read(tmp_path / name / "run.toml") for name in ("r", "whole")]
    assert [table["command"] for table in tables] == [tables[1]["command"]] * 2
    code, _, err = run("resume", "r")
    assert (code, "the run has already ended" in err) == (0, True)
    code, _, err = run("resume", "r", "--rounds", "10")
    assert code == 2
    assert "cannot resume with 10 rounds: 30 are done" in err


def test_the_command_line_extends_a_comparison(run, tmp_path):
    words = ["compare", "--methods", "fedpage,fedavg", *SMALL, "--seeds", "2"]
    words += ["--record-every", "7"]
    assert run(*words, "--rounds", "10", "--out", "c")[0] == 0
    code, _, err = run("resume", "c", "--rounds", "9")
    assert (code, "the comparison in c has 10 rounds" in err) == (2, True)
    code, _, err = run("resume", "c", "--rounds", "20")
    assert code == 0, err
    assert run(*words, "--rounds", "20", "--out", "whole")[0] == 0
    for path in (tmp_path / "whole" / "runs").iterdir():
        assert fp.History.load(tmp_path / "c" / "runs" / path.name).same(fp.History.load(path))
    assert (tmp_path / "c" / "compare.toml").read_bytes() == (
        tmp_path / "whole" / "compare.toml"
    ).read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [("rounds = 20", "rounds = 30"), ('S = "4"', 'S = "5"'), ("stop = false", "stop = true")],
)
def test_a_run_file_that_was_edited_by_hand_is_refused(run, tmp_path, old, new):
    assert run(*RUN, "--rounds", "20", "--out", "r")[0] == 0
    path = tmp_path / "r" / "run.toml"
    text = path.read_text()
    begin = text.index("[command")
    path.write_text(text[:begin] + text[begin:].replace(old, new, 1))
    code, _, err = run("resume", "r")
    assert code == 2
    assert err.count("\n") == 1
    assert "run.toml: damaged or edited by hand" in err
    assert "`fedpage resume r --rounds N`" in err
    assert "`fedpage run --config r/run.toml --set KEY=VALUE --out NEW`" in err


def test_a_comparison_that_was_edited_by_hand_is_refused(run, tmp_path):
    words = ["compare", "--methods", "fedavg", *SMALL, "--seeds", "1"]
    assert run(*words, "--rounds", "10", "--out", "c")[0] == 0
    path = tmp_path / "c" / "compare.toml"
    path.write_text(path.read_text().replace("seeds = 1", "seeds = 2"))
    code, _, err = run("resume", "c")
    assert code == 2
    assert "compare.toml: damaged or edited by hand" in err


def test_a_run_file_of_an_earlier_version_has_no_checksum_and_is_refused(run, tmp_path):
    assert run(*RUN, "--rounds", "20", "--out", "r")[0] == 0
    path = tmp_path / "r" / "run.toml"
    path.write_text(re.sub(r"format = \d\n|checksum = .*\n", "", path.read_text()))
    code, _, err = run("resume", "r", "--rounds", "21")
    assert code == 2
    assert "r/run.toml: not the settings of a run of this version of fedpage" in err
