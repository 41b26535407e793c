"""Check which rounds are recorded, above all by record_every="log"."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fedpage as fp
from fedpage.cli.options import RunConfig
from fedpage.core.columns import is_recorded
from fedpage.core.errors import InputError
from fedpage.flower.config import parse_app_config, write_app
from fedpage.runs.config import structure, to_table

METHOD = fp.FedPAGE(S=3, K=2)
LOG_130 = [
    *range(11), 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100, 120, 130,
]  # fmt: skip


def quadratic() -> fp.Quadratic:
    return fp.Quadratic.random(6, 4, 3, seed=0)


def test_the_logarithmic_schedule_is_geometric():
    rounds = [done for done in range(1, 100_001) if is_recorded(done, "log")]
    assert rounds[:10] == list(range(1, 11))
    ratios = np.diff(rounds[9:]) / rounds[9:-1]
    assert 0.1 <= ratios.min() <= ratios.max() <= 0.25
    assert len(rounds) == 10 + 4 * 14
    assert [10 * done for done in rounds if 10 <= done < 1000] == [
        done for done in rounds if 100 <= done < 10_000
    ]


def test_a_run_records_the_schedule_its_start_and_its_end():
    history = fp.simulate(quadratic(), METHOD, rounds=130, seed=0, record_every="log")
    assert history["round"].tolist() == LOG_130
    assert history.meta["record_every"] == "log"
    every = fp.simulate(quadratic(), METHOD, rounds=130, seed=0, record_every=1)
    assert history.x.tobytes() == every.x.tobytes()
    for name in ("loss", "grad_norm", "bytes_up"):
        assert history[name].tolist() == every[name][LOG_130].tolist()
    target = float(np.sqrt(every["grad_norm"][30] * every["grad_norm"][35]))
    exact = every.cost_to(fp.Target("grad_norm", target, hold=0), "round")
    between = history.cost_to(fp.Target("grad_norm", target, hold=0), "round")
    assert between == pytest.approx(exact, rel=0.2)
    runs = fp.sweep(quadratic(), [METHOD], rounds=130, seeds=1, record_every="log")
    assert runs[0].same(history)


def test_a_resumed_run_keeps_the_schedule(tmp_path):
    whole = fp.simulate(quadratic(), METHOD, rounds=130, seed=0, record_every="log")
    options = fp.RunOptions(checkpoint_every=7)

    def kill(ended):
        if ended.round == 47:
            raise KeyboardInterrupt

    callbacks = [fp.FunctionCallback(on_round_end=kill)]
    arguments = {"rounds": 130, "seed": 0, "record_every": "log", "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        fp.simulate(quadratic(), METHOD, callbacks=callbacks, options=options, **arguments)
    options = dataclasses.replace(options, resume=True)
    assert fp.simulate(quadratic(), METHOD, options=options, **arguments).same(whole)


def test_configurations_take_the_word():
    config = structure(RunConfig, {"record_every": "log"}, "run.toml")
    assert config.record_every == "log"
    assert structure(RunConfig, to_table(config), "run.toml") == config
    assert structure(RunConfig, {"record_every": 3}, "run.toml").record_every == 3
    app = parse_app_config({"clients": 2, "rounds": 3, "record-every": "log"})
    assert app.record_every == "log"
    assert 'record-every = "log"' in write_app(app)


@pytest.mark.parametrize("value", ["lg", "", -1, 1.5, True, None])
def test_other_schedules_are_refused(value):
    with pytest.raises(InputError, match="record_every must be"):
        fp.simulate(quadratic(), METHOD, rounds=3, seed=0, record_every=value)
    with pytest.raises(InputError, match="record_every must be 'log' or a whole number of at le"):
        structure(RunConfig, {"record_every": value}, "run.toml")


def test_the_command_line_takes_the_word(run, refused, tmp_path):
    problem = ["--data", "census:rows=200", "--clients", "20", "--rounds", "15"]
    words = ["run", "fedpage", *problem, "--S", "3", "--record-every", "log", "--out", "a"]
    code, _, err = run(*words)
    assert code == 0, err
    rounds = fp.History.load(tmp_path / "a")["round"]
    assert rounds.tolist() == [*range(11), 12, 14, 15]
    for command in ("run", "tune"):
        words = [command, "fedpage", *problem, "--out", "b", "--record-every"]
        refused([*words, "lag"], "--record-every must be 'log' or a whole number")
    refused([*words, "log"], "record_every must be a whole number of at least 1, not 'log'")
