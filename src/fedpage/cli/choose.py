"""`fedpage choose`: find the method and the settings that reach a target at the least cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    check_count,
    check_target,
    continues,
    follow,
    parse_cost,
    prepare_out,
    read_devices,
)
from fedpage.cli.options import (
    CodecsOption,
    DevicesOption,
    ForceOption,
    ReportOption,
    RunConfig,
    with_config_options,
)
from fedpage.cli.output import Document, console, print_problem, print_table, with_json
from fedpage.cli.plan import LinkConfig
from fedpage.cli.run_config import write_run_command
from fedpage.core.errors import InputError
from fedpage.core.target import Target
from fedpage.runs.config import ProblemConfig

if TYPE_CHECKING:
    from fedpage.flower.config import AppConfig
    from fedpage.problems import LinearModel
    from fedpage.studies.tuning_result import Tuning


@with_json
@with_config_options
def choose(
    problem: ProblemConfig,
    link: LinkConfig,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="Gradient norm to reach, or column:value (accuracy:0.9, loss:0.3, gap:0.001).",
        ),
    ] = "0.01",
    cost: Annotated[
        str,
        typer.Option(
            "--cost",
            help="What to save: bytes, rounds, clients, bits, bytes_up, gradients, seconds, "
            "seconds_simulated, or a sum: up+0.1*down.",
        ),
    ] = "bytes",
    budget: Annotated[
        str, typer.Option("--budget", help="The time for it, such as 60s, 5m or 1h.")
    ] = "5m",
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Names with commas (default: all methods that apply)."),
    ] = None,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Leave out methods whose clients keep a state.")
    ] = False,
    codecs: CodecsOption = None,
    rounds: Annotated[int, typer.Option("--rounds", help="The most rounds of a run.")] = 20_000,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of the last stage.")] = 6,
    held_out_seeds: Annotated[
        int,
        typer.Option(
            "--held-out-seeds", help="Other seeds, on which the last methods are evaluated."
        ),
    ] = 10,
    devices: DevicesOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="The most processes (default: the cores).", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Directory for the trials, the report, the run's settings and a Flower "
            "app; a search in it is continued (default runs/choose, without a report).",
        ),
    ] = None,
    report: ReportOption = None,
    force: ForceOption = False,
) -> Document:
    """Find the method that reaches a target at the least cost.

    All methods that apply are compared on the data; the best are evaluated on held-out seeds.
    """
    import os

    from fedpage.runs import build
    from fedpage.runs.lock import DirectoryLock
    from fedpage.studies.tuning import choose as search_methods
    from fedpage.studies.tuning_result import write_page

    goal = Target.parse(target)
    check_count("--rounds", rounds, high=10_000_000)
    check_count("--seeds", seeds)
    check_count("--held-out-seeds", held_out_seeds)
    parse_cost(cost)
    problem, objective = build.open_problem(build.record_target(problem, goal))
    if goal.column != "gap":
        check_target(objective, goal)
    names = (
        None if methods is None else [name for word in methods.split(",") if (name := word.strip())]
    )
    if names == []:
        raise InputError(f"--methods {methods!r}: no method is named; give at least one")
    for name in names or ():
        build.find_method(name)
    place = Path("runs/choose") if out is None else out
    prepare_out(place, force or out is None or (place / "trials.jsonl").exists(), report)
    print_problem(problem, objective)
    with DirectoryLock(place), continues(place), follow("choose") as progress:
        found = search_methods(
            objective, target=goal, cost=cost, budget=budget, methods=names,
            stateless=stateless, codecs=codecs, rounds=rounds, seeds=seeds,
            held_out_seeds=held_out_seeds, jobs=jobs or os.cpu_count() or 1, costs=link.costs(),
            devices=read_devices(devices), store=place / "trials.jsonl", progress=progress,
        )  # fmt: skip
    _print_ranking(found)
    chosen = found.recommended
    settings = RunConfig(
        rounds=2 * chosen.rounds, record_every=found.question.record_every,
        target=found.question.target,
        devices=devices, stop=True,
    )  # fmt: skip
    command = write_run_command(place / "run.toml", chosen.name, chosen.method, problem, settings)
    print(f"Run it: {command}")
    if "@" in str(problem.objective):
        print("Deploy it (docs/deploy.md): an app takes a loss of your own as module:function.")
    else:
        _write_app(problem, found, objective, place / "app")
    pages = [path for path in (report, None if out is None else out / "report.html") if path]
    for path in pages:
        title = f"The cheapest method on {objective.data.name}, {objective.N:,} clients"
        print(f"Report: {write_page(found, path, title, command)}")
    return {
        "title": found.title,
        "ranking": [
            {
                "name": each.name,
                "method": each.method,
                "held_out": each.sample,
                "end_at_target": each.at_end,
                "value_at_end": each.value,
                "is_tied": each.is_tied,
                "p_value": each.p_value,
                "rounds": each.rounds,
                "is_local_optimum": each.is_local_optimum,
                "note": each.note,
            }
            for each in found.ranking
        ],
        "eliminated": [{"name": each.name, "reason": each.eliminated} for each in found.eliminated],
        "left_out": found.left_out,
        "codecs": found.codecs,
        "reason": found.reason,
        "command": command,
        "out": place,
    }


def _print_ranking(found: Tuning) -> None:
    """Print the ranking, the eliminated methods, and the recommendation."""
    from fedpage.report.tables import Table

    head, rows = found.rows()
    print_table(replace(Table.of_texts(head, rows), caption=found.title), wrapped=head)
    for line in (*found.eliminations(), found.effort, f"Recommended: {found.reason}"):
        console().print(line, markup=False)


_NOT_IN_APP = (
    "client_column", "standardise", "missing", "drop", "categorical", "min_rows", "held_out",
    "held_out_by",
)  # fmt: skip
"""Settings of a problem that a Flower app does not have: a node reads its own file of numbers."""


def _write_app(problem: ProblemConfig, found: Tuning, objective: LinearModel, place: Path) -> None:
    """Write a Flower app that runs the recommended method, and say what it lacks."""
    from fedpage.flower.config import write_app

    place.mkdir(exist_ok=True)
    text = write_app(make_app_config(problem, found, objective.N))
    (place / "pyproject.toml").write_text(text, encoding="utf-8")
    print(f"Deploy it (docs/deploy.md): flwr run {place} fl")
    default = ProblemConfig()
    lacking = [
        f"--{name.replace('_', '-')}"
        for name in _NOT_IN_APP
        if getattr(problem, name) != getattr(default, name)
    ]
    lacking += ["the intercept"] if objective.intercept else []
    if lacking:
        print(f"The app leaves out {', '.join(lacking)}: prepare each node's file accordingly.")


def make_app_config(problem: ProblemConfig, found: Tuning, N: int) -> AppConfig:
    """Return the configuration of a Flower app that runs the recommended method.

    Args:
        problem: The problem. A file is left out, because each node of a federation has its own.
        found: The tuning. The app may take twice as many rounds as the runs of the evaluation.
        N: The number of clients.
    """
    from fedpage.data.registry import DATASETS
    from fedpage.flower.config import AppConfig

    question, chosen = found.question, found.recommended
    is_file = problem.data.partition(":")[0] not in DATASETS
    return AppConfig(
        method=chosen.name,
        hyper=chosen.hyper,
        clients=N,
        rounds=2 * chosen.rounds,
        metrics=problem.metrics,
        target=str(question.target),
        objective=str(problem.objective),
        alpha=0.1 if problem.alpha is None else problem.alpha,
        weights=problem.weights,
        data="" if is_file else problem.data,
        partition="blocks" if is_file else str(problem.partition),
        label=problem.label or "",
        partition_seed=problem.partition_seed,
    )
