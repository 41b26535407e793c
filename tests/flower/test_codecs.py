"""Settings of methods on a federation: equal bits to the simulator, and every byte counted."""

import numpy as np
import pytest
from faults import At, change_reply

import fedpage as fp

HYPER = {
    "fedavg": "S=3 K=3", "fedpage": "S=3 K=3 eta_g=0.2 p=0.4", "pp-marina": "S=3 eta_g=0.2 p=0.4",
    "secantpage": "S=3", "cofig": "S=3 eta=0.2", "frecon": "S=3 eta=0.1", "ef21-pp": "S=3 eta=0.1",
    "dasha-pp": "S=3 eta=0.1", "scallion": "S=3 K=3", "fedadam": "S=3 K=3", "svrp": "S=3 K=3",
    "feddyn": "S=3 K=3",
}  # fmt: skip
"""A method of each family, with hyper-parameters for eight clients."""
SHORT = {"rounds": 5, "record-every": 0}
UNBIASED = ["natural", "randk:12", "randk:0.1", "permk", "dither:3", "bernoulli:0.5"]
CHAINS = ["randk:12+natural", "permk+dither:4", "randk:7+float32"]
CASTS = ["float32", "float16", "bfloat16"]
TAKES = {
    "cofig": [*UNBIASED, *CHAINS, *CASTS],
    "fedpage": ["natural", "permk+dither:4"],
    "ef21-pp": ["topk:12", "sign", "scaled(randk:12)", "topk:0.1+natural"],
    "fedavg": ["bernoulli:0.5", "bfloat16"],
    "pp-marina": ["permk"],
    "secantpage": ["randk:12", "float32"],
    "frecon": ["randk:12+natural"],
    "dasha-pp": ["randk:12"],
    "scallion": ["natural"],
    "fedadam": ["natural"],
    "svrp": ["float32"],
    "feddyn": ["float32"],
}


@pytest.mark.parametrize(
    ("method", "codec"), [(method, codec) for method, found in TAKES.items() for codec in found]
)
def test_the_simulator_agrees_and_every_byte_is_counted(federate, simulated, method, codec):
    changes = {"method": method, "hyper": f"{HYPER[method]} up={codec}", **SHORT}
    strategy, history = federate(**changes), simulated(**changes)
    assert strategy.history.same(history)
    for direction in ("up", "down"):
        counted = history.last(f"bytes_{direction}")
        assert strategy.grid.train_bytes[direction] == counted
        assert counted - 8 * 5 * 40 <= history.last(f"bits_{direction}") / 8 <= counted


@pytest.mark.parametrize("codec", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["fedavg", "fedpage", "cofig"])
def test_rounded_messages(federate, simulated, method, codec):
    changes = {"method": method, "hyper": f"{HYPER[method]} down={codec}", **SHORT}
    strategy, history = federate(**changes), simulated(**changes)
    assert strategy.history.same(history)
    assert strategy.grid.train_bytes["down"] == history.last("bytes_down")
    exact = simulated(**changes | {"hyper": HYPER[method]})
    assert history.last("bytes_down") == exact.last("bytes_down") / (2 if codec == "float32" else 4)
    assert not np.array_equal(history.x, exact.x)
    np.testing.assert_allclose(history.x, exact.x, rtol=0, atol=0.05)


def test_a_lost_reply_is_sent_again_with_the_same_mask(federate, simulated):
    changes = {"method": "cofig", "hyper": f"{HYPER['cofig']} up=permk"}
    history = federate(At("lost", clients=[1, 3, 5, 7], once=True), **changes).history
    assert history.x.tobytes() == simulated(**changes).x.tobytes()
    assert history.last("missing") > 0


@pytest.mark.parametrize("codec", ["topk:12", "dither:3", "natural", "randk:12"])
def test_a_payload_that_is_cut_by_a_byte_is_rejected(federate, codec):
    cut = change_reply(lambda arrays, header: {name: a[:-1] for name, a in arrays.items()})
    method = "ef21-pp" if codec == "topk:12" else "cofig"
    history = federate(At(cut, clients=[2]), method=method, hyper=f"{HYPER[method]} up={codec}")
    assert history.history.last("rejected") > 0
    assert np.isfinite(history.history.x).all()


# Schedules, client optimisers and epochs: nodes take the step of the round from its number


@pytest.mark.parametrize(
    ("method", "hyper"),
    [
        ("fedavg", "S=3 K=3 eta_l=cosine:0.3:6:0.01 eta_g=warmup:3:1.0"),
        ("scaffold", "S=3 K=3 eta_l=step:0.3:2:0.5"),
        ("fedpage-leak-free", "S=3 K=3 p=0.4 eta_g=warmup:2:step:0.3:2:0.5"),
        ("fedavg-training", "S=3 K=3 eta_l=0.1 client_optimizer=momentum:0.9+decay:0.01+clip:0.5"),
        ("fedprox", "S=3 K=3 eta_l=0.1 client_optimizer=adam:0.9:0.99"),
        ("fedavg-training", "S=3 epochs=2 b=8 eta_l=0.1"),
        ("fedadam", "S=3 epochs=2 b=7 eta_l=step:0.1:3:0.5 client_optimizer=nesterov:0.9"),
    ],
)
def test_training_equals_the_simulator(federate, simulated, method, hyper, tmp_path):
    history = simulated(method=method, hyper=hyper)
    assert federate(method=method, hyper=hyper).history.same(history)
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)
    assert not history.same(simulated(method=method, hyper="S=3 K=3"))


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
