"""`fedpage plan`: compare methods by their theory."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from fedpage.cli import options
from fedpage.cli.options import Document
from fedpage.cli.output import print_table
from fedpage.core.errors import InputError
from fedpage.runs.build import DEFAULT_CLIENTS, build_problem
from fedpage.runs.config import ProblemConfig, setting
from fedpage.studies import plan as studies
from fedpage.theory import Constants
from fedpage.theory.planner import TimeModel

app = options.make_app()


@dataclass(frozen=True)
class LinkConfig:
    """Describe how many seconds communication and computation take."""

    latency: float = setting(0.0, "Seconds that a round takes at least.")
    uplink: float | None = setting(None, "Bytes a second from a client to the server.")
    downlink: float | None = setting(None, "Bytes a second from the server to a client.")
    seconds_per_gradient: float = setting(
        0.0, "Seconds that a client takes for one row's gradient."
    )

    def costs(self) -> TimeModel:
        """Return latency and speeds, for the planner."""
        up = math.inf if self.uplink is None else self.uplink
        down = math.inf if self.downlink is None else self.downlink
        return TimeModel(self.latency, up, down, self.seconds_per_gradient)


@dataclass(frozen=True)
class PlanProblemConfig(ProblemConfig):
    """Describe the problem of a plan; without data its constants are given or 1."""

    data: str = setting("", "Data set from which the constants are estimated (default: none).")


@dataclass(frozen=True)
class ConstantsConfig:
    """Give constants of the objective."""

    L: float | None = setting(None, "Smoothness of the rows (default 1).")
    sigma: float | None = setting(None, "Deviation of rows within a client (default 1).")
    G: float | None = setting(None, "Dissimilarity of clients (default 1).")
    B: float | None = setting(None, "Dissimilarity of clients, relative (default 1).")
    D0: float | None = setting(None, "f(x0) - f* (default 1).")
    R2: float | None = setting(None, "|x0 - x*|^2 (default 1).")
    mu: float | None = setting(None, "Strong convexity (default: unknown).")
    delta: float | None = setting(None, "Dissimilarity of clients' Hessians (default: unknown).")


@dataclass(frozen=True)
class PlanConfig:
    """Describe what is asked of the theorems."""

    target: str = setting(help="Gradient norm to reach, or gap:value for f - f*.")
    S: Annotated[
        int | None,
        typer.Option("--S", "--sampled", help="Clients sampled in a round; default: 10, or all."),
    ] = None
    rows: Annotated[
        int | None, typer.Option(help="Rows per client, without --data (default 10).", min=1)
    ] = None
    K: int = setting(10, "Local steps.")
    parameters: Annotated[
        int | None, typer.Option(help="Parameters d, without --data (default 100).", min=1)
    ] = None
    convex: bool = setting(False, "The objective is convex, without --data.")
    up: str = setting("none", "Codec of replies, for methods that have a theorem for it.")
    cost: str = setting("bytes", "Compare this cost: bits, bits_up, up+0.1*down, ...")


@options.command(app, "plan")
def plan(
    problem: PlanProblemConfig, constants: ConstantsConfig, link: LinkConfig, config: PlanConfig
) -> Document:
    """Compare rounds and bytes of methods by their theorems."""
    if problem.data and (config.rows or config.parameters or config.convex):
        raise InputError("--rows, --parameters and --convex are for a plan without --data")
    assumed = Constants(
        N=problem.clients or DEFAULT_CLIENTS,
        M=config.rows or 10,
        d=config.parameters or 100,
        convex=config.convex,
    )
    found = studies.plan(
        build_problem(problem) if problem.data else assumed,
        target=config.target,
        S=config.S,
        K=config.K,
        up=config.up,
        cost=config.cost,
        costs=link.costs(),
        constants={name: value for name, value in vars(constants).items() if value is not None},
    )
    print_table(
        found.table(),
        optional=("gradients a client", "clients", "needs"),
        wrapped=("analysis", "needs", "kind"),
    )
    about = {"d": found.d, "convex": found.convex, "up": str(found.codec), "measure": found.measure}
    return {
        "setting": {**asdict(found.setting), **about},
        "origin": found.origin,
        "methods": [asdict(row) for row in found.analyses],
    }
