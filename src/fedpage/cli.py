"""The command line. Heavy imports happen inside the commands, so that `fedpage --help` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpage._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedpage.history import History

app = typer.Typer(
    name="fedpage",
    help="Train one model over many clients with as little communication as possible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Data sets: list, fetch, verify, path.", no_args_is_help=True)
app.add_typer(data_app, name="data")

DataOption = Annotated[str, typer.Option("--data", help="Name or file; census:skew=1 sets an embedded one's knobs.")]
ClientsOption = Annotated[int, typer.Option("--clients", help="N, the number of clients.")]
ObjectiveOption = Annotated[
    str, typer.Option("--objective", help="robust, logistic, logistic-l2, logistic-nonconvex or squares.")
]
PartitionOption = Annotated[
    str, typer.Option("--partition", help="blocks, shuffled, by-label[:shards], dirichlet:alpha, power-law[:exponent].")
]
AlphaOption = Annotated[float, typer.Option("--alpha", help="Weight of the objective's regulariser.")]
WeightsOption = Annotated[str, typer.Option("--weights", help="uniform over clients, as the paper, or size.")]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Communication rounds.")]
RecordOption = Annotated[int, typer.Option("--record", help="Measure every so many rounds; 0: only at the end.")]
TargetOption = Annotated[float, typer.Option("--target", help="Gradient norm that counts as reached.")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Threads; the result is the same for any number.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Write into a directory that is not empty.")]


def main() -> None:
    """Run the command line; whatever the user got wrong becomes one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if type(error).__name__ == "Abort":
            _fail("interrupted", 130)
        if hasattr(error, "format_message"):  # a usage error of typer's
            context = getattr(error, "ctx", None)
            command = getattr(context, "command_path", "fedpage")
            text = str(error.format_message()).replace("\n", " ").rstrip(".")
            if text:
                _fail(f"{text}; see `{command} --help`", 2)
            sys.exit(int(getattr(error, "exit_code", 2)))  # no arguments: the help was shown
        from fedpage.types import InputError

        if isinstance(error, InputError):
            _fail(str(error), 2)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}", 1)
        if os.environ.get("FEDPAGE_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (FEDPAGE_DEBUG=1 shows where; please report it)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> None:
    print(f"fedpage: {text}", file=sys.stderr)
    sys.exit(code)


def _version(asked: bool) -> None:
    if asked:
        print(f"fedpage {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    method: Annotated[str, typer.Argument(help="A method's name (see `fedpage methods`), or file.py@Class.")],
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    alpha: AlphaOption = 0.1,
    weights: WeightsOption = "uniform",
    rounds: RoundsOption = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result, bit for bit.")] = 0,
    record: RecordOption = 10,
    target: TargetOption = 1e-2,
    stop: Annotated[bool, typer.Option("--stop", help="End as soon as the target is reached.")] = False,
    threads: ThreadsOption = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Directory for history, CSV, plot and report.")] = None,
    force: ForceOption = False,
) -> None:
    """Run one method. Its hyper-parameters are options too: --S 10 --K 10 --eta-g 0.1 (see `fedpage methods`)."""
    from fedpage import specs
    from fedpage.engine import Stop, simulate

    kind = specs.method_class(method)
    chosen = kind(**specs.parsed(kind, _extras(context.args)))
    problem = specs.problem(specs.dataset(data), clients, objective, partition, alpha, weights)
    _writable(out, force)
    with _bars() as bars:
        task = bars.add_task(chosen.title, total=rounds)

        def progress(done: int, _total: int, row: Any) -> None:
            bars.update(task, completed=done, note=_note(row))

        history = simulate(
            problem, chosen, rounds=rounds, seed=seed, record=record, threads=threads, progress=progress,
            stop=Stop(grad_norm=target) if stop else None,
        )  # fmt: skip
    _show([history], target)
    if history.stopped != "finished":
        print(f"The run stopped early: {history.stopped}.")
    if out:
        history.to_jsonl(out / "history.jsonl")
        history.to_csv(out / "history.csv")
        _publish([history], out, f"{chosen.title} on {problem.data.name}, {problem.N:,} clients", target)


@app.command()
def compare(
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    methods: Annotated[
        str, typer.Option("--methods", help="Names with commas; fedpage:eta_l=0.01 sets a hyper-parameter.")
    ] = "fedpage,scaffold,fedavg",
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    alpha: AlphaOption = 0.1,
    weights: WeightsOption = "uniform",
    S: Annotated[int, typer.Option("--S", help="Clients that FedPAGE samples; methods without full rounds 2S.")] = 10,
    K: Annotated[int, typer.Option("--K", help="Local steps.")] = 10,
    step: Annotated[float, typer.Option("--step", help="Effective step of every method.")] = 0.1,
    rounds: RoundsOption = 2000,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per method, with seeds 0, 1, ...")] = 3,
    record: RecordOption = 10,
    target: TargetOption = 1e-2,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Directory for histories, plot, report.")] = None,
    force: ForceOption = False,
) -> None:
    """Compare methods on equal terms: same effective step, same clients a round, same local work, same seeds."""
    from fedpage import specs
    from fedpage.types import InputError

    if seeds < 1 or jobs < 1:
        raise InputError(f"--seeds and --jobs must be at least 1, not {min(seeds, jobs)}")
    if S < 1 or K < 1:
        raise InputError(f"--S and --K must be at least 1, not {min(S, K)}")
    problem = specs.problem(specs.dataset(data), clients, objective, partition, alpha, weights)
    M = specs.typical_size(problem)
    if S > problem.N:
        raise InputError(f"cannot sample S={S} of N={problem.N} clients; choose --S of at most {problem.N}")
    chosen = [
        specs.method(text.strip(), N=problem.N, M=M, S=S, K=K, step=step) for text in methods.split(",") if text.strip()
    ]
    if not chosen:
        raise InputError(f"--methods {methods!r}: nothing to run; give at least one name")
    out = _free(Path("runs") / "compare") if out is None else out
    _writable(out, force)
    runs = _sweep(problem, chosen, rounds, seeds, record, jobs)
    _show(runs, target)
    _keep(runs, out)
    _publish(runs, out, f"{problem.title} on {problem.data.name}, {problem.N:,} clients, step {step:g}", target)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the report.")] = Path("demo-report"),
    rounds: RoundsOption = 3000,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per method.")] = 3,
) -> None:
    """FedPAGE, SCAFFOLD and FedAvg on the embedded census data: a table, a plot, a report."""
    from fedpage import specs

    problem = specs.problem(specs.dataset("census"), 3250, "robust", "blocks", 0.1, "uniform")
    print(f"Robust linear regression on `census` (synthetic, {problem.data.rows:,} rows), {problem.N:,} clients.")
    chosen = [specs.method(m, N=problem.N, M=10, S=10, K=10, step=0.1) for m in ("fedpage", "scaffold", "fedavg")]
    _writable(out, force=True)
    runs = _sweep(problem, chosen, rounds, seeds, 10, 1)
    _show(runs, 5e-3)
    _keep(runs, out)
    _publish(runs, out, "FedPAGE, SCAFFOLD and FedAvg on the synthetic census data, 3,250 clients", 5e-3)


