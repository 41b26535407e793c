"""Fixtures of the replays: two objectives, each with fused kernels and without."""

import functools

import pytest
from plain import check_replay


@pytest.fixture(params=["robust", "nonconvex"])
def objective(request):
    return request.param


@pytest.fixture(params=["fused", "steps"])
def check(request, objective):
    """Return a function that compares a method with an algorithm in plain Python."""
    return functools.partial(check_replay, objective, request.param == "fused")
