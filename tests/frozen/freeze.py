"""What a rewrite must not change: bits, public names, help, printed texts and JSON documents.

    python tests/frozen/freeze.py bits names help prints json      # write the named files anew

`test_frozen.py` compares the files beside this one with the package as it is now.
"""

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "networks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from rows import ROWS, Setting  # noqa: E402
from support import quadratic, softmax, uneven  # noqa: E402

import fedpage as fp  # noqa: E402

COUNTED = ("round", "bytes_up", "bytes_down", "bits_up", "bits_down", "gradients", "clients")
CODECS = ("randk:0.5", "topk:0.5")
FAULTS = fp.Faults(
    dropout=0.2, lost=0.1, nan=0.1, infinite=0.1, shape=0.1, late=0.1, noise=0.5, deadline=2.0
)
SETTINGS = ("plain", "codec", "cast", "faults")


def _network() -> Any:
    from nets import mlp_problem

    return mlp_problem(deterministic=True)


PROBLEMS: dict[str, Callable[[], Any]] = {
    "robust": uneven,
    "logistic-l2": lambda: uneven("logistic-l2"),
    "softmax": softmax,
    "quadratic": lambda: quadratic(noise=0.5),
    "network": _network,
}


def digest(history: fp.History) -> str:
    """Return two hashes of a run: of x and all counts, and of the measured columns."""
    columns = [name for name in history.columns if name != "seconds"]
    counted, measured = hashlib.sha256(), hashlib.sha256()
    assert history.x is not None
    counted.update(np.ascontiguousarray(history.x).tobytes())
    for name in columns:
        into = counted if name in COUNTED else measured
        into.update(name.encode() + np.asarray(history[name]).tobytes())
    return f"{counted.hexdigest()[:12]}-{measured.hexdigest()[:8]}"


def change(method: Any, **fields: str) -> Any:
    """Return the method with other codecs, or None if it takes none of them."""
    own = {f.name for f in dataclasses.fields(method)}
    fields = {name: codec for name, codec in fields.items() if name in own}
    if not fields:
        return None
    with suppress(fp.InputError):
        return dataclasses.replace(method, **fields)
    return None


def variants(method: Any) -> Iterator[tuple[str, Any, fp.RunOptions]]:
    """Yield each setting with its method and options; settings that a method lacks are left out."""
    yield "plain", method, fp.RunOptions()
    coded = next((m for codec in CODECS if (m := change(method, up=codec)) is not None), None)
    if coded is not None:
        yield "codec", coded, fp.RunOptions()
    cast = change(method, up="float32", down="float32")
    if cast is not None:
        yield "cast", cast, fp.RunOptions()
    policy = fp.Policy(retries=3, full_retries=20, patience=20)
    yield "faults", method, fp.RunOptions(faults=FAULTS, policy=policy)


def simulate(problem: Any, method: Any, options: fp.RunOptions, **more: Any) -> fp.History:
    """Run a few rounds."""
    return fp.simulate(
        problem, method, **{"rounds": 8, "seed": 11, "record_every": 3, **more}, options=options
    )


def run_digests(problem: Any, row: str) -> dict[str, str]:
    """Return the digest of each setting of a row of the laws on a problem."""
    method = ROWS[row].make(Setting(4, 3, 0.05))
    return {
        name: digest(simulate(problem, made, options)) for name, made, options in variants(method)
    }


def resumed_digest(problem: Any, row: str, folder: Path) -> str:
    """Return the digest of a run that ended after four rounds and was resumed for four more."""
    method = ROWS[row].make(Setting(4, 3, 0.05))
    out = folder / "run"
    simulate(problem, method, fp.RunOptions(), rounds=4, out=out)
    return digest(simulate(problem, method, fp.RunOptions(resume=True), out=out))


def threaded_digest(problem: Any, row: str) -> str:
    """Return the digest of a run with two threads, in chunks of three clients."""
    method = ROWS[row].make(Setting(4, 3, 0.05))
    return digest(simulate(problem, method, fp.RunOptions(threads=2, chunk=3)))


def rows_of(kind: str) -> list[str]:
    """Return the methods that can run on a problem: networks have no Hessians for Newton."""
    return [row for row in ROWS if (row, kind) != ("Newton", "network")]


FEDERATION = {
    "fedpage": {"S": 3, "K": 3, "eta_g": 0.2, "p": 0.4},
    "page": {"S": 3, "eta_g": 0.2, "p": 0.4},
    "s-local-svrg": {"K": 3, "q": 0.3},
    "fedpage-full": {"S": 3, "K": 3, "p": 0.4},
}


def small(method: str) -> dict[str, Any]:
    """Return hyper-parameters that fit eight clients: S and K, where the method has them."""
    defaults = fp.METHODS[method].hyper_parameters
    sampled = {"S": 3} if defaults.get("S") is not None else {}
    return FEDERATION.get(method, sampled | ({"K": 3} if "K" in defaults else {}))


def federation_digest(method: str, objective: str) -> str:
    """Return the digest of the run in the simulator that tests/flower/test_grid.py federates."""
    data, division = fp.load("census", rows=300), fp.power_law(300, 8)
    problem: Any = fp.RobustRegression(data, division)
    if objective == "logistic-l2":
        problem = fp.LogisticRegression(data, division, reg="l2")
    made = fp.METHODS[method](**small(method))
    options = fp.RunOptions(evaluate="per_client")
    return digest(fp.simulate(problem, made, rounds=10, seed=3, record_every=4, options=options))


