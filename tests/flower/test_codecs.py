"""Compressed replies on a federation: equal bits to the simulator, and every byte counted."""

from __future__ import annotations

import numpy as np
import pytest

CASES = {
    "fedavg": "S=3 K=3",
    "fedpage": "S=3 K=3 eta_g=0.2 p=0.4",
    "pp-marina": "S=3 eta_g=0.2 p=0.4",
    "secantpage": "S=3",
    "cofig": "S=3 eta=0.2",
    "frecon": "S=3 eta=0.1",
    "ef21-pp": "S=3 eta=0.1",
    "dasha-pp": "S=3 eta=0.1",
    "scallion": "S=3 K=3",
    "fedadam": "S=3 K=3",
    "svrp": "S=3 K=3",
    "feddyn": "S=3 K=3",
}
"""A method of each family, with hyper-parameters for eight clients."""
SHORT = {"rounds": 5, "record-every": 0}
UNBIASED = ["natural", "randk:12", "randk:0.1", "permk", "dither:3", "bernoulli:0.5"]
CHAINS = ["randk:12+natural", "permk+dither:4", "randk:7+float32"]
CASTS = ["float32", "float16", "bfloat16"]
CONTRACTIVE = ["topk:12", "sign", "scaled(randk:12)", "topk:0.1+natural", "natural"]
TAKES = {
    "cofig": [*UNBIASED, *CHAINS, *CASTS],
    "fedpage": [*UNBIASED, *CHAINS, *CASTS],
    "ef21-pp": [*CONTRACTIVE, *CASTS],
    "fedavg": ["natural", "randk:12", "bernoulli:0.5", "bfloat16"],
    "pp-marina": ["natural", "permk"],
    "secantpage": ["natural", "randk:12", "permk", "float32"],
    "frecon": ["natural", "randk:12+natural"],
    "dasha-pp": ["natural", "randk:12"],
    "scallion": ["natural", "randk:12"],
    "fedadam": ["natural", "float32"],
    "svrp": ["float32"],
    "feddyn": ["float32"],
}


@pytest.mark.parametrize(
    ("method", "codec"), [(method, codec) for method, found in TAKES.items() for codec in found]
)
def test_the_simulator_agrees_and_every_byte_is_counted(federate, simulated, method, codec):
    hyper = f"{CASES[method]} up={codec}"
    strategy = federate(method=method, hyper=hyper, **SHORT)
    history = simulated(method=method, hyper=hyper, **SHORT)
    assert strategy.history.same(history)
    for way in ("up", "down"):
        counted = history.last(f"bytes_{way}")
        assert strategy.grid.train_bytes[way] == counted
        assert counted - 8 * 5 * 40 <= history.last(f"bits_{way}") / 8 <= counted


@pytest.mark.parametrize("codec", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["fedavg", "fedpage", "cofig"])
def test_rounded_messages(federate, simulated, method, codec):
    hyper = f"{CASES[method]} down={codec}"
    strategy = federate(method=method, hyper=hyper, **SHORT)
    history = simulated(method=method, hyper=hyper, **SHORT)
    assert strategy.history.same(history)
    assert strategy.grid.train_bytes["down"] == history.last("bytes_down")
    exact = simulated(method=method, hyper=CASES[method], **SHORT)
    assert history.last("bytes_down") == exact.last("bytes_down") / (2 if codec == "float32" else 4)
    assert not np.array_equal(history.x, exact.x)
    np.testing.assert_allclose(history.x, exact.x, rtol=0, atol=0.05)


def test_a_lost_reply_is_sent_again_with_the_same_mask(federate, simulated):
    hyper = f"{CASES['cofig']} up=permk"

    class LoseOnce:
        def __init__(self):
            self.seen = set()

        def __call__(self, client, message):
            key = (client, message.metadata.group_id)
            if message.metadata.message_type != "train.client" or key in self.seen or client % 2:
                return None
            self.seen.add(key)
            return "lost"

    history = federate(method="cofig", hyper=hyper, fault=LoseOnce()).history
    exact = simulated(method="cofig", hyper=hyper)
    assert history.x.tobytes() == exact.x.tobytes()
    assert history.last("missing") > 0


@pytest.mark.parametrize("codec", ["topk:12", "dither:3", "natural", "randk:12"])
def test_a_payload_that_cannot_be_decoded_is_rejected(federate, codec):
    """A reply that is cut by a byte is rejected, not believed."""
    from flwr.app import Array, ArrayRecord, RecordDict

    def cut(reply):
        arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        name = next(iter(arrays))
        arrays[name] = arrays[name][:-1]
        record = ArrayRecord({key: Array(value) for key, value in arrays.items()})
        reply.content = RecordDict({"arrays": record, "header": reply.content["header"]})
        return reply

    def fault(client, message):
        return cut if client == 2 and message.metadata.message_type == "train.client" else None

    method = "ef21-pp" if codec == "topk:12" else "cofig"
    history = federate(method=method, hyper=f"{CASES[method]} up={codec}", fault=fault).history
    assert history.last("rejected") > 0
    assert np.isfinite(history.x).all()
