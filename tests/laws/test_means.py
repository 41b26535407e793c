"""Methods that take any estimate of the mean: robust means equal the mean without outliers."""

from __future__ import annotations

import numpy as np
import pytest
from rows import ROWS
from support import make_method, quadratic

import fedpage as fp
from fedpage.engine.aggregation import ClippedMean, TrimmedMean
from fedpage.engine.simulate import Simulation

TAKING = [name for name in ROWS if getattr(make_method(name, 3, 2, 0.1), "takes_any_mean", False)]
OTHERS = [name for name in ROWS if name not in TAKING]


def test_the_methods_that_take_any_mean_are_the_fedavg_family():
    types = {type(make_method(name, 3, 2, 0.1)).__name__ for name in TAKING}
    assert types == {
        "FedAvg", "FedProx", "FedAvgM", "FedNesterov", "FedAdagrad", "FedAdam", "FedYogi",
    }  # fmt: skip


@pytest.mark.parametrize("name", TAKING)
def test_a_method_that_takes_any_mean_sends_changes_and_keeps_no_client_state(name):
    """What clients send must not be part of a sum that later rounds rely on."""
    method = make_method(name, 3, 2, 0.1)
    assert method.client_state is None
    assert {field for reply in method.messages.values() for field in reply._fields} == {"dy"}


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_refuse_other_means(name):
    with pytest.raises(fp.InputError, match="needs the mean of the replies"):
        Simulation(
            quadratic(),
            make_method(name, 3, 2, 0.1),
            seed=0,
            options=fp.RunOptions(aggregation=ClippedMean(1e9)),
        )


def histories(name, *aggregations, wrong=()):
    """Return histories of a method, some of whose clients send wrong numbers of either sign."""
    for aggregation in aggregations:
        method = make_method(name, 8, 2, 0.05)
        run = Simulation(
            quadratic(noise=1.0), method, seed=1, options=fp.RunOptions(aggregation=aggregation)
        )
        request = run.transport.request

        def send(call, draws, attempt, request=request):
            for chunk in request(call, draws, attempt):
                dy = chunk.replies.dy.copy()
                for sign, client in enumerate(wrong):
                    dy[client] = 1e6 * (-1) ** sign
                yield chunk._replace(replies=chunk.replies._replace(dy=dy))

        run.transport.request = send
        yield [run.step() and run.x.copy() for _ in range(15)]


@pytest.mark.parametrize("name", TAKING)
def test_without_outliers_a_robust_mean_is_the_mean(name):
    mean, trimmed, clipped = histories(name, None, TrimmedMean(0.1), ClippedMean(1e6))
    assert np.array_equal(mean, trimmed)  # a tenth of eight clients is nobody
    assert np.array_equal(mean, clipped)


@pytest.mark.parametrize("name", TAKING)
def test_a_trimmed_mean_is_the_mean_of_the_honest_clients(name):
    """Two wrong clients on opposite sides are what is left out of every coordinate."""
    (trimmed,) = histories(name, TrimmedMean(0.125), wrong=(2, 5))
    method = make_method(name, 8, 2, 0.05)
    run = Simulation(quadratic(noise=1.0), method, seed=1)
    request = run.transport.request

    def without(call, draws, attempt):
        for chunk in request(call, draws, attempt):
            kept = ~np.isin(chunk.clients, (2, 5))
            yield chunk._replace(
                clients=chunk.clients[kept],
                replies=chunk.replies._make([part[kept] for part in chunk.replies]),
            )

    run.transport.request = without
    for x in trimmed:
        run.step()
        assert np.array_equal(run.x, x)


@pytest.mark.parametrize("name", TAKING)
def test_wrong_clients_move_a_clipped_mean_by_the_bound_at_most(name):
    honest, attacked = (
        histories(name, ClippedMean(0.05)),
        histories(name, ClippedMean(0.05), wrong=(2,)),
    )
    assert np.abs(np.array(next(attacked)) - np.array(next(honest))).max() < 15.0
    (ruined,) = histories(name, None, wrong=(2,))
    plain = type(make_method(name, 8, 2, 0.05)).__name__
    if plain in ("FedAvg", "FedProx", "FedAvgM", "FedNesterov"):  # others divide by the size
        assert np.abs(ruined).max() > 1e4
