"""`make bench-peers`: fedpage against other simulators, on the same data and the same work, in one run.

Each peer runs in a virtual environment of its own below .peers/, a process a job, the peers in turns. A peer that
cannot be installed or that fails is a row that says why. Results go to .peers/results.json and .peers/peers.md, after
every repetition; --into FILE also puts the tables between that file's markers.
"""

from __future__ import annotations

import argparse
import hashlib
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

PEERS = {  # script: environment (None: the one that runs this), dtype in the speed table, timed rounds
    "ours": (None, "float64", 20_000),
    "numpy_loop": (None, "float64", 300),
    "torch_loop": ("torch", "float32", 30),
    "pfl_peer": ("pfl", "float32", 25),
    "fedjax_peer": ("fedjax", "float32", 40),
    "flower_sim": ("flower", "float64", 15),
}
CASES = {  # check: rounds before timing, after which everybody's loss is compared
    "small": {"N": 3250, "S": 20, "K": 10, "b": 4, "eta": 0.01, "check": 20},
    "few": {"N": 325, "S": 2, "K": 10, "b": 22, "eta": 0.01, "check": 20},
    "large": {"N": 32_500, "S": 20, "K": 10, "b": 4, "eta": 0.01, "check": 5},
}
EXACT = {"K": 5, "eta": 0.1, "mu": 0.5, "rounds": 100}
VARIANTS = [  # (peer, method, what is different, whose row)
    ("pfl_peer", "scaffold", {"option": "I"}, "option I"),
    ("pfl_peer", "scaffold", {"variant": "exchanged"}, "c and c_i exchanged by us"),
    ("flower_sim", "fedprox", {"variant": "snippet"}, "term as its docstring's code"),
]


ONE_THREAD = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
    ),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


class Failed(Exception):
    """One line that says why."""


def interpreter(home: Path, environment: str | None, python: str) -> str:
    """The interpreter of a peer's environment, which is made when it is missing or its requirements have changed."""
    if environment is None:
        return sys.executable
    wanted = HERE / f"requirements-{environment}.txt"
    folder, mark = home / environment, hashlib.sha256(wanted.read_bytes()).hexdigest()
    done, inside = folder / ".installed", folder / "bin" / "python"
    if not (done.exists() and done.read_text() == mark):
        print(f"making the environment {environment} ...", flush=True)
        words = [
            str(inside),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
            str(wanted),
        ]
        for step in ([python, "-m", "venv", "--clear", str(folder)], words):
            try:
                ended = subprocess.run(step, capture_output=True, text=True, check=False)
            except OSError as error:
                raise Failed(f"could not be installed: {error}") from None
            if ended.returncode:
                raise Failed("could not be installed: " + last_line(ended.stderr))
        done.write_text(mark)
    return str(inside)


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith(("WARNING", "[notice]"))
    ]
    return lines[-1][:200] if lines else "no message"


