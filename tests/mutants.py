"""Change the package in one place at a time and check that the laws fail: `make mutants`.

A mutant names a file, a function and one edit of that function's syntax tree: the old expression,
statement or keyword argument, and the new code. The old code is compared in the form that
`ast.unparse` writes, so line breaks, comments, quotes and redundant parentheses do not matter.
It must occur exactly once in the function.

The laws run on a copy of the package with that edit. A mutant that survives is a hole in the laws:
the program prints a line for each mutant and exits with 1 if any survived.

To adapt a mutant after a change of the source, edit its row in the table of that file below;
`pytest tests/laws/test_mutants.py -k one_place` checks all rows in a second.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Edit(NamedTuple):
    """Replace `old`, which occurs once in the function (`Class.method`), by `new`."""

    name: str
    function: str
    old: str
    new: str


class Mutant(NamedTuple):
    """An edit of one file below src/fedpage."""

    name: str
    file: str
    function: str
    old: str
    new: str


FEDPAGE = [
    Edit("FedPAGE: server moves up the gradient", "FedPAGE.server",
         "state.x - self.eta_g * move", "state.x + self.eta_g * move"),
    Edit("FedPAGE: x_prev is stale", "FedPAGE.server", "x_prev=state.x", "x_prev=state.x_prev"),
    Edit("FedPAGE: g is stale", "FedPAGE.server", "g=g", "g=state.g"),
    Edit("FedPAGE: the first round may be sampled", "FedPAGE.call",
         "1.0 if draws.round == 0 else p", "p"),
    Edit("FedPAGE: client starts from x_prev", "FedPAGE.client",
         "x_prev - self.eta_g * g", "x_prev"),
    Edit("FedPAGE: b2 replaced by b3", "FedPAGE.client", "first=self.b2", "first=self.b3"),
    Edit("FedPAGE: b3 replaced by b2", "FedPAGE.client", "rest=self.b3", "rest=self.b2"),
    Edit("FedPAGE: full rounds ignore b1", "FedPAGE.client",
         "oracle.batch(self.b1)", "oracle.batch(self.b3)"),
    Edit("FedPAGE: coin inverted", "FedPAGE.call",
         "draws.coin(1.0 if draws.round == 0 else p)",
         "draws.round == 0 or not draws.coin(1.0 if draws.round == 0 else p)"),
    Edit("FedPAGE: no fallback of a full round", "FedPAGE.call", "fallback=fallback", "fallback=None"),
    Edit("FedPAGE: the first full round has a fallback", "FedPAGE.call",
         "draws.round != 0", "True"),
    Edit("FedPAGE periodic: one round late", "FedPAGE.call",
         "draws.round % max(1, round(1 / p))", "(draws.round + 1) % max(1, round(1 / p))"),
    Edit("FedPAGE leak-free: carries the damped g", "FedPAGE._leak_free_steps",
         "LeakFreeReply((g0 + (K - 1) * later) / K, g0)", "LeakFreeReply((g0 + (K - 1) * later) / K, later)"),
    Edit("FedPAGE leak-free: moves along g_0", "FedPAGE.server",
         "mean.move if isinstance(mean, LeakFreeReply) else g", "g"),
    Edit("FedPAGE leak-free: second part starts at x", "FedPAGE._leak_free_steps",
         "x - eta * g0", "x + 0.0 * g0"),
]  # fmt: skip

LOCAL_STEPS = [
    Edit("local_page: sign of the old gradient", "local_page",
         "g + oracle.grad(y, batch) - oracle.grad(y_prev, batch)",
         "g + oracle.grad(y, batch) + oracle.grad(y_prev, batch)"),
    Edit("local_page: another batch for the old point", "local_page",
         "oracle.grad(y_prev, batch)", "oracle.grad(y_prev, oracle.batch(rest))"),
    Edit("local_page: y_prev is stale", "local_page",
         "(y - eta * g, y, total + g)", "(y - eta * g, y_prev, total + g)"),
    Edit("local_page: g is not carried on", "local_page",
         "g + oracle.grad(y, batch)", "oracle.grad(y, batch)"),
    Edit("local_page: returns the last estimator", "local_page", "total + g", "g * (k + 1)"),
    Edit("local_sgd: shift subtracted", "local_sgd", "direction + shift", "direction - shift"),
    Edit("local_sgd: a step is missing", "local_sgd", "range(K)", "range(K - 1)"),
    Edit("local_sgd: proximal sign", "local_sgd",
         "direction + mu * (y - x)", "direction - mu * (y - x)"),
    Edit("local_sgd: the same batch at every step", "local_sgd", "oracle.batch(b)",
         "(batch := oracle.batch(b) if isinstance(total, float) else batch)"),
    Edit("local_svrg: gradient at w added", "local_svrg",
         "oracle.grad(y, batch) - oracle.grad(w, batch)",
         "oracle.grad(y, batch) + oracle.grad(w, batch)"),
    Edit("local_svrg: h is missing", "local_svrg",
         "oracle.grad(y, batch) - oracle.grad(w, batch) + h",
         "oracle.grad(y, batch) - oracle.grad(w, batch)"),
    Edit("local_svrg: another batch at w", "local_svrg",
         "oracle.grad(w, batch)", "oracle.grad(w, oracle.batch(b))"),
]  # fmt: skip

KERNELS = [
    Edit("local_page, fused: the old gradient is missing", "local_page",
         "_slope(loss, now, target[row]) - _slope(loss, then, target[row])",
         "_slope(loss, now, target[row])"),
    Edit("local_sgd, fused: shift never applied", "local_sgd",
         "eta * shift[own_shift, l]", "0.0 * shift[own_shift, l]"),
    Edit("local_sgd, fused: proximal sign", "local_sgd",
         "scale[c] * _reg_slope(reg, alpha, y[l]) + mu * (y[l] - x[l])",
         "scale[c] * _reg_slope(reg, alpha, y[l]) - mu * (y[l] - x[l])"),
    Edit("local_svrg, fused: gradient at w added", "local_sgd",
         "v -= _slope(loss, then, target[row])", "v += _slope(loss, then, target[row])"),
]  # fmt: skip

RANDOM = [
    Edit("draws: minibatches repeat within a round", "_minibatches",
         "_fold(mine, np.uint64(first + draw))", "_fold(mine, np.uint64(first))"),
]  # fmt: skip

FEDAVG = [
    Edit("FedAvg: reply has the wrong sign", "FedAvg.client",
         "-(self.K * self.eta_l)", "self.K * self.eta_l"),
    Edit("FedAvg: eta_g ignored", "FedAvg.server",
         "self.eta_g * replies.mean.dy", "replies.mean.dy"),
]  # fmt: skip

FEDPROX = [
    Edit("FedProx: no proximal term", "FedProx.client", "mu=self.mu", "mu=0.0"),
]  # fmt: skip

SCAFFOLD = [
    Edit("SCAFFOLD: correction never applied", "SCAFFOLD.client", "shift=shift", "shift=None"),
    Edit("SCAFFOLD: correction has the wrong sign", "SCAFFOLD.client",
         "c - client_state.c", "client_state.c - c"),
    Edit("SCAFFOLD: c is left out of the correction", "SCAFFOLD.client",
         "shift=shift", "shift=-client_state.c"),
    Edit("SCAFFOLD: client state not written", "SCAFFOLD.client",
         "ClientState(c_new)", "client_state"),
    Edit("SCAFFOLD: c is never updated", "SCAFFOLD.server",
         "state.c + (replies.count / state.N) * replies.mean.dc", "state.c"),
    Edit("SCAFFOLD: c moves by the mean, not by S/N of it", "SCAFFOLD.server",
         "(replies.count / state.N) * replies.mean.dc", "replies.mean.dc"),
    Edit("SCAFFOLD option II: c_i - c is missing", "SCAFFOLD.client",
         "direction - shift", "direction"),
    Edit("SCAFFOLD option I: batch size ignored", "SCAFFOLD.client",
         "oracle.batch(self.b0)", "oracle.batch(1)"),
    Edit("SCAFFOLD: dc has the wrong sign", "SCAFFOLD.client",
         "c_new - client_state.c", "client_state.c - c_new"),
]  # fmt: skip

VRLSGD = [
    Edit("VRL-SGD: correction has the wrong sign", "VRLSGD.client", "shift=-delta", "shift=delta"),
    Edit("VRL-SGD: correction never updated", "VRLSGD.client",
         "delta + (x - client_state.y) / (self.K * self.eta_l)", "delta + 0.0 * client_state.y"),
    Edit("VRL-SGD: update has the wrong sign", "VRLSGD.client",
         "x - client_state.y", "client_state.y - x"),
    Edit("VRL-SGD: the last y is not stored", "VRLSGD.client",
         "ClientState(delta, x + dy)", "ClientState(delta, client_state.y)"),
    Edit("VRL-SGD: the old correction is stored", "VRLSGD.client",
         "ClientState(delta, x + dy)", "ClientState(client_state.delta, x + dy)"),
]  # fmt: skip

SLOCALSVRG = [
    Edit("S-Local-SVRG: w not stored", "SLocalSVRG.client",
         "ClientState(0.0 * h + x, client_state.h)", "client_state"),
    Edit("S-Local-SVRG: h not stored", "SLocalSVRG.client",
         "ClientState(client_state.w, h)", "client_state"),
    Edit("S-Local-SVRG: a refresh keeps the old h", "SLocalSVRG.server",
         "h=mean.h", "h=state.h"),
    Edit("S-Local-SVRG: sampled clients do not receive h", "SLocalSVRG.server",
         "state.h_sent or replies.count == state.N", "True"),
    Edit("S-Local-SVRG: coin ignored", "SLocalSVRG.call",
         "state.stepped and draws.coin(q)", "state.stepped"),
]  # fmt: skip

CLIENT_STATES = [
    Edit("engine: client states are read, never stored", "ClientStates.put",
         "table[clients] = rows", "table[clients] = 0.0 * rows + table[clients]"),
]  # fmt: skip

ROUND = [
    Edit("engine: divided by the wrong count", "Round._average",
         "mean_rows", "lambda part: mean_rows(part[1:] if len(part) > 1 else part)"),
    Edit("policy: g from a part of the clients", "Round._gather",
         "call.require_all and policy.fall_back", "False"),
    Edit("policy: divided by the called, not the arrived", "_Gathered.mean",
         "s / self.count", "s / (self.count + len(self.missing))"),
    Edit("policy: no retries", "Round._gather_chunks", "not len(missing)", "True"),
    Edit("policy: full rounds are tried for a lost client", "Round._gather_or_fall_back",
         "not missing", "True"),
]  # fmt: skip

LOCAL_TRANSPORT = [
    Edit("policy: a late reply counts", "LocalTransport._deliver_late",
         "self.policy.validate", "False"),
    Edit("policy: NaN counts", "LocalTransport._validate",
         "delivered & (outcomes == FINE)", "delivered"),
    Edit("policy: any shape counts", "LocalTransport._validate",
         "_shape_fault(replies, reply) if outcomes[i] == WRONG_SHAPE else ''", "''"),
    Edit("policy: client states of replies that did not count", "LocalTransport._request_unreliable",
         "self.policy.commit == 'always'", "True"),
]  # fmt: skip

TABLES: dict[str, list[Edit]] = {
    "methods/fedpage.py": FEDPAGE,
    "methods/fedavg.py": FEDAVG,
    "methods/fedprox.py": FEDPROX,
    "methods/scaffold.py": SCAFFOLD,
    "methods/vrlsgd.py": VRLSGD,
    "methods/slocalsvrg.py": SLOCALSVRG,
    "core/local_steps.py": LOCAL_STEPS,
    "core/random.py": RANDOM,
    "problems/kernels.py": KERNELS,
    "engine/client_states.py": CLIENT_STATES,
    "engine/round.py": ROUND,
    "engine/local_transport.py": LOCAL_TRANSPORT,
}
MUTANTS = [Mutant(edit[0], file, *edit[1:]) for file, edits in TABLES.items() for edit in edits]


def apply(mutant: Mutant, source: str) -> str:
    """Return the source of the mutant's file with the edit applied.

    Args:
        mutant: Which function to edit, and how.
        source: The text of the file.

    Returns:
        The text in which only the matched node's own segment differs.

    Raises:
        ValueError: If the old code does not occur exactly once in the function.
    """
    tree = ast.parse(source)
    function = _find_function(tree, mutant)
    old, new = _parse(mutant.old), _parse(mutant.new)
    matches = [node for node in ast.walk(function) if _is_same(node, old)]
    if len(matches) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.old!r} occurs {len(matches)} times "
            f"in {mutant.function} of {mutant.file}, not once"
        )
    (node,) = matches
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
    before, after = _cut(source, node)
    indent = " " * node.col_offset
    code = textwrap.indent(mutant.new, indent).lstrip() if isinstance(new, ast.stmt) else mutant.new
    wanted = _replace(tree, node, new)
    for text in (before + code + after, f"{before}({code}){after}"):
        try:
            if ast.dump(ast.parse(text)) == wanted:
                return text
        except SyntaxError:
            continue
    raise ValueError(f"{mutant.name}: {mutant.new!r} cannot stand in the place of {mutant.old!r}")


def _find_function(tree: ast.Module, mutant: Mutant) -> ast.AST:
    """Find the function by its qualified name."""
    node: ast.Module | ast.ClassDef | ast.FunctionDef = tree
    for part in mutant.function.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = [child for child in node.body if isinstance(child, kinds) and child.name == part]
        if len(found) != 1:
            raise ValueError(f"{mutant.name}: {mutant.file} does not have one {mutant.function}")
        node = found[0]
    return node


def _parse(code: str) -> ast.AST:
    """Parse an expression, or else a single statement."""
    try:
        return ast.parse(code, mode="eval").body
    except SyntaxError:
        (statement,) = ast.parse(textwrap.dedent(code)).body
        return statement


def _as_keyword(node: ast.AST) -> ast.keyword | None:
    """Return the keyword argument that `name=value` may also mean."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return ast.keyword(arg=name, value=value)
    return None


