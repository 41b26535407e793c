"""Fixtures of the replays: two objectives, each with fused kernels and without."""

from __future__ import annotations

import numpy as np
import pytest
from plain import X0, problem_of
from support import Replay, Unfused


@pytest.fixture(params=["robust", "nonconvex"])
def objective(request):
    return request.param


@pytest.fixture(params=["fused", "steps"])
def check(request, objective):
    """Return a function that replays a script and compares x after every round."""

    def replay(method, script, expected):
        problem = problem_of(objective)
        run = Replay(
            Unfused(problem) if request.param == "steps" else problem,
            method,
            x0=np.array(X0),
            script=script,
        )
        for r, x in enumerate(expected):
            run.step()
            np.testing.assert_allclose(run.x, x, rtol=0, atol=1e-10, err_msg=f"after round {r}")
        return run

    return replay
