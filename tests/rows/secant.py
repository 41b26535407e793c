"""SecantPAGE, and FedPAGE and PAGE that begin with a pass over the clients."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

import fedpage as fp
from fedpage.methods import passes
from fedpage.methods.fedpage_variants import LeakFreeFedPAGE, PassStartFedPAGE
from rows.paper_methods import fedpage
from rows.row import Row, Setting


def _secant(**options: Any) -> Any:
    """Return a function that makes SecantPAGE; its effective step is the damping or eta."""
    return lambda s: fp.SecantPAGE(S=s.S, b=s.b, **options).with_step(s.step)


@dataclasses.dataclass(frozen=True)
class LeakFreePassStart(LeakFreeFedPAGE, PassStartFedPAGE):  # type: ignore[misc]
    """Both variants of FedPAGE at once."""

    messages: ClassVar = {**LeakFreeFedPAGE.messages, **passes.MESSAGES}
    changes: ClassVar = {**LeakFreeFedPAGE.changes, **passes.CHANGES}
    gradients = PassStartFedPAGE.gradients


def _page(s: Setting) -> Any:
    b = None if s.full else 3
    return PassStartFedPAGE(S=s.S, K=1, b1=b, b2=b, b3=s.b, p=0.3).with_step(s.step)


def _rest_after_the_pass(run: Any, gradients: np.ndarray) -> None:
    after = {"passes": 1} if run.method.name == "SecantPAGE" else {"seen": run.state.seen | True}
    run.state = run.state._replace(g=gradients.mean(axis=0), **after)
    run.costs.round = 1


_rest: Any = {"rest": _rest_after_the_pass}
_two: Any = {"messages": 2, **_rest}

ROWS = {
    "SecantPAGE": Row(_secant(), descent=None, **_two),
    "SecantPAGE-window": Row(_secant(metric="window", window=3), descent=None, **_two),
    "SecantPAGE-none": Row(_secant(metric="none"), descent=None, **_two),
    "SecantPAGE-fixed": Row(_secant(metric="none", eta=1.0), **_two),
    "SecantPAGE+natural": Row(_secant(up="natural"), descent=None, **_two),
    "SecantPAGE+float32": Row(
        _secant(up="float32", down="float32"), descent=None, messages=2, rests=False
    ),
    "FedPAGE-average": Row(fedpage(PassStartFedPAGE), messages=4, **_rest),
    "FedPAGE-leak-free-average": Row(fedpage(LeakFreePassStart), messages=4, **_rest),
    "PAGE-average": Row(_page, messages=4, **_rest),
}
