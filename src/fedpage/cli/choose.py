"""`fedpage choose`: find the method and the settings that reach a target at the least cost."""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    check_count,
    check_target,
    continues,
    device_options,
    parse_cost,
    prepare_out,
    problem_options,
    read_devices,
)
from fedpage.cli.options import DevicesOption, ForceOption, ReportOption, with_config_options
from fedpage.cli.output import Document, console, print_problem, with_json
from fedpage.cli.plan import LinkConfig
from fedpage.core.errors import InputError
from fedpage.core.target import Target
from fedpage.runs.config import ProblemConfig

if TYPE_CHECKING:
    from fedpage.flower.config import AppConfig
    from fedpage.problems import LinearModel
    from fedpage.studies.choice import Choice


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
        str, typer.Option("--budget", help="Time that the race may take, such as 60s, 5m or 1h.")
    ] = "5m",
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Names with commas (default: all methods that apply)."),
    ] = None,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Leave out methods whose clients keep a state.")
    ] = False,
    codecs: Annotated[
        bool | None,
        typer.Option(
            "--codecs/--no-codecs",
            help="Search compression too (default: where bytes, bits or simulated time count).",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="The most rounds of a run.")] = 20_000,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of the last round of the race.")] = 6,
    fresh: Annotated[
        int, typer.Option("--fresh", help="Other seeds, on which the finalists are judged.")
    ] = 10,
    devices: DevicesOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="The most processes (default: the cores).", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Directory for report, Flower app and trials; a race in it is continued."
        ),
    ] = None,
    report: ReportOption = None,
    force: ForceOption = False,
) -> Document:
    """Find the method that reaches a target at the least cost.

    All methods that apply race each other on the data; the finalists are judged on fresh seeds.
    """
    import os

    from fedpage.engine.devices import check_time
    from fedpage.runs import build
    from fedpage.runs.lock import DirectoryLock
    from fedpage.studies.choose import choose as race
    from fedpage.studies.question import parse_budget, resolve_target

    goal = Target.parse(target)
    check_count("--rounds", rounds, high=10_000_000)
    check_count("--seeds", seeds)
    check_count("--fresh", fresh)
    check_time(parse_cost(cost), read_devices(devices))
    parse_budget(budget)
    problem, objective = build.open_problem(build.record_target(problem, goal))
    goal = resolve_target(objective, goal)
    check_target(objective, goal)
    names = (
        None if methods is None else [name for word in methods.split(",") if (name := word.strip())]
    )
    if names == []:
        raise InputError(f"--methods {methods!r}: no method is named; give at least one")
    for name in names or ():
        build.find_method(name)
    is_continued = out is not None and (out / "trials.jsonl").exists()
    prepare_out(out, force or is_continued, report)
    from fedpage.callbacks.progress import progress_bars

    print_problem(problem, objective)
    lock = nullcontext() if out is None else DirectoryLock(out)
    with lock, continues(out), progress_bars() as bars:
        task = bars.add_task("race", total=None)

        def progress(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total or None, note=note)

        choice = race(
            objective, target=goal, cost=cost, budget=budget, methods=names,
            stateless=stateless, codecs=codecs, rounds=rounds, seeds=seeds, fresh=fresh,
            jobs=jobs or os.cpu_count() or 1, costs=link.costs(), devices=read_devices(devices),
            store=None if out is None else out / "trials.jsonl", progress=progress,
        )  # fmt: skip
    _print_choice(choice)
    command, repeat = _write_commands(problem, choice)
    print(f"Run it:\n  {command}")
    print(f"Repeat the judgement:\n  {repeat}")
    if "@" in str(problem.objective):
        print("Deploy it (docs/deploy.md): an app has a loss of your own as module:function.")
    else:
        _print_deployment(problem, choice, objective, out)
    pages = [path for path in (report, None if out is None else out / "report.html") if path]
    if pages:
        from fedpage.studies.choice_page import run_finalists, write_page

        title = f"The cheapest method on {objective.data.name}, {objective.N:,} clients"
        runs = run_finalists(objective, choice)
        for path in pages:
            print(f"Report: {write_page(choice, runs, path, title, command)}")
    return {
        "title": choice.title,
        "ranking": [
            {
                "name": each.name,
                "method": each.method,
                "judgement": each.judgement,
                "is_tied": each.is_tied,
                "p_value": each.p_value,
                "rounds": each.rounds,
                "note": each.note,
            }
            for each in choice.ranking
        ],
        "eliminated": [
            {"name": each.entrant.name, "reason": each.reason} for each in choice.eliminated
        ],
        "left_out": choice.left_out,
        "reason": choice.reason,
        "command": command,
        "repeat": repeat,
        "out": out,
    }