@app.command(name="methods")
def list_methods(
    name: Annotated[str | None, typer.Argument(help="Show only this method.")] = None,
) -> None:
    """Every method: hyper-parameters with their defaults, paper, and what its clients must remember."""
    from rich.table import Table

    from fedpage import specs
    from fedpage.methods import METHODS

    chosen: dict[str, Any] = dict(METHODS) if name is None else {name.lower(): specs.method_class(name)}
    table = Table(show_lines=True)
    for heading in ("name", "hyper-parameters (defaults)", "paper", "clients remember"):
        table.add_column(heading, overflow="fold")
    for key, kind in chosen.items():
        fields = ", ".join(f"{n}={_default(f.default)}" for n, f in specs.parameters(kind).items())
        table.add_row(key, fields, kind.paper, _remembers(kind))
    _console().print(table)
    if name is not None:
        print((chosen[name.lower()].__doc__ or "").strip())
    else:
        print(
            "None: a default that follows from the others, or all rows for a minibatch. `fedpage methods NAME`: more."
        )


@data_app.command(name="list")
def data_list() -> None:
    """Every known data set: shape, labels, whether its content is pinned, and where it lies."""
    from rich.table import Table

    from fedpage.data import registry

    table = Table()
    for heading in ("name", "rows", "features", "labels", "content", "where"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("rows", "features") else "left")
    shapes = {"census": ("32,561", "123"), "breast_cancer": ("569", "30"), "digits": ("1,797", "64")}
    notes = {"census": "synthetic", "breast_cancer": "real, scikit-learn's", "digits": "real, scikit-learn's"}
    for name in registry.EMBEDDED:
        table.add_row(name, *shapes[name], "-1, 1", notes[name], "embedded")
    for item in registry.REGISTRY.values():
        path = registry.find(item)
        labels = ", ".join(map(str, item.labels))
        content = "pinned" if item.pinned else "unpinned"
        where = str(path) if path else "not here: fedpage data fetch " + item.name
        table.add_row(item.name, f"{item.rows:,}", f"{item.features:,}", labels, content, where)
    _console().print(table)
    print("pinned: checked to the last bit. unpinned: no copy was seen yet; rows, columns and labels are checked.")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set of `fedpage data list`.")],
    mirror: Annotated[str | None, typer.Option("--mirror", help="Another address that holds the same files.")] = None,
) -> None:
    """Download a data set into the cache; goes on where an interrupted download ended."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fedpage.data import registry
    from fedpage.data.fetch import fetch as download

    item = registry.entry(name)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console(stderr=True)) as bars:
        task = bars.add_task(name, total=None)
        path = download(item, mirror=mirror, report=lambda have, whole: bars.update(task, completed=have, total=whole))
    print(f"{name} is in {path}")


@data_app.command()
def verify(name: Annotated[str, typer.Argument(help="A data set of `fedpage data list`.")]) -> None:
    """Read a data set's file and check it against the registry."""
    from fedpage.data import registry
    from fedpage.types import InputError

    item = registry.entry(name)
    path = registry.find(item)
    if path is None:
        raise InputError(f"data set {name!r} is not here: run `fedpage data fetch {name}`")
    data = registry.verify(item, path)
    what = f"digest {data.digest}" if item.pinned else "rows, columns and labels agree; its digest is not pinned"
    print(f"{path}: {data.rows:,} x {data.features:,}, {data.nonzeros:,} nonzeros, {what}")


