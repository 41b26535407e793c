"""What the commands share: options, consoles, bars, tables, and places to write to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedpage.runs.history import History


def _method_names() -> list[str]:
    """For the shell's completion, as the next two."""
    from fedpage.methods import METHODS

    return list(METHODS)


def _data_names() -> list[str]:
    from fedpage.data.registry import known

    return list(known())


def _objective_names() -> list[str]:
    from fedpage.problems import OBJECTIVES

    return list(OBJECTIVES)


MethodArgument = Annotated[
    str,
    typer.Argument(
        help="A method's name (see `fedpage methods`), or file.py@Class.",
        autocompletion=_method_names,
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        help="Name or file; census:skew=1 sets an embedded one's knobs.",
        autocompletion=_data_names,
    ),
]
ClientsOption = Annotated[int, typer.Option("--clients", help="N, the number of clients.")]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective", help="robust, logistic, logistic-l2, logistic-nonconvex, squares, squares-l2.",
        autocompletion=_objective_names,
    ),
]  # fmt: skip
PartitionOption = Annotated[
    str,
    typer.Option(
        "--partition",
        help="blocks, iid, label-shards[:shards], dirichlet:alpha, power-law[:exponent].",
    ),
]
AlphaOption = Annotated[
    float | None,
    typer.Option("--alpha", help="Weight of the regulariser (-l2, -nonconvex), by default 0.1."),
]
PartitionSeedOption = Annotated[
    int, typer.Option("--partition-seed", help="Of partitions that draw uniform_per_client.")
]
WeightsOption = Annotated[
    str, typer.Option("--weights", help="uniform over clients, as the paper, or size.")
]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Communication rounds.")]
RecordOption = Annotated[
    int, typer.Option("--record-every", help="Measure every so many rounds; 0: only at the end.")
]
TargetOption = Annotated[
    float, typer.Option("--target", help="Gradient norm that counts as reached.")
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", help="Threads; the result is the same for any number.")
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write the report to this HTML file too.")
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint-every", help="Rounds (100) or seconds (30s) between checkpoints in --out."
    ),
]
FaultsOption = Annotated[
    Path | None,
    typer.Option(
        "--faults", help="TOML file of clients that fail, and what to do (docs/faults.md)."
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Write into a directory that is not empty.")
]


def console(stderr: bool = False) -> Any:
    """A console as wide as the terminal; wide enough for a table where there is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


@contextmanager
def bars() -> Iterator[Any]:
    """Progress bars on stderr, whose tasks may carry a note."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip

    class Bars(Progress):
        """rich's progress whose tasks have a note."""

        def add_task(self, description: str, *args: Any, **fields: Any) -> Any:
            return super().add_task(description, *args, **{"note": "", **fields})

    with Bars(*columns, console=console(stderr=True)) as shown:
        yield shown


def note(row: Any) -> str:
    """Loss and gradient norm of a record_every, for a bar."""
    return f"loss {row['loss']:.4g}  gradient {row['grad_norm']:.2e}" if "loss" in row else ""


def sweep(
    problem: Any,
    chosen: Sequence[Any],
    rounds: int,
    seeds: int,
    record_every: int,
    jobs: int,
    out: Path,
    **options: Any,
) -> list[History]:
    """All runs, with a bar over rounds for each method, each in its own directory below `out`."""
    from fedpage.engine.simulate import simulate
    from fedpage.studies.sweep import run_names
    from fedpage.studies.sweep import sweep as run_all

    options |= {"record_every": record_every}
    names = [method.name for method in chosen]
    with bars() as shown:
        if jobs > 1:
            task = shown.add_task("runs", total=len(chosen) * seeds)

            def finished(done: int, _all: int, run: History) -> None:
                newest = (
                    f"{run.label}, seed {run.meta['seed']}: gradient {run.last('grad_norm'):.2e}"
                )
                shown.update(task, completed=done, note=newest)

            return run_all(
                problem,
                chosen,
                rounds=rounds,
                seeds=seeds,
                jobs=jobs,
                progress=finished,
                out=out,
                **options,
            )
        runs = []
        places = iter(run_names(chosen, range(seeds)))
        for method, name in zip(chosen, names, strict=True):
            task = shown.add_task(name, total=rounds * seeds)
            for seed in range(seeds):

                def progress(
                    done: int, _total: int, row: Any, task: Any = task, before: int = seed * rounds
                ) -> None:
                    shown.update(task, completed=before + done, note=note(row))

                place = out / next(places)
                runs.append(
                    simulate(
                        problem,
                        method,
                        rounds=rounds,
                        seed=seed,
                        progress=progress,
                        out=place,
                        **options,
                    )
                )
                shown.update(task, completed=(seed + 1) * rounds)
        return runs


def show(runs: Sequence[History], target: float) -> None:
    """Print the summary table, without the least needed columns where the terminal is narrow."""
    from rich.table import Table

    from fedpage.report import summary

    rows = summary.summarise(runs, target)
    cells = [summary.cells(row) for row in rows]
    headings = list(summary.HEADINGS.values())
    keep = [
        i
        for i, key in enumerate(summary.HEADINGS)
        if key != "end" or any(row["end"] for row in rows)
    ]
    screen = console()
    for key in ("seconds", "clients_to", "loss", "step", "per_round"):
        if sum(3 + _width(headings[i], [row[i] for row in cells]) for i in keep) < screen.width:
            break
        keep.remove(list(summary.HEADINGS).index(key))
    seeds = len({run.meta.get("seed") for run in runs})
    over = f", medians over {seeds} seeds" if seeds > 1 else ""
    table = Table(title=f"target: gradient norm {target:g}{over}", title_justify="left")
    for i in keep:
        table.add_column(headings[i], justify="left" if i in (0, 9) else "right", overflow="fold")
    for row in cells:
        table.add_row(*(row[i] for i in keep))
    screen.print(table)


def _width(heading: str, cells: Sequence[str]) -> int:
    """A column's width when its heading is broken into words."""
    return max(len(word) for word in [*heading.split(), *cells])


@contextmanager
def interruptible(out: Path | None, jobs: int = 1) -> Iterator[None]:
    """Ctrl-C and SIGTERM let the run in hand finish its round and write itself down; a second Ctrl-C does not wait.

    Several processes are interrupted at once: their runs go on from their last checkpoints.
    """
    import signal

    from fedpage.engine.loop import Interrupted
    from fedpage.runs.store import ask_to_stop

    if out is None:
        yield
        return
    pressed = 0

    def stop(number: int, frame: object) -> None:
        nonlocal pressed
        pressed += 1
        ask_to_stop()
        if pressed > 1 or jobs > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        done = str(error).partition(";")[0] or "interrupted"
        raise Interrupted(f"{done}; `fedpage resume {out}` goes on") from None
    finally:
        ask_to_stop(False)
        for number, handler in before.items():
            signal.signal(number, handler)


def publish(
    runs: Sequence[History], out: Path | None, title: str, target: float, report: Path | None = None
) -> None:
    """Write the plot and the page, and say where they are."""
    from fedpage.report import page, plots

    said = []
    if out is not None:
        said.append(
            f"Report: {page.of_runs(runs, out / 'report.html', title=title, target=target)}"
        )
        said.append(f"Plot: {plots.pair(runs, out / 'curves.png', title)}")
    if report is not None:
        said.append(f"Report: {page.of_runs(runs, report, title=title, target=target)}")
    if said:
        print("   ".join(said))


def writable(out: Path | None, force: bool, report: Path | None = None) -> None:
    """Make the directory (and the report's) now, so that a run does not end in an error about it."""
    from fedpage.core.errors import InputError

    if report is not None:
        if report.is_dir():
            raise InputError(f"--report {report}: is a directory; give the name of an HTML file")
        try:
            report.parent.mkdir(parents=True, exist_ok=True)
            probe = report.with_name(f".probe.{os.getpid()}")
            probe.touch()
            probe.unlink()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"--report {report}: cannot be written ({why})") from None
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file, not a directory")
    if not force and any((out / name).is_file() for name in ("run.toml", "compare.toml")):
        raise InputError(
            f"--out {out}: there is a run in it; `fedpage resume {out}` goes on with it, --force begins anew"
        )
    if out.is_dir() and any(out.iterdir()) and not force:
        raise InputError(
            f"--out {out}: is not empty; choose another directory, or --force to write into it"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"--out {out}: cannot be written ({why})") from None


