"""`fedpage reproduce`: run the paper's experiments and check its claims."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import check_count, prepare_out
from fedpage.cli.options import JobsOption
from fedpage.cli.output import Document, console, with_json
from fedpage.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from fedpage.studies.paper.claims import Verdict
    from fedpage.studies.paper.figures import Figure


@with_json
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of a figure, or all.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", help="Runs of each curve (default: 5, as in the figures)."),
    ] = None,
    jobs: JobsOption = 1,
    out: Annotated[
        Path, typer.Option("--out", help="Directory; finished runs in it are reused.")
    ] = Path("paper-runs"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Run 2 seeds and a tenth of the rounds.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Use other data, such as census; titles say so."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search the step sizes of the local-steps figures.")
    ] = False,
) -> Document:
    """Run the paper's experiments and check its claims.

    Finished runs are reused, so an interrupted reproduction can be started again.
    """
    from fedpage.studies.paper import figures as book

    if listing:
        return _list()
    if name is None:
        raise InputError("name a figure of `fedpage reproduce --list`, or all")
    chosen = [book.load(figure) for figure in (book.names() if name == "all" else [name])]
    seeds = max(figure.seeds for figure in chosen) if seeds is None else seeds
    check_count("--seeds", seeds)
    seeds = min(seeds, 2) if quick else seeds
    chosen = _adapt(chosen, quick, data)
    _check_available(chosen)
    prepare_out(out, force=True)
    jobs = min(jobs, os.cpu_count() or 1)
    began = time.perf_counter()
    if tune:
        chosen = [figure for figure in chosen if figure.tuning is not None]
        return {"searched": _tune(chosen, out, jobs)}
    fresh = _run(chosen, seeds, out, jobs)
    if name == "all" and not quick and data is None:
        unsearched = [
            f for f in chosen if f.tuning and not (out / "tuning" / f"{f.name}.json").is_file()
        ]
        if unsearched:
            _tune(unsearched, out, jobs)
    verdicts = _judge(chosen, seeds, out)
    page = _report(chosen, seeds, out, verdicts)
    _show(verdicts)
    spent = time.perf_counter() - began
    print(f"{fresh} new runs in {spent:.0f} s. Report: {page}")
    return {"claims": verdicts, "new_runs": fresh, "seconds": spent, "report": page}


def _list() -> Document:
    from rich.table import Table

    from fedpage.studies.paper import figures as book

    table = Table()
    for heading in ("name", "paper", "data", "panels", "curves", "rounds"):
        table.add_column(heading)
    found = []
    for name in book.names():
        figure = book.load(name)
        curves = ", ".join(variant.label for variant in figure.panels[0].variants)
        table.add_row(
            name, figure.paper, figure.data, str(len(figure.panels)), curves, str(figure.rounds)
        )
        found.append(
            {
                "name": name,
                "paper": figure.paper,
                "data": figure.data,
                "panels": len(figure.panels),
                "curves": [variant.label for variant in figure.panels[0].variants],
                "rounds": figure.rounds,
            }
        )
    console().print(table)
    return {"figures": found}


def _adapt(chosen: list[Figure], quick: bool, data: str | None) -> list[Figure]:
    """Change the figures to other data or fewer rounds, and say so in their titles."""
    from dataclasses import replace

    from fedpage.runs.build import load_dataset
    from fedpage.studies.paper import figures as book

    if data is not None:
        rows = load_dataset(data).rows
        chosen = [book.on_other_data(figure, data, rows) for figure in chosen]
    if quick:
        chosen = [
            replace(
                f,
                rounds=f.rounds // 10,
                record_every=max(1, f.record_every // 2),
                title=f"{f.title} [quick look]",
            )
            for f in chosen
        ]
    return chosen


def _check_available(chosen: list[Figure]) -> None:
    """Check that the data is on this machine before anything is run."""
    from fedpage.data import registry

    for name in dict.fromkeys(figure.data for figure in chosen):
        entry = registry.DATASETS.get(name)
        if isinstance(entry, registry.LibsvmFile) and registry.find(entry) is None:
            raise InputError(
                f"data set {name!r} is not on this machine: run `fedpage data fetch {name}`, "
                "or use `--data census`, which is synthetic"
            )


def _run(chosen: list[Figure], seeds: int, out: Path, jobs: int) -> int:
    from fedpage.callbacks.progress import progress_bars
    from fedpage.studies.paper import runs

    with progress_bars() as bars:
        task = bars.add_task("runs", total=None)
        return runs.run(
            runs.list_tasks(chosen, seeds),
            out,
            jobs,
            lambda done, total: bars.update(task, completed=done, total=total),
        )


def _tune(chosen: list[Figure], out: Path, jobs: int) -> dict[str, object]:
    from rich.table import Table

    from fedpage.callbacks.progress import progress_bars
    from fedpage.studies.paper import tuning

    if not chosen:
        raise InputError(
            "--tune: only local-steps/a9a and local-steps/w8a have step sizes to search"
        )
    found: dict[str, object] = {}
    for figure in chosen:
        assert figure.tuning is not None
        with progress_bars() as bars:
            task = bars.add_task("search", total=None)
            rows = tuning.search(
                figure, out, jobs,
                lambda what, done, total, _note, task=task: bars.update(  # type: ignore[misc]
                    task, completed=done, total=total, note=what
                ),
            )  # fmt: skip
        table = Table(
            title=f"{figure.name}: fewest rounds to {figure.tuning.target:g}",
            title_justify="left",
        )
        for heading in (
            "panel",
            "curve",
            "eta_g",
            "rho",
            "rounds on fresh seeds",
            "eta_g within a tenth of the best",
        ):
            table.add_column(heading)
        for row in rows:
            median = row["rounds_on_fresh_seeds"][1]
            near = ", ".join(f"{v:g}" for v in row["within_tenth"])
            rho = "-" if row["rho"] is None else f"{row['rho']:g}"
            paid = "not reached" if median is None else f"{median:.0f}"
            table.add_row(row["panel"], row["label"], f"{row['eta_g']:g}", rho, paid, near)
        console().print(table)
        print(f"Written to {out / 'tuning' / (figure.name + '.json')}")
        found[figure.name] = list(rows)
    return found


def _judge(chosen: list[Figure], seeds: int, out: Path) -> list[Verdict]:
    import json

    from fedpage.studies.paper import claims, runs

    figures = {figure.name: figure for figure in chosen}
    found = {figure.name: runs.load_histories(figure, seeds, out) for figure in chosen}
    tuned = {}
    for name in figures:
        path = out / "tuning" / f"{name}.json"
        if path.is_file():
            try:
                tuned[name] = json.loads(path.read_text(encoding="utf-8"))
                for row in tuned[name]:
                    (
                        row["panel"],
                        f"{row['eta_g']:g}",
                        [f"{value:g}" for value in row["within_tenth"]],
                    )
            except (ValueError, TypeError, KeyError, RecursionError):
                raise InputError(
                    f"{path}: not a result of the search; remove it and run with --tune again"
                ) from None
    concerned = [claim for claim in claims.load_claims() if set(claim.figures) & set(figures)]
    return [claims.judge(claim, figures, found, tuned) for claim in concerned]


def _report(chosen: list[Figure], seeds: int, out: Path, verdicts: list[Verdict]) -> Path:
    from fedpage.report import page, plots
    from fedpage.studies.paper import runs

    shown = []
    figures: dict[str, object] = {}
    settings = {"seeds": list(range(seeds)), "figures": figures}
    for figure in chosen:
        found = runs.load_histories(figure, seeds, out)
        panels = tuple(plots.PanelRuns(panel.title, found[panel.key]) for panel in figure.panels)
        made = plots.FigureRuns(figure.name, figure.title, figure.paper, figure.columns, panels)
        shown.append(made)
        folder = out / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        drawn = plots.draw_figure(made)
        stem = folder / figure.name.replace("/", "-")
        for suffix in (".png", ".pdf"):
            drawn.savefig(stem.with_suffix(suffix), dpi=150)
        _pgf(drawn, stem.with_suffix(".pgf"))
        first = next((r for c in found.values() for runs_ in c.values() for r in runs_), None)
        methods = {v.label: repr(v.method) for p in figure.panels[:1] for v in p.variants}
        figures[figure.name] = {
            "rounds": figure.rounds,
            "record_every": figure.record_every,
            "methods in the first panel": methods,
            "problem": first.meta["problem"] if first else None,
            "versions": first.meta["versions"] if first else None,
        }  # fmt: skip
    note = next(
        (
            h.meta["problem"].get("data_note", "")
            for f in shown
            for p in f.panels
            for r in p.curves.values()
            for h in r
        ),
        "",
    )
    return page.write(
        out / "report.html",
        title="FedPAGE: the paper's experiments",
        figures=shown,
        settings=settings,
        claims=verdicts,
        note=f"Data: {note}." if note else "",
    )


def _pgf(drawn: Drawing, path: Path) -> None:
    """Write the figure for LaTeX, if there is a TeX, which matplotlib needs to measure text."""
    from shutil import which
    from subprocess import SubprocessError

    from matplotlib import rc_context

    system = next((name for name in ("xelatex", "lualatex", "pdflatex") if which(name)), None)
    if system is None:
        return
    try:
        with rc_context({"pgf.texsystem": system, "pgf.rcfonts": False}):
            drawn.savefig(path)
    except (RuntimeError, SubprocessError, OSError, ValueError) as error:
        path.unlink(missing_ok=True)
        print(f"{path.name} was not written: {system} failed ({str(error).splitlines()[0]})")


def _show(verdicts: list[Verdict]) -> None:
    from rich.table import Table

    table = Table(show_lines=True)
    for heading in ("verdict", "claim", "comparisons"):
        table.add_column(heading, overflow="fold")
    for verdict in verdicts:
        detail = f"{verdict.counts}. {verdict.note}" if verdict.findings else verdict.note
        table.add_row(verdict.verdict, verdict.claim.text, detail)
    console().print(table)
