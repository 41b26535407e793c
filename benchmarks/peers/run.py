"""Compare fedpage with other simulators on the same data and the same work: `make bench-peers`.

Each peer has its own virtual environment below .peers/. Each job is a process, and the peers take
turns. A peer that cannot be installed or that fails gets a row with the reason. Results are written
to .peers/results.json and .peers/peers.md after every repetition. With --into FOLDER the tables
also replace the text between the markers of simulators.md and server-optimisers.md there.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARED = ROOT.parent / "shared" / "data"
if "FEDPAGE_DATA" not in os.environ and SHARED.is_dir():
    os.environ["FEDPAGE_DATA"] = str(SHARED)

import numpy as np
import plain
import tables
from common import Clients

# script: environment (None: the current one), dtype in the speed table, timed rounds
PEERS = {
    "ours": (None, "float64", 20_000),
    "numpy_loop": (None, "float64", 300),
    "torch_loop": ("torch", "float32", 30),
    "pfl_peer": ("pfl", "float32", 25),
    "fedjax_peer": ("fedjax", "float32", 40),
    "flower_sim": ("flower", "float64", 15),
}
# check: rounds before timing, after which the losses of all peers are compared
CASES = {
    "small": {"N": 3250, "S": 20, "K": 10, "b": 4, "eta": 0.01, "check": 20},
    "few": {"N": 325, "S": 2, "K": 10, "b": 22, "eta": 0.01, "check": 20},
    "large": {"N": 32_500, "S": 20, "K": 10, "b": 4, "eta": 0.01, "check": 5},
}
EXACT = {"K": 5, "eta": 0.1, "mu": 0.5, "rounds": 100}
# (peer, method, changes of the job, label of the row)
VARIANTS = [
    ("pfl_peer", "scaffold", {"option": "I"}, "option I"),
    ("pfl_peer", "scaffold", {"variant": "exchanged"}, "c and c_i exchanged by us"),
    ("flower_sim", "fedprox", {"variant": "snippet"}, "term as its docstring's code"),
]

# the server's steps are such that no method amplifies rounding errors
SERVER = {
    "K": 5, "eta": 0.1, "rounds": 60, "eta_g": 0.05, "beta": 0.6, "beta1": 0.9, "beta2": 0.99,
    "tau": 0.01,
}  # fmt: skip
SERVER_METHODS = (
    "fedavgm", "fednesterov", "fedadagrad", "fedadam", "fedyogi", "mimelite", "mime",
)  # fmt: skip
ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")
SERVER_PEERS = ("ours", "pfl_peer", "fedjax_peer", "flower_sim")
# (peer, method): what it does unlike the paper, and this as a reading of benchmarks/peers/plain.py
READINGS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("flower_sim", "fedadagrad"): ("v starts at 0", {"v0": 0.0}),
    ("flower_sim", "fedyogi"): ("v starts at 0", {"v0": 0.0}),
    ("flower_sim", "fedadam"): (
        "v starts at 0; corrects Adam's bias with t + 1 for t",
        {"v0": 0.0, "correction": "flower"},
    ),
    ("pfl_peer", "fedadam"): (
        "v starts at 0; corrects Adam's bias", {"v0": 0.0, "correction": "adam"},
    ),
    ("fedjax_peer", "fedadam"): (
        "v starts at 0; corrects Adam's bias", {"v0": 0.0, "correction": "adam"},
    ),
    ("fedjax_peer", "fedyogi"): (
        "m and v start at 1e-6; corrects Adam's bias",
        {"v0": 1e-6, "m0": -1e-6, "correction": "adam"},
    ),
    ("fedjax_peer", "fedadagrad"): ("divides by sqrt(v + tau)", {"inside": True}),
    ("fedjax_peer", "mime"): ("momentum is g + beta m", {"summed": True}),
    ("fedjax_peer", "mimelite"): ("momentum is g + beta m", {"summed": True}),
}  # fmt: skip

ONE_THREAD = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
    ),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


class PeerFailed(Exception):
    """A peer cannot be installed or its job failed; the message is one line."""


def interpreter(home: Path, environment: str | None, python: str) -> str:
    """Return the interpreter of an environment, installing it if its requirements changed."""
    if environment is None:
        return sys.executable
    wanted = HERE / f"requirements-{environment}.txt"
    folder, mark = home / environment, hashlib.sha256(wanted.read_bytes()).hexdigest()
    done, inside = folder / ".installed", folder / "bin" / "python"
    if not (done.exists() and done.read_text() == mark):
        print(f"creating the environment {environment} ...", flush=True)
        words = [
            str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "-r", str(wanted),
        ]  # fmt: skip
        for step in ([python, "-m", "venv", "--clear", str(folder)], words):
            try:
                ended = subprocess.run(step, capture_output=True, text=True, check=False)
            except OSError as error:
                raise PeerFailed(f"could not be installed: {error}") from None
            if ended.returncode:
                raise PeerFailed("could not be installed: " + last_line(ended.stderr))
        done.write_text(mark)
    return str(inside)


def last_line(text: str) -> str:
    """Return the last line that is neither empty nor a notice of pip."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith(("WARNING", "[notice]"))
    ]
    return lines[-1][:200] if lines else "no message"