def at_most(name: str, value: int, most: int = 100_000) -> None:
    """Refuse a number of runs whose list alone would fill the memory."""
    from fedpage.core.errors import InputError

    if value > most:
        raise InputError(f"{name} must be at most {most:,}, not {value:,}")


def free(path: Path) -> Path:
    """The first of path, path-2, path-3, ... that is not in use."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def flags(context: Any) -> list[str]:
    """The command's own options, which a hyper-parameter that nobody knows may have been meant to be."""
    return [
        flag
        for parameter in context.command.params
        for flag in parameter.opts
        if flag.startswith("--")
    ]


def extras(words: Sequence[str], options: Sequence[str] = ()) -> dict[str, str]:
    """`--eta-g 0.1 --S=10` as settings."""
    from difflib import get_close_matches

    from fedpage.core.errors import InputError

    settings: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise InputError(f"unexpected {word!r}; hyper-parameters are given as --name value")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                near = get_close_matches(word, options, n=1, cutoff=0.7)
                hint = f"did you mean {near[0]}? " if near else ""
                raise InputError(
                    f"option {word} needs a value; {hint}see `fedpage run --help` and `fedpage methods`"
                )
            value = rest.pop(0)
        settings[name.replace("-", "_")] = value
    return settings


def default(value: Any) -> str:
    """A hyper-parameter's default as people read it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def remembers(kind: type[Any]) -> str:
    """What a method's clients keep between rounds."""
    return "nothing" if kind.client_state is None else str(kind.client_state.__doc__).rstrip(".")