@data_app.command()
def path(name: Annotated[str | None, typer.Argument(help="A data set; none: the directory.")] = None) -> None:
    """Where data is kept, or where one data set's file lies."""
    from fedpage.data import registry
    from fedpage.types import InputError

    if name is None:
        print(registry.cache_dir())
        return
    found = registry.find(registry.entry(name))
    if found is None:
        raise InputError(f"data set {name!r} is not here: run `fedpage data fetch {name}`")
    print(found)


def _console(stderr: bool = False) -> Any:
    """A console as wide as the terminal; wide enough for a table where there is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


@contextmanager
def _bars() -> Iterator[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip

    class Bars(Progress):
        """rich's progress whose tasks have a note."""

        def add_task(self, description: str, *args: Any, **fields: Any) -> Any:
            return super().add_task(description, *args, **{"note": "", **fields})

    with Bars(*columns, console=_console(stderr=True)) as bars:
        yield bars


def _note(row: Any) -> str:
    return f"loss {row['loss']:.4g}  gradient {row['grad_norm']:.2e}" if "loss" in row else ""


def _sweep(problem: Any, chosen: Sequence[Any], rounds: int, seeds: int, record: int, jobs: int) -> list[History]:
    """All runs, with a bar over rounds for each method."""
    from fedpage.engine import simulate, sweep

    names = [method.title for method in chosen]
    with _bars() as bars:
        if jobs > 1:
            task = bars.add_task("runs", total=len(chosen) * seeds)
            return sweep(
                problem, chosen, rounds=rounds, seeds=seeds, jobs=jobs, record=record,
                progress=lambda done, _all, run: bars.update(task, completed=done, note=repr(run)),
            )  # fmt: skip
        runs = []
        for method, name in zip(chosen, names, strict=True):
            task = bars.add_task(name, total=rounds * seeds)
            for seed in range(seeds):

                def progress(done: int, _total: int, row: Any, task: Any = task, before: int = seed * rounds) -> None:
                    bars.update(task, completed=before + done, note=_note(row))

                runs.append(simulate(problem, method, rounds=rounds, seed=seed, record=record, progress=progress))
                bars.update(task, completed=(seed + 1) * rounds)
        return runs


def _show(runs: Sequence[History], target: float) -> None:
    from rich.table import Table

    from fedpage import report

    rows = report.summarise(runs, target)
    keep = [i for i, key in enumerate(report.HEADINGS) if key != "end" or any(row["end"] for row in rows)]
    seeds = len({run.meta.get("seed") for run in runs})
    over = f", medians over {seeds} seeds" if seeds > 1 else ""
    table = Table(title=f"target: gradient norm {target:g}{over}", title_justify="left")
    headings = list(report.HEADINGS.values())
    for i in keep:
        table.add_column(headings[i], justify="left" if i in (0, 9) else "right")
    for row in rows:
        table.add_row(*(report.cells(row)[i] for i in keep))
    _console().print(table)


def _keep(runs: Sequence[History], out: Path) -> None:
    """Write every run's history, and one CSV with all of them."""
    from fedpage.history import by_method

    for number, group in enumerate(by_method(runs).values()):
        for run in group:
            name = f"{number}-{run.label.lower()}-seed{run.meta['seed']}"
            run.to_jsonl(out / "histories" / f"{name}.jsonl")
            run.to_csv(out / "histories" / f"{name}.csv")


def _publish(runs: Sequence[History], out: Path, title: str, target: float) -> None:
    from fedpage import plot, report

    picture = plot.pair(runs, out / "curves.png", title)
    page = report.page(runs, picture, out / "report.html", title=title, target=target)
    print(f"Report: {page}   Plot: {picture}")


def _writable(out: Path | None, force: bool) -> None:
    """Make the directory now, so that a run does not end in an error about it."""
    from fedpage.types import InputError

    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file, not a directory")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise InputError(f"--out {out}: is not empty; choose another directory, or --force to write into it")
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from None


def _free(path: Path) -> Path:
    """The first of path, path-2, path-3, ... that is not in use."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _extras(words: Sequence[str]) -> dict[str, str]:
    """`--eta-g 0.1 --S=10` as settings."""
    from fedpage.types import InputError

    settings: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise InputError(f"unexpected {word!r}; hyper-parameters are given as --name value")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise InputError(f"option {word} needs a value; see `fedpage run --help` and `fedpage methods`")
            value = rest.pop(0)
        settings[name.replace("-", "_")] = value
    return settings


def _default(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _remembers(kind: type[Any]) -> str:
    return "nothing" if kind.memory is None else str(kind.memory.__doc__).rstrip(".")