def _is_same(node: ast.AST, old: ast.AST) -> bool:
    """Compare by what `ast.unparse` writes; a name that is assigned to is not an expression."""
    if isinstance(node, ast.keyword):
        keyword = _as_keyword(old)
        return keyword is not None and ast.unparse(node) == ast.unparse(keyword)
    if isinstance(old, ast.expr):
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        return isinstance(node, ast.expr) and not stored and ast.unparse(node) == ast.unparse(old)
    return isinstance(node, ast.stmt) and ast.unparse(node) == ast.unparse(old)


def _cut(source: str, node: ast.expr | ast.stmt | ast.keyword) -> tuple[str, str]:
    """Return the text before and after the node; columns of the syntax tree count bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    return source.encode()[:begin].decode(), source.encode()[end:].decode()


def _replace(tree: ast.Module, node: ast.AST, new: ast.AST) -> str:
    """Dump the tree with the node replaced."""

    class Replace(ast.NodeTransformer):
        def visit(self, child: ast.AST) -> ast.AST:
            if child is not node:
                return self.generic_visit(child)
            return (_as_keyword(new) or new) if isinstance(node, ast.keyword) else new

    return ast.dump(Replace().visit(tree))


class Verdict(NamedTuple):
    """Whether a law failed on the mutant, after how many seconds, and which law."""

    caught: bool
    seconds: float
    law: str


def judge(mutant: Mutant) -> Verdict:
    """Run the laws on a copy of the package that has the mutant's edit."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        # numba's caches are copied too: only the edited file is compiled again
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.egg-info"))
        path = source / "fedpage" / mutant.file
        path.write_text(apply(mutant, path.read_text(encoding="utf-8")), encoding="utf-8")
        words = ["-x", "-q", "-rf", "--no-header", "--tb=no", "-p", "no:xdist"]
        command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "laws"), *words]
        variables = {"PYTHONPATH": str(source), "FEDPAGE_MUTANT": str(source), "PYTEST_ADDOPTS": ""}
        began = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
    seconds = time.perf_counter() - began
    law = _first_failure(done.stdout)
    if done.returncode not in (0, 1) or (done.returncode == 1 and not law):
        raise RuntimeError(f"{mutant.name}: the laws did not run:\n{done.stdout}{done.stderr}")
    return Verdict(done.returncode == 1, seconds, law)


def _first_failure(output: str) -> str:
    """Return the name of the first failed test in pytest's output."""
    for line in output.splitlines():
        if line.startswith("FAILED"):
            return line.split("::")[1].split(" ")[0]
    return ""


def main(words: list[str]) -> None:
    """Judge all mutants, or those whose names contain one of the words."""
    chosen = [
        m for m in MUTANTS if not words or any(word.lower() in m.name.lower() for word in words)
    ]
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            survived += not verdict.caught
            outcome = "caught  " if verdict.caught else "SURVIVED"
            print(
                f"{outcome}  {mutant.name:52s} {verdict.seconds:5.1f} s  {verdict.law}", flush=True
            )
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    sys.exit(1 if survived or not chosen else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
