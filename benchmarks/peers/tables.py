"""Write the Markdown tables of run.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = {
    "ours": "fedpage", "numpy_loop": "numpy loop", "torch_loop": "PyTorch loop", "pfl_peer": "pfl",
    "fedjax_peer": "FedJAX", "flower_sim": "Flower simulation",
}  # fmt: skip
METHODS = {
    "fedavg": "FedAvg", "scaffold": "SCAFFOLD", "fedprox": "FedProx", "fedavgm": "FedAvgM",
    "fednesterov": "FedNesterov", "fedadagrad": "FedAdagrad", "fedadam": "FedAdam",
    "fedyogi": "FedYogi", "mime": "Mime", "mimelite": "MimeLite",
}  # fmt: skip
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
SERVERS_BEGIN, SERVERS_END = "<!-- servers: begin -->", "<!-- servers: end -->"
TOLERANCE = 1e-6  # a larger distance to the reference is no rounding error of float32


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table with all but the first two columns aligned to the right."""
    rule = ["---" if i < 2 else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows]) + "\n"


def format_time(seconds: float) -> str:
    """Return a duration such as 1.2 s, 34 ms, 56.7 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def megabytes(bytes_: float) -> str:
    return f"{bytes_ / 1e6:,.0f} MB"


def times(ratio: float) -> str:
    return f"{ratio:,.1f}x" if ratio < 10 else f"{ratio:,.0f}x"


def distance(value: float | None) -> str:
    """Return a distance as text; None stands for a value that was not finite."""
    if value is None:
        return "**diverges**"
    if value > 1e6:
        return f"**diverges** ({value:.0e})"
    return "0" if value == 0 else f"{value:.1e}"


def peer_label(row: dict[str, Any]) -> str:
    name = NAMES[row["peer"]]
    if row["peer"] == "flower_sim" and row["method"] == "scaffold":
        name += ", SCAFFOLD as written by users"
    if row.get("variant"):
        name += f", {row['variant']}"
    return name


def failure_cells(row: dict[str, Any], columns: int) -> list[str]:
    """Return cells with the reason in the first, and nothing in the other columns."""
    reason = row.get("none") or f"failed: {row['failed']}"
    return [reason.replace("|", "/"), *[""] * (columns - 1)]


def loss_before_timing(row: dict[str, Any]) -> str:
    """Return the loss before timing, marked where it differs from the numpy loop's."""
    value = "not finite" if row["check_loss"] is None else f"{row['check_loss']:.4f}"
    return value if row.get("same", True) else f"{value} (differs)"


def speed_table(results: dict[str, Any], case: str) -> str:
    rows, ours = [], {}
    for row in results["speed"]:
        if row["case"] == case and row["peer"] == "ours" and "cpu" in row:
            ours[row["method"]] = row["cpu"]
    for method in ("fedavg", "scaffold"):
        for row in results["speed"]:
            if row["case"] != case or row["method"] != method:
                continue
            cells = [METHODS[method], peer_label(row)]
            if "cpu" not in row:
                rows.append(cells + failure_cells(row, 7))
                continue
            ratio = times(row["cpu"] / ours[method]) if method in ours else ""
            rows.append([
                *cells, format_time(row["cpu"]), ratio, format_time(row["wall"]),
                format_time(row["first"]), megabytes(row["peak"]), megabytes(row["beyond"]),
                loss_before_timing(row),
            ])  # fmt: skip
    head = [
        "method",
        "peer",
        "CPU a round",
        "of ours",
        "wall a round",
        "first round after",
        "peak memory",
    ]
    return table(
        [
            *head,
            "beyond libraries and data",
            f"loss after {results['cases'][case]['check']} rounds",
        ],
        rows,
    )


def growth_table(results: dict[str, Any]) -> str:
    found = {(row["peer"], row["method"], row["case"]): row for row in results["speed"]}
    rows = []
    for (peer, method, case), large in found.items():
        small = found.get((peer, method, "small"), {})
        if case != "large":
            continue
        cells = [METHODS[method], peer_label(large)]
        if "cpu" not in large or "cpu" not in small:
            rows.append(cells + failure_cells(large if "cpu" not in large else small, 6))
            continue
        pairs: list[tuple[str, Callable[[float], str]]] = [
            ("cpu", format_time),
            ("first", format_time),
            ("peak", megabytes),
        ]
        for key, form in pairs:
            cells += [form(large[key]), times(large[key] / small[key])]
        rows.append(cells)
    rows.sort(key=lambda cells: cells[0])
    head = [
        "method",
        "peer",
        "CPU a round",
        "growth",
        "first round after",
        "growth",
        "peak memory",
        "growth",
    ]
    return table(head, rows)


