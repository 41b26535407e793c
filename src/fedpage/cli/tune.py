"""`fedpage tune`: search hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import (
    check_count,
    check_runs,
    check_target,
    continues,
    parse_cost,
    prepare_out,
    read_devices,
    read_hyper_parameters,
)
from fedpage.cli.options import (
    ForceOption,
    JobsOption,
    MethodArgument,
    ReportOption,
    RoundsConfig,
    RunConfig,
    with_config_options,
)
from fedpage.cli.output import Document, console, print_problem, with_json
from fedpage.cli.plan import LinkConfig
from fedpage.cli.run_config import write_run_command
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.runs.config import ProblemConfig, dataclass_fields, field_values

if TYPE_CHECKING:
    from fedpage.core.types import HyperParameter
    from fedpage.methods import MethodEntry
    from fedpage.problems import LinearModel
    from fedpage.studies.tune import Tuning


@with_json
@with_config_options
def tune(
    context: typer.Context,
    method: MethodArgument,
    problem: ProblemConfig,
    run: RoundsConfig,
    link: LinkConfig,
    cost: Annotated[
        str,
        typer.Option(
            "--cost",
            help="rounds, clients, bytes, bits (also bytes_up, ...), gradients, seconds, "
            "seconds_simulated, or a sum: up+0.1*down.",
        ),
    ] = "rounds",
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            help="Search only this: a name (S, step, rho, up, ...), or name=value,value,... to "
            "begin with; repeatable.",
        ),
    ] = None,
    fixed_grid: Annotated[
        bool, typer.Option("--fixed-grid", help="Search no values but those of --search.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", help="The most seeds of a comparison.")] = 10,
    fresh: Annotated[
        int, typer.Option("--fresh", help="Other seeds, on which the winner is judged.")
    ] = 10,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="The most time for the search: 90s, 5m (default: any)."),
    ] = None,
    jobs: JobsOption = 1,
    out: Annotated[
        Path,
        typer.Option("--out", help="Directory for the trials; a search in it is continued."),
    ] = Path("runs/tune"),
    report: ReportOption = None,
    force: ForceOption = False,
) -> Document:
    """Search a method's hyper-parameters for the least cost.

    Those that are given as options keep their values: --S 10 --K 10. The others are searched. A run
    may cost as much as --rounds rounds of the method.
    """
    from fedpage.callbacks.progress import progress_bars
    from fedpage.methods.fair import default_method
    from fedpage.runs import build
    from fedpage.runs.lock import DirectoryLock
    from fedpage.studies import tune as tuning
    from fedpage.studies.question import parse_budget

    entry = build.find_method(method)
    given = build.parse_hyper_parameters(entry, read_hyper_parameters(context, entry))
    problem, objective = build.open_problem(build.record_target(problem, run.target))
    base = default_method(entry, given, objective)
    values = _parse_grid(entry, search or []) or None
    parse_cost(cost)
    check_count("--seeds", seeds)
    check_count("--fresh", fresh)
    every = run.record_every
    if isinstance(every, str):
        raise InputError(
            f"--record-every must be a whole number of at least 1, not {short_repr(every)}, "
            "so that the costs of candidates are equally exact"
        )
    counts = {"--rounds": run.rounds, "--record-every": every}
    costs, target, devices = link.costs(), run.target, read_devices(run.devices)
    check_target(objective, target)
    tuning.check_question(objective, target, cost, costs, counts, devices)
    tuning.check_space(objective, base, values, fixed_grid)
    check_runs(objective, [base])
    seconds = None if budget is None else parse_budget(budget)
    continued = not out.exists() or (out / "trials.jsonl").exists()
    prepare_out(out, force or continued, report)
    print_problem(problem, objective)
    with DirectoryLock(out), continues(out), progress_bars() as bars:
        task = bars.add_task("runs", total=None)

        def progress(done: int, total: int | None, note: str) -> None:
            bars.update(task, completed=done, total=total, note=note)

        found = tuning.tune(
            objective, base, target=target, cost=cost, search=values,
            fixed=[*given, *entry.preset], fixed_grid=fixed_grid, rounds=run.rounds,
            record_every=every, seeds=seeds, fresh=fresh, jobs=jobs, costs=costs,
            store=out / "trials.jsonl", progress=progress, budget=seconds, devices=devices,
        )  # fmt: skip
    _print_result(found, out)
    settings = RunConfig(
        rounds=2 * found.rounds,
        record_every=every,
        target=target,
        devices=None if devices is None else devices.text,
        stop=True,
    )
    command = write_run_command(out / "run.toml", method, found.method, problem, settings)
    print(f"Run it: {command}")
    if report:
        _write_report(report, objective, found, out / "search.svg", command)
    return {
        "goal": found.goal,
        "method": found.method,
        "candidates": [{"method": each, **vars(score)} for each, score in found.scores],
        "searched": list(found.axes),
        "is_enclosed": found.is_enclosed,
        "judged": found.judged,
        "advice": found.advice,
        "runs": found.runs,
        "command": command,
        "out": out,
    }


def _parse_grid(entry: MethodEntry, searches: Sequence[str]) -> dict[str, list[HyperParameter]]:
    """Parse the values that `--search name=value,value` gives for a method's hyper-parameters.

    "step", the effective step, and "rho" = K eta_l/eta_g of FedPAGE are accepted as names too. A
    name without values has an empty list.

    Raises:
        InputError: a name is unknown, or a value is not of its type.
    """
    grid: dict[str, list[HyperParameter]] = {}
    for text in searches:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or (equals and not values.strip()):
            raise InputError(f"--search {text!r}: expected name or name=value,value,...")
        if name == "rho" and not hasattr(entry.cls, "local_step"):
            raise InputError(
                f"--search {text!r}: rho is FedPAGE's; {entry.label} has eta_g and eta_l"
            )
        source = _Search if name in ("step", "rho") else entry.cls
        if not equals:
            known = [*dataclass_fields(source), "step", "rho"]
            if name not in known:
                hint = did_you_mean(name, known) or f" known are {', '.join(known)}"
                raise InputError(f"--search {entry.label}: unknown key {name!r};{hint}")
            grid.setdefault(name, [])
            continue
        for value in values.split(","):
            word, where = {name: value.strip()}, f"--search {entry.label}"
            parsed = field_values(source, word, where, words=True)
            ((field, number),) = parsed.items()
            grid.setdefault(field, []).append(number)
    return grid


@dataclass
class _Search:
    """Quantities that can be searched beside the hyper-parameters."""

    step: float = 0.0
    rho: float = 0.0


def _write_report(
    report: Path, problem: LinearModel, found: Tuning, picture: Path, command: str
) -> None:
    """Run the winner on the fresh seeds and write a report with the picture and the command."""
    from fedpage.report import page, search_plot
    from fedpage.runs.spec import RunOptions
    from fedpage.studies.sweep import sweep

    question = found.question
    search_plot.search_panels(found, picture)
    runs = sweep(
        problem,
        [found.method],
        rounds=found.rounds,
        seeds=found.fresh,
        record_every=question.record_every,
        options=RunOptions(devices=question.devices),
    )
    title = f"{found.name} tuned on {problem.data.name}, {problem.N:,} clients"
    cost = question.cost
    path = page.write_runs(
        runs, report, title=title, target=question.target, picture=picture,
        cost="round" if cost.is_estimated else cost,  # no column has estimated seconds
        command=command, command_note="To run the tuned method:",
    )  # fmt: skip
    print(f"Report: {path}")


def _shown_names(found: Tuning) -> list[str]:
    """List the hyper-parameters that were changed, or in which the best candidates differ."""
    shown, chosen = found.scores[:8], [change.name for change in found.changes]
    return [
        field.name
        for field in fields(found.method)
        if field.name in ("eta", "eta_g", "eta_l", "S", "K", *chosen)
        or len({str(getattr(candidate, field.name)) for candidate, _ in shown}) > 1
    ]


def _print_result(found: Tuning, out: Path) -> None:
    from rich.table import Table

    from fedpage.core.columns import describe_column
    from fedpage.report import search_plot
    from fedpage.report.summary import format_cost

    column = found.question.cost.column
    table = Table(title=f"{found.goal}: medians over seeds", title_justify="left")
    names = _shown_names(found)
    label = describe_column(found.question.target.column).label
    for heading in (*names, found.goal.partition(" ")[0], f"best {label}", "over winner", "seeds"):
        table.add_column(heading, justify="right")
    for candidate, score in found.scores[:8]:
        cells = [_format_value(getattr(candidate, name), name) for name in names]
        paid = format_cost(score.cost, column.unit) if math.isfinite(score.cost) else "not reached"
        ratio = f"{score.ratio:.2f}" if math.isfinite(score.ratio) else "-"
        table.add_row(*cells, paid, f"{score.best:.3g}", ratio, str(score.seeds))
    screen = console()
    screen.print(table)
    given = [c for c in found.changes if c.is_given]
    chosen = [c for c in found.changes if not c.is_given]
    for words, changes in (("Chosen", chosen), ("Given", given)):
        texts = []
        for change in changes:
            value, default = (_format_value(v, change.name) for v in (change.value, change.default))
            texts.append(f"{change.name} = {value} (default {default})")
        if texts:
            screen.print(f"{words}: {', '.join(texts)}", markup=False, soft_wrap=True)
    print(f"Searched: {', '.join(found.axes)}; {found.enclosure}")
    if found.judged is not None:
        print(f"On {found.judged.seeds} fresh seeds: {found.judged.text(column.unit)} "
              f"({found.judged.level:.0%} interval of the median).")  # fmt: skip
    print(found.advice)
    reused = f", and {found.reused} from an earlier search" if found.reused else ""
    print(f"{found.runs} runs{reused}, in {out / 'trials.jsonl'}")
    print(f"Picture: {search_plot.search_panels(found, out / 'search.png')}")


def _format_value(value: object, name: str = "") -> str:
    if value is None and name[:1] in ("b", "S"):
        return "all"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "by rule" if value is None else str(value)
    return f"{value:.4g}"
