"""`fedpage plan` and `fedpage tune`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpage.cli.common import (
    AlphaOption,
    ClientsOption,
    DataOption,
    ForceOption,
    MethodArgument,
    ObjectiveOption,
    PartitionOption,
    PartitionSeedOption,
    RecordOption,
    ReportOption,
    RoundsOption,
    TargetOption,
    WeightsOption,
    at_most,
    bars,
    console,
    extras,
    flags,
    writable,
)

LatencyOption = Annotated[
    float, typer.Option("--latency", help="Seconds that a round takes whatever is sent.")
]
UplinkOption = Annotated[
    float | None, typer.Option("--uplink", help="A client's bytes a second to the server.")
]
DownlinkOption = Annotated[
    float | None, typer.Option("--downlink", help="Bytes a second from the server to a client.")
]
GradientOption = Annotated[
    float, typer.Option("--seconds-per-gradient", help="For one row's gradient at a client.")
]


_LEGEND = """\
bound: guaranteed by a proof with explicit constants, for the mean over rounds, as far as the constants hold.
order: a complexity up to constants; compare how it grows, it promises no number. no result: a dash in the paper.
BV: bounded variance of rows (sigma). BGD: bounded dissimilarity of clients (G, B). S = N: everyone in each round."""


def _costs(latency: float, uplink: float | None, downlink: float | None, gradient: float) -> Any:
    from fedpage.theory.planner import Costs

    return Costs(
        latency,
        math.inf if uplink is None else uplink,
        math.inf if downlink is None else downlink,
        gradient,
    )


def plan(
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="Gradient norm to reach; --convex: gap of f.")
    ],
    clients: ClientsOption = 3250,
    sampled: Annotated[
        int, typer.Option("--S", "--sampled", help="Clients called in a round.")
    ] = 10,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows per client (with --data: from the data).")
    ] = None,
    K: Annotated[int, typer.Option("--K", help="Local steps.")] = 10,
    parameters: Annotated[
        int | None, typer.Option("--parameters", help="d (with --data: from the data).")
    ] = None,
    convex: Annotated[
        bool, typer.Option("--convex", help="The objective is convex (with --data: known).")
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="Estimate the constants from this data set.")
    ] = None,
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    partition_seed: PartitionSeedOption = 0,
    alpha: AlphaOption = None,
    weights: WeightsOption = "uniform",
    L: Annotated[
        float | None, typer.Option("--L", help="Smoothness of the rows (default 1).")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Deviation of rows within a client (1).")
    ] = None,
    G: Annotated[float | None, typer.Option("--G", help="Dissimilarity of clients (1).")] = None,
    B: Annotated[
        float | None, typer.Option("--B", help="Dissimilarity of clients, relative (1).")
    ] = None,
    D0: Annotated[float | None, typer.Option("--D0", help="f(x0) - f* (1).")] = None,
    R2: Annotated[float | None, typer.Option("--R2", help="|x0 - x*|^2 (1).")] = None,
    latency: LatencyOption = 0.0,
    uplink: UplinkOption = None,
    downlink: DownlinkOption = None,
    gradient: GradientOption = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Which method needs the fewest rounds and bytes to reach epsilon, by its theory, before anything is run."""
    from fedpage.core.errors import InputError
    from fedpage.theory import Setting
    from fedpage.theory import planner as planning

    costs = _costs(latency, uplink, downlink, gradient)
    given = {"L": L, "sigma": sigma, "G": G, "B": B, "D0": D0, "R2": R2}
    base: dict[str, float] = dict.fromkeys(given, 1.0)
    origin = dict.fromkeys(given, "default")
    average: float | None = None
    if data is not None:
        found, about = _estimated(
            data, clients, objective, partition, alpha, weights, partition_seed
        )
        base, average, convex = found, found.pop("average"), about["convex"]
        rows, parameters = rows or about["M"], parameters or about["d"]
        origin = dict.fromkeys(given, "estimated") | {"L": "computed"}
    values = base | {name: value for name, value in given.items() if value is not None}
    origin |= {name: "given" for name, value in given.items() if value is not None}
    for name in ("L", "D0", "R2"):
        if values[name] == 0 and origin[name] != "given":
            raise InputError(
                f"{data}: x0 = 0 is a minimiser already ({name} = 0), so there is nothing to plan"
            )
    M, d = (10 if rows is None else rows), (100 if parameters is None else parameters)
    try:
        setting = Setting(N=clients, S=sampled, K=K, M=M, epsilon=epsilon, **values)
        table = planning.plan(
            setting,
            d=d,
            convex=convex,
            costs=costs,
            average_L=average if origin["L"] == "computed" else None,
        )
    except (ZeroDivisionError, OverflowError):
        raise InputError(
            "these numbers are too small or too large to compute with; choose milder ones"
        ) from None
    if as_json:
        _print_json(setting, d, convex, origin, table)
        return
    _print_plan(setting, d, convex, origin, table, costs.given)


