"""Fixtures of the replays: two objectives, each with fused kernels and without."""

from __future__ import annotations

import pytest
from plain import X0, problem_of
from support import Unfused

from fedpage.testing import replay


@pytest.fixture(params=["robust", "nonconvex"])
def objective(request):
    return request.param


@pytest.fixture(params=["fused", "steps"])
def check(request, objective):
    """Return a function that replays a script and compares x after every round."""

    def check_replay(method, script, expected):
        fused = problem_of(objective)
        problem = Unfused(fused) if request.param == "steps" else fused
        return replay(problem, method, script, expected, x0=X0)

    return check_replay