def run_job(
    python: str, peer: str, job: dict[str, Any], home: Path, seconds: float = 900.0
) -> dict[str, Any]:
    """Run a job in its own process and return its results, or raise PeerFailed."""
    path = home / "job.json"
    path.write_text(json.dumps({**job, "spawned": time.time()}))
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "ignore", **ONE_THREAD}
    try:
        ended = subprocess.run(
            [python, str(HERE / f"{peer}.py"), str(path)],
            capture_output=True, text=True, check=False, env=environment, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"not finished after {seconds:.0f} s") from None
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        raise PeerFailed(last_line(ended.stderr))
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def speed_data(home: Path) -> dict[str, Path]:
    """Write each case's a9a or census rows; the large case repeats them ten times, permuted."""
    import fedpage as fp

    try:
        data = fp.load("a9a")
    except fp.InputError:
        data = fp.load("census")
    if not (data.X.data == 1).all():
        raise SystemExit("the peers' data must be one-hot")
    rng, paths = np.random.default_rng(0), {}
    for name, case in CASES.items():
        rows = np.arange(data.rows // case["N"] * case["N"])
        if name == "large":
            rows = np.concatenate([rng.permutation(10 * CASES["small"]["N"]) for _ in range(10)])
        X = data.X[rows]
        arrays = {
            "indptr": X.indptr.astype(np.int64),
            "indices": X.indices.astype(np.int32),
            "y": data.y[rows],
        }
        paths[name] = home / f"{name}.npz"
        Clients("robust", case["N"], data.features, 0.0, arrays).save(paths[name])
    return paths


def loss(path: Path, x: list[float]) -> tuple[float, float]:
    """Return f(x) and |grad f(x)| of the robust regression."""
    clients = Clients.load(str(path))
    a, y, v = clients.arrays, clients.arrays["y"], np.array(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        # reduceat is right because every row of one-hot data has an entry
        t = np.add.reduceat(v[a["indices"]], a["indptr"][:-1]) - y
        slopes = np.repeat(t / (1 + 0.5 * t * t), np.diff(a["indptr"]))
        gradient = np.bincount(a["indices"], weights=slopes, minlength=clients.d) / len(y)
        return float(np.log1p(0.5 * t * t).mean()), float(np.linalg.norm(gradient))


def schedule(N: int, S: int, rounds: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    if S == N:
        return [list(range(N))] * rounds
    return [sorted(rng.choice(N, S, replace=False).tolist()) for _ in range(rounds)]


def speed(
    pythons: dict[str, Any], home: Path, repetitions: int, write: Callable[..., None]
) -> None:
    """Time every peer on every case in turns; keep the smallest time of the repetitions."""
    paths, found = speed_data(home), {}
    for repetition in range(repetitions):
        for name, case in CASES.items():
            for method in ("fedavg", "scaffold"):
                for peer, (_, dtype, timed) in PEERS.items():
                    row = found.setdefault(
                        (peer, method, name), {"peer": peer, "method": method, "case": name}
                    )
                    if "failed" in row or "none" in row:
                        continue
                    rounds = case["check"] + (4 * timed if case["S"] == 2 else timed)
                    job = {
                        **{k: v for k, v in case.items() if k != "N"},
                        "method": method, "data": str(paths[name]), "dtype": dtype,
                        "seed": repetition, "rounds": rounds,
                        "schedule": schedule(
                            case["N"], case["S"], 0 if peer == "ours" else rounds, repetition
                        ),
                    }  # fmt: skip
                    answer = try_job(row, pythons, job, home)
                    if answer is None:
                        continue
                    print(f"{repetition} {name} {method} {peer}: {answer['cpu']}", flush=True)
                    for key in ("wall", "cpu", "first", "peak"):
                        row[key] = min(row.get(key, math.inf), answer[key])
                    row["beyond"] = min(
                        row.get("beyond", math.inf), answer["peak"] - answer["loaded"]
                    )
                    row |= {
                        "versions": answer["versions"],
                        "label": answer["label"],
                        "timed": answer["timed"],
                    }
                    row["start_loss"] = loss(paths[name], [0.0] * len(answer["x"]))[0]
                    row["check_loss"] = loss(paths[name], answer["x_check"])[0]
                    row["loss"], row["grad_norm"] = loss(paths[name], answer["x"])
        compare(found)
        write(speed=list(found.values()), repetitions=repetition + 1)


def compare(found: dict[Any, dict[str, Any]]) -> None:
    """Check that each peer's loss falls as the numpy loop's, up to 25 % because of sampling."""
    for (_peer, method, name), row in found.items():
        reference = found.get(("numpy_loop", method, name), {})
        if "check_loss" in row and "check_loss" in reference:
            ours, theirs = (r["start_loss"] - r["check_loss"] for r in (reference, row))
            row["same"] = bool(abs(theirs - ours) <= 0.25 * ours)


def try_job(
    row: dict[str, Any], pythons: dict[str, Any], job: dict[str, Any], home: Path
) -> dict[str, Any] | None:
    """Run a job of the row's peer; on failure write the reason into the row and return None."""
    try:
        answer = run_job(find_python(pythons, row["peer"]), row["peer"], job, home)
    except PeerFailed as reason:
        row["failed"] = str(reason)
        return None
    if "none" in answer:
        row["none"] = answer["none"]
        return None
    return answer


def find_python(pythons: dict[str, Any], peer: str) -> str:
    if isinstance(pythons[peer], PeerFailed):
        raise pythons[peer]
    return str(pythons[peer])


def exact(pythons: dict[str, Any], home: Path) -> list[dict[str, Any]]:
    """Compare every peer's SCAFFOLD and FedProx with the reference."""
    rows = []
    plans = [(peer, method, {}, "") for peer in PEERS for method in ("scaffold", "fedprox")]
    for problem in (plain.quadratic(), plain.logistic()):
        path, star = home / f"{problem.kind}.npz", plain.optimum(problem)
        problem.save(path)
        for S in (problem.N, problem.N // 2):
            calls = schedule(problem.N, S, EXACT["rounds"], 0)
            for peer, method, more, what in plans + VARIANTS:
                row = {
                    "peer": peer,
                    "method": method,
                    "variant": what,
                    "problem": problem.kind,
                    "S": S,
                    "N": problem.N,
                }
                rows.append(row)
                job = {
                    **EXACT, "S": S, "b": None, "method": method, "data": str(path),
                    "dtype": "float64", "seed": 0, "check": 1, "schedule": calls,
                    "report_clients": True, **more,
                }  # fmt: skip
                answer = try_job(row, pythons, job, home)
                if answer is not None:
                    row |= measure_distances(problem, job, answer, star)
                    print(row, flush=True)
    return rows


def servers(pythons: dict[str, Any], home: Path) -> list[dict[str, Any]]:
    """Compare the peers' server optimisers and Mime with the papers and with their readings.

    The jobs of a peer share a process. Flower's strategies run without ray.
    """
    problem, rows = plain.quadratic(), []
    path = home / "quadratic.npz"
    problem.save(path)
    jobs = [
        {
            **SERVER, "method": method, "S": S, "b": None, "data": str(path),
            "eta_g": SERVER["eta_g"] if method in ADAPTIVE else 1.0,
            "dtype": "float64", "seed": 0, "check": 1, "report_clients": True, "in_process": True,
            "schedule": schedule(problem.N, S, SERVER["rounds"], 0),
        }
        for method, S in itertools.product(SERVER_METHODS, (problem.N, problem.N // 2))
    ]  # fmt: skip
    for peer in SERVER_PEERS:
        common: dict[str, Any] = {"peer": peer}
        answer = try_job(common, pythons, {"batch": jobs}, home)
        for number, job in enumerate(jobs):
            row = {**common, "method": job["method"], "S": job["S"], "N": problem.N}
            if answer is not None:
                own = answer["batch"][number]
                row |= own if "none" in own else measure_reading(problem, job, own, peer)
            rows.append(row)
            print(row, flush=True)
    return rows


def measure_reading(
    problem: Clients, job: dict[str, Any], answer: dict[str, Any], peer: str
) -> dict[str, Any]:
    """Return distances to the paper's first and last x, and to the last of the peer's reading."""
    what, reading = READINGS.get((peer, job["method"]), ("", {}))
    called = answer["called"]
    wanted, own = (plain.reference(problem, job, called, **r) for r in ({}, reading))
    first = plain.reference(problem, job, called[:1])
    return {
        "first": float(np.abs(np.array(answer["x_check"]) - first).max()),
        "to_reference": float(np.abs(np.array(answer["x"]) - wanted).max()),
        "to_reading": float(np.abs(np.array(answer["x"]) - own).max()) if reading else None,
        "reading": what,
        "label": answer["label"],
    }


def measure_distances(
    problem: Clients, job: dict[str, Any], answer: dict[str, Any], star: np.ndarray
) -> dict[str, Any]:
    """Return the largest distances of a peer's x to the reference's x and to x*."""
    x = np.array(answer["x"], dtype=np.float64)
    wanted = plain.reference(problem, job, answer["called"])
    return {
        "to_reference": float(np.abs(x - wanted).max()),
        "to_star": float(np.abs(x - star).max()),
        "reference_to_star": float(np.abs(wanted - star).max()),
        "label": answer["label"],
    }


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def replace_non_finite(tree: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither."""
    if isinstance(tree, dict):
        return {key: replace_non_finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [replace_non_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--home",
        type=Path,
        default=ROOT / ".peers",
        help="the directory of environments and results",
    )
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--only", choices=("speed", "exact", "servers"), help="only one of the comparisons"
    )
    parser.add_argument("--into", type=Path, help="the folder of pages with markers")
    options = parser.parse_args()
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    pythons: dict[str, Any] = {}
    for peer in SERVER_PEERS if options.only == "servers" else PEERS:
        environment, *_ = PEERS[peer]
        try:
            pythons[peer] = interpreter(home, environment, options.python)
        except PeerFailed as reason:
            pythons[peer] = reason
            print(f"{peer}: {reason}", flush=True)
    file = home / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if options.only and file.exists() else {}
    results |= {
        "machine": machine(),
        "cases": CASES,
        "exact_settings": EXACT,
        "server_settings": SERVER,
    }

    def write(**more: Any) -> None:
        results.update(more)
        file.write_text(json.dumps(replace_non_finite(results), indent=1) + "\n")
        written = json.loads(file.read_text())
        page = tables.page(written) + "\n" + tables.server_page(written)
        (home / "peers.md").write_text(page)
        print(page)
        if options.into:
            tables.insert_all(options.into, written)

    if options.only in (None, "exact"):
        write(exact=exact(pythons, home))
    if options.only in (None, "servers"):
        write(servers=servers(pythons, home))
    if options.only in (None, "speed"):
        speed(pythons, home, options.repetitions, write)


if __name__ == "__main__":
    main()