def _estimated(
    data: str,
    clients: int,
    objective: str,
    partition: str,
    alpha: float | None,
    weights: str,
    partition_seed: int,
) -> tuple[dict[str, float], dict[str, Any]]:
    from fedpage.runs import build as specs
    from fedpage.theory import estimate

    problem = specs.problem(
        specs.dataset(data), clients, objective, partition, alpha, weights, partition_seed
    )
    c = estimate(problem)
    found = {
        "L": c.L.row, "sigma": math.sqrt(c.sigma2), "G": c.G, "B": c.B, "D0": c.D0, "R2": c.R2, "average": c.L.average,
    }  # fmt: skip
    return found, {"M": max(1, round(c.M)), "d": c.d, "convex": c.convex}


def _print_json(
    setting: Any, d: int, convex: bool, origin: dict[str, str], table: list[Any]
) -> None:
    import dataclasses
    import json

    print(
        json.dumps(
            {
                "setting": {**dataclasses.asdict(setting), "d": d, "convex": convex},
                "origin": origin,
                "methods": [dataclasses.asdict(row) for row in table],
            },
            indent=2,
            ensure_ascii=False,
        )
    )


def _print_plan(
    setting: Any, d: int, convex: bool, origin: dict[str, str], table: list[Any], timed: bool
) -> None:
    from rich.table import Table

    from fedpage.report.summary import duration, volume

    constants = ", ".join(
        f"{name}={getattr(setting, name):.3g} ({how})" for name, how in origin.items()
    )
    kind = "convex: gap of f" if convex else "nonconvex: gradient norm"
    print(
        f"N={setting.N:,} clients, S={setting.S}, M={setting.M:g} rows, K={setting.K}, d={d:,}; {kind}",
        end=" ",
    )
    print(f"<= {setting.epsilon:g}")
    print(f"constants: {constants}")
    shown = Table(show_lines=False)
    headings = [
        "method",
        "analysis",
        "kind",
        "rounds",
        "clients",
        "bytes up",
        "bytes down",
        "gradients a client",
    ]
    for heading in [*headings, *(["time, estimated"] if timed else []), "needs"]:
        words = heading in ("method", "analysis", "kind", "needs")
        shown.add_column(heading, justify="left" if words else "right", overflow="fold")
    for row in table:
        if row.rounds is None:
            numbers = ["-"] * (6 if timed else 5)
        else:
            numbers = [
                f"{row.rounds:,.0f}" if row.rounds < 1e7 else f"{row.rounds:.2e}",
                f"{row.clients:.3g}", volume(row.bytes_up), volume(row.bytes_down), f"{row.gradients_per_client:.3g}",
            ]  # fmt: skip
            numbers += [duration(row.seconds)] if timed else []
        shown.add_row(row.method, row.source, row.kind, *numbers, row.assumption)
    console().print(shown)
    print(_LEGEND)
    for row in table:
        if row.steps:
            print(
                f"{row.method}: "
                + ", ".join(f"{name} = {value:.4g}" for name, value in row.steps.items())
            )


