"""Break the methods one line at a time and show that the laws notice: `make mutants`.

Each mutant is a copy of the package with one line changed. The laws run on it and must fail; a mutant that survives
is a hole in the laws. Prints a line a mutant and ends with an error if one survived.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant("FedPAGE: server moves up the gradient", "methods/fedpage.py", "state.x - self.eta_g * move,", "state.x + self.eta_g * move,"),
    Mutant("FedPAGE: x_prev is stale", "methods/fedpage.py", "x_prev=state.x, g=g", "x_prev=state.x_prev, g=g"),
    Mutant("FedPAGE: g is stale", "methods/fedpage.py", "x_prev=state.x, g=g,", "x_prev=state.x, g=state.g,"),
    Mutant("FedPAGE: the first round may be sampled", "methods/fedpage.py", "1.0 if draws.round == 0 else p", "p"),
    Mutant("FedPAGE: client starts from x_prev", "methods/fedpage.py", "x = x_prev - self.eta_g * g", "x = x_prev"),
    Mutant("FedPAGE: b2 and b3 swapped", "methods/fedpage.py", "first=self.b2, rest=self.b3", "first=self.b3, rest=self.b2"),
    Mutant("FedPAGE: full rounds ignore b1", "methods/fedpage.py", "oracle.batch(self.b1)", "oracle.batch(self.b3)"),
    Mutant("FedPAGE: coin ignored", "methods/fedpage.py", "full = draws.coin(", "full = draws.round == 0 or not draws.coin("),
    Mutant("PAGE recursion: sign of the old gradient", "core/local_steps.py", "g = g + oracle.grad(y, batch) - oracle.grad(y_prev, batch)", "g = g + oracle.grad(y, batch) + oracle.grad(y_prev, batch)"),
    Mutant("PAGE recursion: a fresh batch for the old point", "core/local_steps.py", "- oracle.grad(y_prev, batch)", "- oracle.grad(y_prev, oracle.batch(rest))"),
    Mutant("PAGE recursion: y_prev is stale", "core/local_steps.py", "y - eta * g, y, total + g", "y - eta * g, y_prev, total + g"),
    Mutant("PAGE recursion: g is not carried on", "core/local_steps.py", "g = g + oracle.grad(y, batch)", "g = oracle.grad(y, batch)"),
    Mutant("PAGE recursion: replies the last estimator", "core/local_steps.py", "total + g  # lines", "g * (k + 1)  # lines"),
    Mutant("PAGE recursion, fused: same", "problems/kernels.py", "v = weight * (_slope(loss, now, target[row]) - _slope(loss, then, target[row]))", "v = weight * _slope(loss, now, target[row])"),
    Mutant("local_sgd: shift subtracted", "core/local_steps.py", "direction = direction + shift", "direction = direction - shift"),
    Mutant("local_sgd: one step short", "core/local_steps.py", "for _ in range(K):\n        direction = oracle.grad(y, oracle.batch(b))", "for _ in range(K - 1):\n        direction = oracle.grad(y, oracle.batch(b))"),
    Mutant("local_sgd: proximal sign", "core/local_steps.py", "direction = direction + mu * (y - x)", "direction = direction - mu * (y - x)"),
    Mutant("local_sgd: the same batch at every step", "core/local_steps.py", "    for _ in range(K):\n        direction = oracle.grad(y, oracle.batch(b))", "    batch = oracle.batch(b)\n    for _ in range(K):\n        direction = oracle.grad(y, batch)"),
    Mutant("local_sgd, fused: shift never applied", "problems/kernels.py", "y[l] -= eta * shift[own_shift, l]", "y[l] -= 0.0 * shift[own_shift, l]"),
    Mutant("FedAvg: reply has the wrong sign", "methods/fedavg.py", "Reply(-(self.K * self.eta_l) * direction)", "Reply((self.K * self.eta_l) * direction)"),
    Mutant("FedAvg: eta_g ignored", "methods/fedavg.py", "state.x + self.eta_g * replies.mean.dy", "state.x + replies.mean.dy"),
    Mutant("SCAFFOLD: correction never applied", "methods/scaffold.py", "b=self.b, shift=shift)", "b=self.b)"),
    Mutant("SCAFFOLD: correction has the wrong sign", "methods/scaffold.py", "shift = c - client_state.c", "shift = client_state.c - c"),
    Mutant("SCAFFOLD: c is left out of the correction", "methods/scaffold.py", "shift=shift)", "shift=-client_state.c)"),
    Mutant("SCAFFOLD: memory not written", "methods/scaffold.py", "ClientState(c_new)", "client_state"),
    Mutant("SCAFFOLD: c is never updated", "methods/scaffold.py", "c=state.c + (replies.count / state.N) * replies.mean.dc", "c=state.c"),
    Mutant("SCAFFOLD: c moves by the mean, not by S/N of it", "methods/scaffold.py", "(replies.count / state.N) * replies.mean.dc", "replies.mean.dc"),
    Mutant("SCAFFOLD option II: forgets c_i - c", "methods/scaffold.py", "c_new = direction - shift", "c_new = direction"),
    Mutant("SCAFFOLD option I: batch size ignored", "methods/scaffold.py", "oracle.batch(self.b0)", "oracle.batch(1)"),
    Mutant("SCAFFOLD: dc has the wrong sign", "methods/scaffold.py", "c_new - client_state.c)", "client_state.c - c_new)"),
    Mutant("engine: memories are read, never kept", "engine/round.py", "                table[clients] = rows", "                table[clients] += 0.0 * rows"),
    Mutant("engine: divided by the wrong count", "engine/round.py", "[mean_rows(rows) for rows in replies], n)", "[mean_rows(rows[1:] if len(rows) > 1 else rows) for rows in replies], n)"),
    Mutant("policy: g from a part of the clients", "engine/round.py", "strict = call.require_all and policy.fall_back", "strict = False"),
    Mutant("policy: divided by the called, not the arrived", "engine/round.py", "[total / count for total in totals], count)", "[total / len(call.clients) for total in totals], count)"),
    Mutant("policy: a late reply counts", "engine/round.py", "            if letter.round != now:\n", "            if False:\n"),
    Mutant("policy: NaN counts", "engine/round.py", "if not fault and not finite(letter.reply):", "if not fault and letter.reply is None:"),
    Mutant("policy: any shape counts", "engine/round.py", "fault = form.fault(letter.reply)", "fault = ''"),
    Mutant("policy: nobody is asked again", "engine/round.py", "if not silent or attempt == retries:", "if True:"),
    Mutant("policy: memories of replies that did not count", "engine/round.py", 'if self.policy.remember == "counted":', "if False:"),
    Mutant("policy: full rounds are tried for a lost client", "engine/round.py", "            if not lost:\n", "            if True:\n"),
    Mutant("policy: the fall-back is forgotten", "methods/fedpage.py", "require_all=True, fallback=fallback)  # line 4", "require_all=True)  # line 4"),
    Mutant("policy: FedPAGE's first g does not wait", "methods/fedpage.py", "fallback = None if draws.round == 0 else partial", "fallback = partial"),
    Mutant("draws: minibatches repeat within a round", "core/random.py", "_fold(mine, np.uint64(first + draw))", "_fold(mine, np.uint64(first))"),
    Mutant("FedPAGE periodic: one round late", "methods/fedpage.py", "draws.round % max(1, round(1 / p)) == 0", "(draws.round + 1) % max(1, round(1 / p)) == 0"),
    Mutant("FedPAGE leak-free: carries the damped g", "methods/fedpage.py", "return FreeReply((g0 + (K - 1) * later) / K, g0)", "return FreeReply((g0 + (K - 1) * later) / K, later)"),
    Mutant("FedPAGE leak-free: moves along g_0", "methods/fedpage.py", "move = replies.mean.move if isinstance(replies.mean, FreeReply) else g", "move = g"),
    Mutant("FedPAGE leak-free: second piece starts at x", "methods/fedpage.py", "local_page(oracle, x - eta * g0, x, g0,", "local_page(oracle, x + 0.0 * g0, x, g0,"),
    Mutant("FedProx: no proximal term", "methods/fedprox.py", "b=self.b, mu=self.mu)", "b=self.b)"),
    Mutant("local_sgd, fused: proximal sign", "problems/kernels.py", "+ mu * (y[l] - x[l])", "- mu * (y[l] - x[l])"),
    Mutant("VRL-SGD: correction has the wrong sign", "methods/vrlsgd.py", "shift=-delta)", "shift=delta)"),
    Mutant("VRL-SGD: correction never updated", "methods/vrlsgd.py", "delta = delta + (x - client_state.y) / (self.K * self.eta_l)", "delta = delta + 0.0 * client_state.y"),
    Mutant("VRL-SGD: update has the wrong sign", "methods/vrlsgd.py", "(x - client_state.y)", "(client_state.y - x)"),
    Mutant("VRL-SGD: end of the walk not remembered", "methods/vrlsgd.py", "ClientState(delta, x + dy)", "ClientState(delta, client_state.y)"),
    Mutant("VRL-SGD: old correction remembered", "methods/vrlsgd.py", "ClientState(delta, x + dy)", "ClientState(client_state.delta, x + dy)"),
    Mutant("SVRG: gradient at w added", "core/local_steps.py", "oracle.grad(y, batch) - oracle.grad(w, batch) + h", "oracle.grad(y, batch) + oracle.grad(w, batch) + h"),
    Mutant("SVRG: h forgotten", "core/local_steps.py", "- oracle.grad(w, batch) + h", "- oracle.grad(w, batch)"),
    Mutant("SVRG: another batch at w", "core/local_steps.py", "- oracle.grad(w, batch) + h", "- oracle.grad(w, oracle.batch(b)) + h"),
    Mutant("SVRG, fused: gradient at w added", "problems/kernels.py", "v -= _slope(loss, then, target[row])", "v += _slope(loss, then, target[row])"),
    Mutant("S-Local-SVRG: w not remembered", "methods/slocalsvrg.py", "ClientState(0.0 * h + x, client_state.h)", "client_state"),
    Mutant("S-Local-SVRG: h not remembered", "methods/slocalsvrg.py", "ClientState(client_state.w, h)", "client_state"),
    Mutant("S-Local-SVRG: refresh moves nothing but h is kept old", "methods/slocalsvrg.py", "h=replies.mean.h, rows=rows", "h=state.h, rows=rows"),
    Mutant("S-Local-SVRG: sampled clients are not told h", "methods/slocalsvrg.py", "told = state.told or replies.count == state.N", "told = True"),
    Mutant("S-Local-SVRG: coin ignored", "methods/slocalsvrg.py", "not (state.walked and draws.coin(q))", "not state.walked"),
]  # fmt: skip


def caught(mutant: Mutant) -> tuple[bool, float, str]:
    """Whether the laws fail on the mutant, how long that took, and which law said so."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(
            ROOT / "src", source, ignore=shutil.ignore_patterns("*.egg-info")
        )  # numba's caches come along
        path = source / "fedpage" / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise SystemExit(
                f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} places like {mutant.old!r}"
            )
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(ROOT / "tests" / "laws"),
            "-x",
            "-q",
            "-rf",
            "--no-header",
            "--tb=no",
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "FEDPAGE_MUTANT": str(source),
            "PYTEST_ADDOPTS": "",
        }
        began = time.perf_counter()
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    law = next(
        (
            line.split("::")[1].split(" ")[0]
            for line in done.stdout.splitlines()
            if "FAILED" in line
        ),
        "",
    )
    if done.returncode not in (0, 1) or (done.returncode == 1 and not law):
        raise SystemExit(f"{mutant.name}: the laws did not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 1, time.perf_counter() - began, law


def main(words: list[str]) -> None:
    """Run all mutants, or those whose names contain one of the given words."""
    chosen = [
        m for m in MUTANTS if not words or any(word.lower() in m.name.lower() for word in words)
    ]
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, (dead, seconds, law) in zip(chosen, pool.map(caught, chosen), strict=True):
            survived += not dead
            print(
                f"{'caught  ' if dead else 'SURVIVED'}  {mutant.name:52s} {seconds:5.1f} s  {law}",
                flush=True,
            )
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    sys.exit(1 if survived or not chosen else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
