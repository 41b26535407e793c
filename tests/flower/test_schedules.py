"""Schedules on a federation: nodes take the step of the round from the message's number."""

from __future__ import annotations

import pytest

import fedpage as fp


@pytest.mark.parametrize(
    ("method", "hyper"),
    [
        ("fedavg", "S=3 K=3 eta_l=cosine:0.3:6:0.01 eta_g=warmup:3:1.0"),
        ("scaffold", "S=3 K=3 eta_l=step:0.3:2:0.5"),
        ("fedpage-leak-free", "S=3 K=3 p=0.4 eta_g=warmup:2:step:0.3:2:0.5"),
    ],
)
def test_history_equals_the_simulator(federate, simulated, method, hyper, tmp_path):
    strategy = federate(method=method, hyper=hyper)
    history = simulated(method=method, hyper=hyper)
    assert strategy.history.same(history)
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)
    constant = simulated(method=method, hyper="S=3 K=3")
    assert not history.same(constant)


def test_a_schedule_of_a_file_needs_the_owners_permission(
    federate, simulated, tmp_path, monkeypatch
):
    path = tmp_path / "decay.py"
    path.write_text("def decay(round):\n    return 0.3 / (1 + round)\n", encoding="utf-8")
    changes = {"method": "fedavg", "hyper": f"S=3 K=2 eta_l={path}@decay"}
    with pytest.raises(fp.InputError, match="did not allow"):
        federate(**changes, wait=1.0)
    monkeypatch.setenv("FEDPAGE_ALLOW", f"{path}@decay")
    allowed = federate(**changes, out=str(tmp_path / "allowed")).history
    assert allowed.same(simulated(**changes))