def tune(
    context: typer.Context,
    method: MethodArgument,
    data: DataOption = "census",
    clients: ClientsOption = 3250,
    objective: ObjectiveOption = "robust",
    partition: PartitionOption = "blocks",
    partition_seed: PartitionSeedOption = 0,
    alpha: AlphaOption = None,
    weights: WeightsOption = "uniform",
    target: TargetOption = 1e-2,
    cost: Annotated[
        str,
        typer.Option(
            "--cost", help="rounds, clients, bytes, bytes_up, bytes_down, gradients or seconds."
        ),
    ] = "rounds",
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            help="name=value,value,...: eta_g, eta_l, step, rho, K, b3, p, ...; repeatable.",
        ),
    ] = None,
    rounds: RoundsOption = 2000,
    record_every: RecordOption = 10,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Seeds of the last level of the search.")
    ] = 8,
    fresh: Annotated[
        int, typer.Option("--fresh", help="New seeds on which the winner is judged.")
    ] = 5,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes.")] = 1,
    latency: LatencyOption = 0.0,
    uplink: UplinkOption = None,
    downlink: DownlinkOption = None,
    gradient: GradientOption = 0.0,
    out: Annotated[
        Path,
        typer.Option("--out", help="Directory for the trials and the heat map; goes on there."),
    ] = Path("runs/tune"),
    report: ReportOption = None,
    force: ForceOption = False,
) -> None:
    """Search step sizes for the least cost to a target; other hyper-parameters are options: --S 10 --K 10."""
    from fedpage.core.errors import InputError
    from fedpage.runs import build as specs
    from fedpage.studies.tune import checked, default_grid
    from fedpage.studies.tune import tune as search_steps

    kind = specs.method_class(method)
    problem = specs.problem(
        specs.dataset(data), clients, objective, partition, alpha, weights, partition_seed
    )
    settings = specs.parsed(kind, extras(context.args, flags(context)), flags(context))
    base = specs.method_like(kind, settings, problem)
    grid = specs.grid(kind, search or []) or default_grid(base, problem)
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {jobs}")
    at_most("--seeds", seeds)
    at_most("--fresh", fresh)
    counts = {
        "--rounds": rounds,
        "--record-every": record_every,
        "--seeds": seeds,
        "--fresh": fresh,
    }
    costs = _costs(latency, uplink, downlink, gradient)
    checked(problem, base, target, cost, costs, grid, counts)
    if out.exists() and not (out / "trials.jsonl").exists():
        writable(out, force, report)
    else:
        writable(out, True, report)  # its own directory: the search goes on
    with bars() as shown:
        task = shown.add_task("runs", total=None)

        def progress(done: int, whole: int, note: str) -> None:
            shown.update(task, completed=done, total=whole, note=note)

        found = search_steps(
            problem, base, target=target, cost=cost, grid=grid, rounds=rounds, record_every=record_every, seeds=seeds, fresh=fresh,
            jobs=jobs, costs=costs, store=out / "trials.jsonl", progress=progress,
        )  # fmt: skip
    _print_tuning(found, out, grid)
    where = {"--data": data, "--clients": str(clients), "--objective": objective, "--partition": partition,
             "--rounds": str(rounds)}  # fmt: skip
    where |= {"--alpha": f"{alpha:g}"} if alpha is not None else {}
    where |= {"--partition-seed": str(partition_seed)} if partition_seed else {}
    where |= {"--weights": weights} if weights != "uniform" else {}
    command = specs.command_line(method, found.method, where)
    print("Run it: " + command)
    if report:
        _tuning_page(report, problem, found, rounds, record_every, out / "grid.png", command)


def _tuning_page(
    report: Path,
    problem: Any,
    found: Any,
    rounds: int,
    record_every: int,
    picture: Path,
    command: str,
) -> None:
    """The winner's runs on the fresh seeds, the grid, and the command line."""
    import base64
    import html

    from fedpage.report import page
    from fedpage.studies.sweep import sweep

    runs = sweep(
        problem,
        [found.method],
        rounds=rounds,
        seeds=range(10_000, 10_000 + found.fresh),
        record_every=record_every,
    )
    image = base64.b64encode(picture.read_bytes()).decode("ascii")
    extra = f'<p><img alt="costs over the grid" src="data:image/png;base64,{image}"></p><pre>{html.escape(command)}</pre>'
    title = f"{found.method.name} tuned on {problem.data.name}, {problem.N:,} clients"
    print(f"Report: {page.of_runs(runs, report, title=title, target=found.target, extra=extra)}")


def _print_tuning(found: Any, out: Path, grid: dict[str, list[Any]]) -> None:
    from rich.table import Table

    from fedpage.report import plots

    shown = Table(
        title=f"{found.cost} to a gradient norm of {found.target:g}, medians over seeds",
        title_justify="left",
    )
    names = [
        name for name in ("eta_g", "eta_l", "K", "b3", "b", "p") if hasattr(found.method, name)
    ]
    for heading in (*names, found.cost, "best gradient norm", "seeds"):
        shown.add_column(heading, justify="right")
    for candidate, score in found.scores[:8]:
        cells = [
            "default" if getattr(candidate, n) is None else f"{getattr(candidate, n):.4g}"
            for n in names
        ]
        paid = f"{score.cost:,.4g}" if math.isfinite(score.cost) else "not reached"
        shown.add_row(*cells, paid, f"{score.best:.3g}", str(score.seeds))
    console().print(shown)
    low, middle, high = (f"{v:,.5g}" if math.isfinite(v) else "not reached" for v in found.judged)
    print(
        f"Judged on {found.fresh} fresh seeds: {middle} {found.cost} (quartiles {low} to {high}). Report this number."
    )
    print(f"{found.runs} runs done, {found.kept} taken over from before, in {out / 'trials.jsonl'}")
    picture = plots.heat_map(found, grid, out / "grid.png")
    print(f"Grid: {picture}")