def do(
    python: str, peer: str, job: dict[str, Any], home: Path, seconds: float = 900.0
) -> dict[str, Any]:
    """One job in a process of its own; Failed with the reason if nothing comes of it."""
    path = home / "job.json"
    path.write_text(json.dumps({**job, "spawned": time.time()}))
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "ignore", **ONE_THREAD}
    try:
        ended = subprocess.run(
            [python, str(HERE / f"{peer}.py"), str(path)], capture_output=True, text=True, check=False,
            env=environment, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {seconds:.0f} s") from None
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        raise Failed(last_line(ended.stderr))
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def speed_data(home: Path) -> dict[str, Path]:
    """a9a (or the embedded census data) for each case; the large one is the same rows ten times, in new orders."""
    import fedpage as fp

    try:
        data = fp.load("a9a")
    except fp.InputError:
        data = fp.load("census")
    if not (data.values == 1).all():
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
    """f and |grad f| of the robust regression at x."""
    clients = Clients.load(str(path))
    a, y, v = clients.arrays, clients.arrays["y"], np.array(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        t = (
            np.add.reduceat(v[a["indices"]], a["indptr"][:-1]) - y
        )  # every row of such data has an entry
        slopes = np.repeat(t / (1 + 0.5 * t * t), np.diff(a["indptr"]))
        gradient = np.bincount(a["indices"], weights=slopes, minlength=clients.d) / len(y)
        return float(np.log1p(0.5 * t * t).mean()), float(np.linalg.norm(gradient))


def schedule(N: int, S: int, rounds: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    if S == N:
        return [list(range(N))] * rounds
    return [sorted(rng.choice(N, S, replace=False).tolist()) for _ in range(rounds)]


def speed(pythons: dict[str, Any], home: Path, repetitions: int, keep: Callable[..., None]) -> None:
    """Every peer on every case, in turns; the smallest of the repetitions, kept after each of them."""
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
                        **{k: v for k, v in case.items() if k != "N"}, "method": method, "data": str(paths[name]),
                        "dtype": dtype, "seed": repetition, "rounds": rounds,
                        "schedule": schedule(case["N"], case["S"], 0 if peer == "ours" else rounds, repetition),
                    }  # fmt: skip
                    answer = asked(row, pythons, job, home)
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
        keep(speed=list(found.values()), repetitions=repetition + 1)


def compare(found: dict[Any, dict[str, Any]]) -> None:
    """Same work: before timing everybody has lost about as much as the numpy loop (25 % is sampling's share)."""
    for (_peer, method, name), row in found.items():
        yardstick = found.get(("numpy_loop", method, name), {})
        if "check_loss" in row and "check_loss" in yardstick:
            ours, theirs = (one["start_loss"] - one["check_loss"] for one in (yardstick, row))
            row["same"] = bool(abs(theirs - ours) <= 0.25 * ours)


def asked(
    row: dict[str, Any], pythons: dict[str, Any], job: dict[str, Any], home: Path
) -> dict[str, Any] | None:
    """What the row's peer answers; None where it fails or has no such method, which the row then says."""
    try:
        answer = do(python_of(pythons, row["peer"]), row["peer"], job, home)
    except Failed as reason:
        row["failed"] = str(reason)
        return None
    if "none" in answer:
        row["none"] = answer["none"]
        return None
    return answer


def python_of(pythons: dict[str, Any], peer: str) -> str:
    if isinstance(pythons[peer], Failed):
        raise pythons[peer]
    return str(pythons[peer])


def exact(pythons: dict[str, Any], home: Path) -> list[dict[str, Any]]:
    """Every library's SCAFFOLD and FedProx where the answer is known."""
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
                    **EXACT, "S": S, "b": None, "method": method, "data": str(path), "dtype": "float64", "seed": 0,
                    "check": 1, "schedule": calls, "tell": True, **more,
                }  # fmt: skip
                answer = asked(row, pythons, job, home)
                if answer is not None:
                    row |= judged(problem, job, answer, star)
                    print(row, flush=True)
    return rows


def judged(
    problem: Clients, job: dict[str, Any], answer: dict[str, Any], star: np.ndarray
) -> dict[str, Any]:
    """Largest distances of a peer's x to the reference's, over the clients that it called, and to x*."""
    x, wanted = (
        np.array(answer["x"], dtype=np.float64),
        plain.reference(problem, job, answer["called"]),
    )
    far = {
        "to_reference": float(np.abs(x - wanted).max()),
        "to_star": float(np.abs(x - star).max()),
    }
    return {
        **far,
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


def finite(tree: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument(
        "--home", type=Path, default=ROOT / ".peers", help="where environments and results go"
    )
    words.add_argument(
        "--python", default=sys.executable, help="the interpreter that makes the environments"
    )
    words.add_argument("--repetitions", type=int, default=3)
    words.add_argument("--only", choices=("speed", "exact"), help="one half of it")
    words.add_argument("--into", type=Path, help="a Markdown file with markers for the tables")
    asked = words.parse_args()
    home = asked.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    pythons: dict[str, Any] = {}
    for peer, (environment, _, _) in PEERS.items():
        try:
            pythons[peer] = interpreter(home, environment, asked.python)
        except Failed as reason:
            pythons[peer] = reason
            print(f"{peer}: {reason}", flush=True)
    file = home / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if asked.only and file.exists() else {}
    results |= {"machine": machine(), "cases": CASES, "exact_settings": EXACT}

    def keep(**more: Any) -> None:
        results.update(more)
        file.write_text(json.dumps(finite(results), indent=1) + "\n")
        page = tables.page(json.loads(file.read_text()))
        (home / "peers.md").write_text(page)
        print(page)
        if asked.into:
            asked.into.write_text(
                tables.put(asked.into.read_text(encoding="utf-8"), page), encoding="utf-8"
            )

    if asked.only != "speed":
        keep(exact=exact(pythons, home))
    if asked.only != "exact":
        speed(pythons, home, asked.repetitions, keep)


if __name__ == "__main__":
    main()