def sensible(
    problem: Any,
    methods: list[Any],
    *,
    rounds: int,
    record_every: int,
    seed: int,
    threads: int,
    target: float,
) -> None:
    """Refuse before anything is shown or written."""
    import math

    from fedpage.core.errors import InputError
    from fedpage.core.validate import check_whole
    from fedpage.engine.simulation import Simulation

    check_whole("--rounds", rounds, 0)
    check_whole("--record-every", record_every, 0)
    if not (math.isfinite(target) and target > 0):
        raise InputError(f"--target must be a finite number above 0, not {target!r}")
    for method in methods:
        Simulation(problem, method, seed=seed, threads=threads)


def lasting(text: str, at: str = "") -> str:
    """A file's path that still holds when the run is resumed from another directory; other words as they are."""
    from fedpage.data.registry import known

    path, found, rest = text.rpartition(at) if at else (text, "", "")
    if not path or text.partition(":")[0] in known() or not os.path.exists(path):
        return text
    return f"{Path(path).resolve()}{found}{rest}"


def say(text: str) -> None:
    """A remark that is no result."""
    console(stderr=True).print(f"fedpage: {text}", markup=False, soft_wrap=True)


def command_of(table: Mapping[str, Any], path: Path, schema: dict[str, type]) -> dict[str, Any]:
    """What the command line was given, from a settings file that anybody may have edited."""
    from fedpage.core.errors import InputError
    from fedpage.runs import toml

    command = table.get("command")
    if table.get("format") != 1 or not isinstance(command, dict):
        raise InputError(f"{path}: not the settings of a run of this version of fedpage")
    toml.known(command, schema, f"{path}, [command]", {"alpha", "faults", "hyper"})
    hyper = command.get("hyper", {})
    toml.known(hyper, dict.fromkeys(hyper, str), f"{path}, [command.hyper]", set())
    return {**command, "hyper": hyper}
