"""`fedpage plan`: compare methods by their theory and by short pilot runs."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import parse_cost
from fedpage.cli.options import with_config_options
from fedpage.cli.output import Document, console, with_json
from fedpage.cli.plan_output import (
    describe_plan,
    print_conversions,
    print_plan,
    print_predictions,
)
from fedpage.runs.config import ProblemConfig, setting

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from fedpage.problems import LinearModel
    from fedpage.studies.plan import ProblemConstants
    from fedpage.theory.planner import TimeModel


@dataclass(frozen=True)
class LinkConfig:
    """Describe what communication and computation cost in seconds."""

    latency: float = setting(0.0, "Seconds that a round takes at least.")
    uplink: float | None = setting(None, "Bytes a second from a client to the server.")
    downlink: float | None = setting(None, "Bytes a second from the server to a client.")
    seconds_per_gradient: float = setting(
        0.0, "Seconds that a client takes for one row's gradient."
    )

    def costs(self) -> TimeModel:
        """Return latency and speeds, for the planner."""
        from fedpage.theory.planner import TimeModel

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


@with_json
@with_config_options
def plan(
    problem: PlanProblemConfig,
    constants: ConstantsConfig,
    link: LinkConfig,
    target: Annotated[
        float | None, typer.Option("--target", help="Gradient norm to reach.")
    ] = None,
    gap: Annotated[
        float | None, typer.Option("--gap", help="Gap f - f* to reach, of a convex objective.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", hidden=True, help="--gap if f is convex, else --target."),
    ] = None,
    sampled: Annotated[
        int | None,
        typer.Option("--S", "--sampled", help="Clients sampled in a round; default: 10, or all."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows per client (with --data: from the data).")
    ] = None,
    K: Annotated[int, typer.Option("--K", help="Local steps.")] = 10,
    parameters: Annotated[
        int | None,
        typer.Option("--parameters", help="Parameters d (with --data: from the data)."),
    ] = None,
    convex: Annotated[
        bool, typer.Option("--convex", help="The objective is convex (with --data: known).")
    ] = False,
    up: Annotated[
        str, typer.Option("--up", help="Codec of replies, for methods that have a theorem for it.")
    ] = "none",
    cost: Annotated[
        str, typer.Option("--cost", help="Compare this cost: bits, bits_up, up+0.1*down, ...")
    ] = "bytes",
    pilots: Annotated[
        bool,
        typer.Option("--pilots/--no-pilots", help="With --data: predict from short runs too."),
    ] = True,
    budget: Annotated[
        str, typer.Option("--budget", help="Time that the short runs may take, such as 15s or 5m.")
    ] = "15s",
) -> Document:
    """Predict rounds and bytes by theory and by short runs."""
    from fedpage.callbacks.progress import progress_bars
    from fedpage.runs.build import DEFAULT_CLIENTS, build_problem
    from fedpage.studies.plan import (
        compute_plan,
        problem_constants,
        read_accuracy,
        unit_constants,
    )

    accuracy = read_accuracy({"--target": target, "--gap": gap, "--epsilon": epsilon})
    compared, costs = parse_cost(cost), link.costs()
    objective: LinearModel | None = build_problem(problem) if problem.data else None

    def find_constants() -> ProblemConstants:
        if objective is None:
            M, d = (10 if rows is None else rows), (100 if parameters is None else parameters)
            return unit_constants(M, d, convex)
        known = problem_constants(objective)
        return replace(known, M=rows or known.M, d=parameters or known.d)

    N = (problem.clients or DEFAULT_CLIENTS) if objective is None else objective.N
    with ExitStack() as stack:

        @cache
        def start_bars() -> tuple[Bars, TaskID]:
            bars = stack.enter_context(progress_bars())
            return bars, bars.add_task("pilots")

        def progress(done: int, total: int, note: str) -> None:
            bars, task = start_bars()  # at the first pilot, after everything has been checked
            bars.update(task, completed=done, total=total, note=note)

        found = compute_plan(
            objective,
            find_constants,
            choose_accuracy=accuracy,
            shape={"N": N, "S": min(10, N) if sampled is None else sampled, "K": K},
            given={name: value for name, value in vars(constants).items() if value is not None},
            up=up,
            cost=compared,
            costs=costs,
            pilots=pilots,
            budget=budget,
            progress=progress,
        )
    screen = console()
    screen.print(found.title, markup=False)
    known = ", ".join(text.replace(" ", "\xa0") for text in found.constants)
    print(fill(f"constants: {known}", min(screen.width, 120)).replace("\xa0", " "))
    if found.pilots:
        print_predictions(found)
    else:
        print_plan(found)
    print_conversions(found)
    return describe_plan(found)
