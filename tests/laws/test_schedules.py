"""Laws of schedules: they change the numbers of a round, and nothing else."""

import dataclasses
from typing import Any

import pytest
from rows import ROWS
from support import make_method, quadratic, uneven

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.engine.simulate import Simulation
from fedpage.methods.schedules import Constant, Cosine, Schedule, Step, at_round, with_step
from fedpage.runs.config import field_types

CONSTANT = {
    ("FedPAGE", "eta_g"), ("PAGE", "eta_g"), ("PeriodicFedPAGE", "eta_g"),
    ("PassStartFedPAGE", "eta_g"), ("VRLSGD", "eta_l"), ("Scaffnew", "eta"),
    ("MARINA", "eta_g"), ("PPMARINA", "eta_g"), ("VRMARINA", "eta_g"), ("EF21BC", "eta"),
}  # fmt: skip
"""Step sizes that must be the same in all rounds: clients use that of the last round."""


def step_sizes(method) -> list[str]:
    """List the hyper-parameters that are step sizes and have a number."""
    types = field_types(type(method))
    return [
        name
        for name, kind in types.items()
        if Schedule in getattr(kind, "__args__", ()) and getattr(method, name) is not None
    ]


def scheduled(method, make):
    """Put schedules in place of all step sizes of a method that may have them."""
    for name in step_sizes(method):
        change = {name: make(getattr(method, name))}
        if (type(method).__name__, name) in CONSTANT:
            with pytest.raises(InputError, match="cannot be a schedule"):
                dataclasses.replace(method, **change)
        else:
            method = dataclasses.replace(method, **change)
    return method


def moves(problem, method, rounds: int, **options) -> list[bytes]:
    run = Simulation(problem, method, seed=5, options=fp.RunOptions(**options))
    found = []
    for _ in range(rounds):
        run.step()
        found.append(run.x.tobytes())
    return found


@pytest.mark.parametrize("name", ROWS)
def test_a_constant_schedule_is_the_number_bit_for_bit(name):
    problem = uneven("logistic")
    method = make_method(name, 4, 3, 0.1)
    other = scheduled(method, Constant)
    assert moves(problem, other, 12) == moves(problem, method, 12)


@pytest.mark.parametrize("name", ROWS)
def test_every_round_has_the_numbers_of_its_schedule(name):
    """A run equals rounds of methods with constant steps that share the state."""
    problem = quadratic(noise=1.0)
    method = scheduled(make_method(name, 3, 3, 0.1), lambda step: Step(step, 2, 0.5))
    wanted, run = moves(problem, method, 8), Simulation(problem, method, seed=5)
    for now in range(8):
        constant = at_round(method, now)
        assert not any(isinstance(value, Schedule) for value in vars(constant).values())
        transport: Any = run.transport
        run.method = transport.method = constant
        run.step()
        assert run.x.tobytes() == wanted[now]


def test_schedules_change_the_run():
    problem, method = uneven("logistic"), fp.FedAvg(S=4, K=3, eta_l=0.1)
    plain = moves(problem, method, 6)
    local = moves(problem, dataclasses.replace(method, eta_l=Step(0.1, 3)), 6)
    server = moves(problem, dataclasses.replace(method, eta_g=Step(1.0, 3)), 6)
    assert local[:3] == server[:3] == plain[:3]
    assert local[3] != plain[3] != server[3] != local[3]


@pytest.mark.parametrize("name", ROWS)
def test_another_effective_step_scales_every_schedule_alike(name):
    method = make_method(name, 4, 3, 0.1)
    other = scheduled(method, lambda step: Cosine(step, 5, step / 10))
    moved, wanted = with_step(other, 0.3), with_step(method, 0.3)
    for field in step_sizes(method):
        now = at_round(moved, 0)
        assert getattr(now, field) == pytest.approx(getattr(wanted, field), rel=1e-12)
    if other != method:
        last, first = at_round(moved, 5), at_round(moved, 0)
        changed = [n for n in step_sizes(other) if isinstance(getattr(other, n), Schedule)]
        for field in changed:
            assert getattr(last, field) == pytest.approx(getattr(first, field) / 10)