def exact_table(results: dict[str, Any], problem: str) -> str:
    rows = []
    found = {
        (r["method"], r["peer"], r["variant"], r["S"] == r["N"]): r
        for r in results["exact"]
        if r["problem"] == problem
    }
    for method in ("scaffold", "fedprox"):
        for (name, _peer, _variant, all_called), row in found.items():
            if name != method or not all_called:
                continue
            cells = [METHODS[method], peer_label(row)]
            for entry in (row, found[(name, row["peer"], row["variant"], False)]):
                if "label" in entry:
                    meets = entry["to_reference"] is not None and entry["to_reference"] <= TOLERANCE
                    far = distance(entry["to_reference"])
                    cells += [
                        far if meets or far.startswith("**") else f"**{far}**",
                        distance(entry["to_star"]),
                    ]
                else:
                    cells += (
                        failure_cells(entry, 2) if entry is row or "none" not in entry else ["", ""]
                    )
            rows.append(cells)
    head = [
        "method",
        "peer",
        "all called: to the reference",
        "to x*",
        "half called: to the reference",
        "to x*",
    ]
    return table(head, rows)


def server_table(results: dict[str, Any]) -> str:
    """Return a row for each method and peer, with distances where all and half are called."""
    found = {(r["method"], r["peer"], r["S"] == r["N"]): r for r in results["servers"]}
    rows = []
    order = sorted(found, key=lambda key: list(METHODS).index(key[0]))
    for method, peer, all_called in order:
        row = found[(method, peer, all_called)]
        if not all_called:
            continue
        cells = [METHODS[method], NAMES[peer].removesuffix(" simulation")]
        if "label" not in row:
            rows.append([*cells, *failure_cells(row, 5)])
            continue
        half = found[(method, peer, False)]
        cells.append(row["reading"] or "nothing")
        for key in ("to_reference", "to_reading"):
            for entry in (row, half):
                value = entry.get(key)
                if key == "to_reading" and not row["reading"]:
                    cells.append("")
                elif "label" not in entry:
                    cells.append(failure_cells(entry, 1)[0])
                else:
                    far = value is not None and TOLERANCE < value <= 1e6
                    cells.append(f"**{distance(value)}**" if far else distance(value))
        rows.append(cells)
    head = [
        "method",
        "peer",
        "unlike the paper",
        "to the paper's x: all called",
        "half called",
        "with that taken into account: all called",
        "half called",
    ]
    return table(head, rows)


def versions(results: dict[str, Any]) -> str:
    seen: dict[str, str] = {}
    for row in results["speed"]:
        if "versions" in row:
            own = [] if row["peer"] != "ours" else [f"fedpage {row['label']}"]
            packages = ", ".join(
                [*own, *(f"{name} {version}" for name, version in row["versions"].items())]
            )
            seen[NAMES[row["peer"]]] = packages
    return "".join(f"- {name}: {packages}\n" for name, packages in seen.items())


def page(results: dict[str, Any]) -> str:
    """Return the Markdown of all results."""
    parts = [f"Machine: {results['machine']}.\n"]
    if "speed" in results:
        cases = results["cases"]
        parts += [versions(results)]
        for name in ("small", "few"):
            case = cases[name]
            title = f"N = {case['N']:,}, S = {case['S']}, K = {case['K']}, batch {case['b']}"
            parts += [f"**{title}**\n", speed_table(results, name)]
        parts += [
            f"**Growth from N = {cases['small']['N']:,} to {cases['large']['N']:,}**\n",
            growth_table(results),
        ]
    if "exact" in results:
        for problem in ("quadratic", "logistic"):
            parts += [f"**Correctness: {problem}**\n", exact_table(results, problem)]
    return "\n".join(parts)


def server_page(results: dict[str, Any]) -> str:
    """Return the Markdown of the server optimisers; "" if they were not compared."""
    return server_table(results) if "servers" in results else ""


def insert(file: Path, tables: str, begin: str = BEGIN, end: str = END) -> None:
    """Write the tables between the markers of a Markdown file."""
    before, found, rest = file.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not found or not last:
        raise ValueError(f"{file} has no markers {begin} and {end}")
    text = f"{before}{begin}\n\n{tables.strip()}\n\n{end}{after}"
    file.write_text(text, encoding="utf-8")


def insert_all(folder: Path, results: dict[str, Any]) -> None:
    """Write the tables of all comparisons that were run into the pages of a folder."""
    if "speed" in results or "exact" in results:
        insert(folder / "simulators.md", page(results))
    if "servers" in results:
        insert(folder / "server-optimisers.md", server_page(results), SERVERS_BEGIN, SERVERS_END)
