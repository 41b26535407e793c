"""Client optimisers and local epochs on a federation: equal bits to the simulator."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("method", "hyper"),
    [
        ("fedavg-training", "S=3 K=3 eta_l=0.1 client_optimizer=momentum:0.9+decay:0.01+clip:0.5"),
        ("fedprox", "S=3 K=3 eta_l=0.1 client_optimizer=adam:0.9:0.99"),
        ("fedavg-training", "S=3 epochs=2 b=8 eta_l=0.1"),
        ("fedadam", "S=3 epochs=2 b=7 eta_l=step:0.1:3:0.5 client_optimizer=nesterov:0.9"),
    ],
)
def test_history_equals_the_simulator(federate, simulated, method, hyper):
    history = simulated(method=method, hyper=hyper)
    assert federate(method=method, hyper=hyper).history.same(history)
    assert not history.same(simulated(method=method, hyper="S=3 K=3 eta_l=0.1"))