def _print_choice(choice: Choice) -> None:
    """Print the ranking, who left the race, and the recommendation."""
    from rich.table import Table

    head, rows = choice.rows()
    table = Table(title=choice.title, title_justify="left")
    for heading in head:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    screen = console()
    screen.print(table)
    for line in (*choice.departures(), choice.effort, f"Recommended: {choice.reason}"):
        screen.print(line, markup=False)


def _write_commands(problem: ProblemConfig, choice: Choice) -> tuple[str, str]:
    """Write the command that runs the recommended method, and the one that repeats its judgement.

    The second prints the same median, interval and count of seeds.
    """
    from fedpage.cli import commands

    question, chosen = choice.question, choice.recommended
    about = problem_options(problem) | {
        "--rounds": str(chosen.rounds),
        "--record-every": str(question.record_every),
        "--target": shlex.quote(str(question.target)),
    }
    about |= device_options(question.devices)
    seeds = {
        "--methods": shlex.quote(commands.describe_in_text(chosen.name, chosen.method)),
        "--cost": shlex.quote(question.cost.name),
        "--seed": str(choice.fresh[0]),
        "--seeds": str(len(choice.fresh)),
    }
    repeat = " ".join(["fedpage compare", *commands.join_options(about | seeds)])
    return commands.command_line(chosen.name, chosen.method, about), repeat


def _print_deployment(
    problem: ProblemConfig, choice: Choice, objective: LinearModel, out: Path | None
) -> None:
    """Write the Flower app into `out`, or its configuration as a command, and say what it lacks."""
    config = make_app_config(problem, choice, objective.N)
    if out is None:
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in _given(config).items())
        print(f"Deploy it (docs/deploy.md):\n  flwr run app fl --run-config {shlex.quote(words)}")
    else:
        from fedpage.flower.config import write_app

        place = out / "app"
        place.mkdir(exist_ok=True)
        (place / "pyproject.toml").write_text(write_app(config), encoding="utf-8")
        print(f"Deploy it (docs/deploy.md):\n  flwr run {place} fl")
    lacking = [option for option in problem_options(problem) if option in _NOT_IN_APP]
    lacking += ["the intercept"] if objective.intercept else []
    if lacking:
        print(f"The app leaves out {', '.join(lacking)}: prepare each node's file accordingly.")


_NOT_IN_APP = (
    "--client-column", "--standardise", "--missing", "--drop", "--categorical", "--min-rows",
    "--held-out", "--held-out-by",
)  # fmt: skip
"""Options of a problem that a Flower app does not have: a node reads its own file of numbers."""


def make_app_config(problem: ProblemConfig, choice: Choice, N: int) -> AppConfig:
    """Return the configuration of a Flower app that runs the recommended method.

    Args:
        problem: The problem. A file is left out, because each node of a federation has its own.
        choice: The choice. The app may take twice as many rounds as the judged runs.
        N: The number of clients.
    """
    from fedpage.data.registry import DATASETS
    from fedpage.flower.config import AppConfig

    question, chosen = choice.question, choice.recommended
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


def _given(config: AppConfig) -> dict[str, object]:
    """Return the keys of an app's configuration that differ from the defaults, and the data."""
    values = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    defaults = {entry.name: entry.default for entry in fields(config)}
    return {
        name.replace("_", "-"): value
        for name, value in values.items()
        if name in ("method", "data", "objective") or value != defaults[name]
    }
