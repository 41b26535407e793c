"""`fedpage choose`: find the method and the settings that reach a target at the least cost."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli import common, options, output
from fedpage.cli.options import Document
from fedpage.cli.plan import LinkConfig
from fedpage.cli.tune import SearchConfig, write_winner
from fedpage.core.columns import Target
from fedpage.problems import LinearModel
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig, setting
from fedpage.studies import tuning
from fedpage.studies.tuning_result import Tuning, write_page

app = options.make_app()


@dataclass(frozen=True)
class ChooseConfig(SearchConfig):
    """Describe a search over methods."""

    cost: str = setting(
        "bytes",
        "What to save: bytes, rounds, clients, bits, bytes_up, gradients, seconds, "
        "seconds_simulated, or a sum: up+0.1*down.",
    )
    seeds: int = setting(6, "Seeds of the last stage.", at_least=1, at_most=100_000)
    budget: str = setting("5m", "The time for it, such as 60s, 5m or 1h.")
    target: Target = field(
        default=Target(),
        metadata={
            "help": "Gradient norm to reach, or column:value (accuracy:0.9, loss:0.3, gap:0.001)."
        },
    )
    methods: str | None = setting(None, "Names with commas (default: all methods that apply).")
    stateless: bool = setting(False, "Leave out methods whose clients keep a state.")
    rounds: int = setting(20_000, "The most rounds of a run.", at_least=1, at_most=10_000_000)
    devices: str | None = setting(None, options.DEVICES_HELP)


@options.command(app, "choose")
def choose(
    problem: ProblemConfig,
    link: LinkConfig,
    config: ChooseConfig,
    jobs: Annotated[
        int | None, typer.Option(help="The most processes (default: the cores).", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the trials, the report, the run's settings and a Flower "
            "app; a search in it is continued (default runs/choose, without a report).",
        ),
    ] = None,
    report: options.Report = None,
    force: options.Force = False,
) -> Document:
    """Find the method that reaches a target at the least cost.

    All methods that apply are compared on the data; the best are evaluated on held-out seeds.
    """
    asked = vars(config) | {
        "methods": None if config.methods is None else common.split_methods(config.methods),
        "devices": options.read_devices(config.devices),
    }
    problem, objective = build.open_problem(build.record_target(problem, config.target))
    place = Path("runs/choose") if out is None else out
    with (
        common.write_search(place, force or out is None, report),  # runs/choose is written again
        common.progress_bar("choose") as progress,
    ):
        output.print_problem(problem, objective)
        found = tuning.choose(
            objective, **asked, jobs=jobs or os.cpu_count() or 1, costs=link.costs(),
            store=place / "trials.jsonl", progress=progress,
        )  # fmt: skip
    table = found.table()
    output.print_table(replace(table, notes=()), wrapped=table.headings)
    for line in (*found.eliminations(), found.effort, f"Recommended: {found.reason}"):
        output.print_line(line)
    again = write_winner(found, found.recommended.name, problem, config.devices, place)
    if "@" in str(problem.objective):
        print("Deploy it (docs/deploy.md): an app takes a loss of your own as module:function.")
    else:
        _write_app(problem, found, objective, place / "app")
    for path in (report, None if out is None else out / "report.html"):
        if path is not None:
            title = f"The cheapest method on {objective.data.name}, {objective.N:,} clients"
            print(f"Report: {write_page(found, path, title, again)}")
    names = (
        "name", "method", "is_tied", "p_value", "rounds", "is_local_optimum", "note",
    )  # fmt: skip
    return {
        "title": found.title,
        "ranking": [
            {name: getattr(each, name) for name in names}
            | {"held_out": each.sample, "end_at_target": each.at_end, "value_at_end": each.value}
            for each in found.ranking
        ],
        "eliminated": [{"name": each.name, "reason": each.eliminated} for each in found.eliminated],
        "left_out": found.left_out,
        "codecs": found.codecs,
        "reason": found.reason,
        "command": again,
        "out": place,
    }


def _write_app(problem: ProblemConfig, found: Tuning, objective: LinearModel, place: Path) -> None:
    """Write a Flower app that runs the recommended method, and say what it lacks."""
    from fedpage.flower.config import app_of_problem, not_in_app, write_app

    place.mkdir(exist_ok=True)
    chosen = found.recommended
    config = app_of_problem(
        problem, clients=objective.N, method=chosen.name, hyper=chosen.hyper,
        rounds=2 * chosen.rounds, target=str(found.question.target),
    )  # fmt: skip
    (place / "pyproject.toml").write_text(write_app(config), encoding="utf-8")
    print(f"Deploy it (docs/deploy.md): flwr run {place} fl")
    lacking = not_in_app(problem) + ["the intercept"] * objective.intercept
    if lacking:
        print(f"The app leaves out {', '.join(lacking)}: prepare each node's file accordingly.")