def probe() -> str:
    """Return a hash of what the processor makes of elementary functions and products."""
    points = np.linspace(-3.0, 3.0, 1009)
    matrix = np.outer(np.sin(points[:64]), np.cos(points[64:128]))
    parts = [np.exp(points), np.log1p(np.exp(points)), np.tanh(points), matrix @ matrix.T]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]


def bits() -> dict[str, Any]:
    """Compute all digests."""
    found: dict[str, Any] = {"processor": probe(), "runs": {}}
    for kind, make in PROBLEMS.items():
        problem = make()
        for row in rows_of(kind):
            found["runs"][f"{row} {kind}"] = " ".join(
                f"{name}={value}" for name, value in run_digests(problem, row).items()
            )
    found["federations"] = {
        f"{method} {objective}": federation_digest(method, objective)
        for objective in ("robust", "logistic-l2")
        for method in fp.METHODS
    }
    return found


def names() -> str:
    """List the public names with their parameters and members, by griffe."""
    import griffe

    package = griffe.load("fedpage", search_paths=[str(HERE.parents[1] / "src")])
    lines = []
    for name in sorted(fp.__all__):
        item: Any = package[name]
        with suppress(griffe.AliasResolutionError):
            item = item.final_target if item.is_alias else item
        lines.append(f"{name}{_parameters(item)}")
        if item.is_class:
            members = {**item.inherited_members, **item.members}
            lines += [
                f"    {member}{_parameters(members[member])}"
                for member in sorted(members)
                if not member.startswith("_")
            ]
    return "\n".join(lines) + "\n"


def _parameters(item: Any) -> str:
    """Return a function's or a class's parameters in brackets, or nothing."""
    with suppress(Exception):
        parameters = item.parameters
        return "(" + ", ".join(p.name for p in parameters if p.name not in ("self", "cls")) + ")"
    return ""


def call(*words: str) -> tuple[int, str]:
    """Call the command line at 100 columns; return its exit code and standard output."""
    from fedpage.cli import main

    before, out = sys.argv, StringIO()
    sys.argv = ["fedpage", *words]
    try:
        with redirect_stdout(out):
            main.main()
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()


def commands(group: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of all commands of the app, and the commands, the groups among them."""
    yield prefix, group
    for name, command in group.commands.items():
        command = command.load() if hasattr(command, "load") else command
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name), command


def help_texts() -> str:
    """Return the help of every command."""
    import typer.main

    from fedpage.cli.main import app

    found = commands(typer.main.get_command(app))
    return transcript(" ".join([*words, "--help"]) for words, _ in found)


def transcript(lines: Iterable[str]) -> str:
    """Return what commands print, each below its words."""
    os.environ["COLUMNS"], os.environ["TERM"] = "100", "dumb"
    parts = [f"$ fedpage {line}\n{call(*line.split())[1]}" for line in lines]
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines()) + "\n"


PRINTED = (
    "methods",
    "methods fedpage",
    "methods fedpage-pass-start",
    "methods SCAFFOLD-full",
    "codecs",
    "data show census:rows=400",
    "data show census:rows=400 --clients 3",
    "data show census:rows=400 --clients 30 --partition dirichlet:0.1 --min-rows 2",
    "plan --target 0.01 --up natural --cost bits_up --delta 0.1",
    "plan --data census:rows=400 --clients 40 --S 4 --K 2 --objective logistic-l2 --target 0.05",
    "reproduce --list",
)
"""Commands whose text has no times and paths."""


SMALL = ("--clients", "40", "--rounds", "10")
DOCUMENTS: dict[str, tuple[str, ...]] = {
    "run fedpage --S 4": SMALL,
    "run scaffold --S 4 --K 3 --objective logistic-l2 --metrics accuracy": SMALL,
    "compare --methods fedpage,fedavg --S 4 --seeds 2 --out c": SMALL,
    "methods": (),
    "methods fedpage": (),
    "codecs": (),
    "data show census --clients 5": (),
    "plan --target 0.1": (),
    "reproduce --list": (),
    "demo --seeds 1": ("--rounds", "10"),
}
VOLATILE = {"seconds", "report", "version", "versions", "out", "commit"}


def documents() -> dict[str, Any]:
    """Return the JSON documents of small calls, without times and paths."""
    found, before = {}, Path.cwd()
    for words, more in DOCUMENTS.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                code, out = call(*words.split(), *more, "--json")
            finally:
                os.chdir(before)
        assert code == 0, words
        found[words] = _stable(json.loads(out))
    return found


def _stable(value: Any) -> Any:
    """Drop what differs from one process to the next; floats keep ten digits."""
    if isinstance(value, dict):
        return {k: _stable(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [_stable(item) for item in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


FILES: dict[str, tuple[str, Callable[[], Any]]] = {
    "bits": ("bits.json", bits),
    "names": ("names.txt", names),
    "help": ("help.txt", help_texts),
    "prints": ("prints.txt", lambda: transcript(PRINTED)),
    "json": ("documents.json", documents),
}


def write(what: str) -> None:
    """Write a file anew."""
    name, make = FILES[what]
    value = make()
    text = value if isinstance(value, str) else json.dumps(value, indent=1) + "\n"
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for what in sys.argv[1:]:
        write(what)
