"""Kill runs, fill the disk, take the directory away: `make torture`. What is resumed must end with the same bits.

Three parts. Forked processes that run a method with a checkpoint every few rounds are killed with SIGKILL at random
moments until they get through; slow writes make many of the kills fall into a checkpoint. The real command is killed,
terminated and interrupted. The disk fills up (a small tmpfs where this process may mount one, a limit of the file size
everywhere), and the directory cannot be written.
"""

from __future__ import annotations

import argparse
import errno
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import methods, uneven

import fedpage as fp

FORK = multiprocessing.get_context("fork")
FAULTS = fp.Faults(dropout=0.2, nan=0.05, late=0.1)
ROUNDS = 60


def slowed(seconds):
    """Make every sync and rename take a while, so that kills fall into them."""
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def slow(*args, real=real):
            time.sleep(seconds)
            done = real(*args)
            time.sleep(seconds)
            return done

        setattr(os, name, slow)


def work(problem, method, out, options):
    """One life of a run."""
    logging.disable()  # that a run begins again is no news here
    slowed(0.0008)
    fp.simulate(
        problem, method, out=out, **options, options=fp.RunOptions(resume=True, checkpoint_every=3)
    )


def killed_until_done(problem, method, options, whole, chance, out, longest):
    """Kill a run at random moments until it gets through; returns how often, and how often within a write."""
    kills = within = 0
    left: set[Path] = set()
    while True:
        life = FORK.Process(target=work, args=(problem, method, out, options))
        life.start()
        life.join(chance.uniform(0.001, longest))
        if life.is_alive():
            os.kill(life.pid, signal.SIGKILL)
            life.join()
            kills += 1
            scratch = set(out.rglob(".*.tmp"))
            within += bool(scratch - left)
            left = scratch
            longest *= 1.15  # it must get through some day
            continue
        assert life.exitcode == 0, f"{method.name}: exit code {life.exitcode}"
        break
    history = fp.History.load(out / "history.jsonl")
    assert history.same(whole), f"{method.name}: resumed {kills} times, and the result differs"
    return kills, within


def kill_runs(seed, runs_wanted=1, kills_wanted=1, say=print):
    """Runs of every method, killed until enough of them were; returns runs, kills, and those within a write."""
    problem, chance = uneven(), random.Random(seed)
    done = within = runs = 0
    every = list(methods(4, 3, 0.1).items())
    while done < kills_wanted or runs < runs_wanted:
        name, method = every[runs % len(every)]
        faults = FAULTS if runs % 3 == 2 and name != "VRL-SGD" else None
        options = {"rounds": ROUNDS, "seed": runs, "record_every": 4, "faults": faults}
        whole = fp.simulate(problem, method, **options)
        with tempfile.TemporaryDirectory() as folder:
            some, torn = killed_until_done(
                problem, method, options, whole, chance, Path(folder) / "run", 0.05
            )
        if not some:
            continue  # it got through at once
        done, within, runs = done + some, within + torn, runs + 1
        say(f"{name:24s} killed {some:3d} times, {torn:3d} within a write: the same bits")
    return runs, done, within


COMMAND = [sys.executable, "-m", "fedpage", "run", "scaffold", "--data", "census:rows=2000", "--clients", "200",
           "--rounds", "6000", "--record-every", "100", "--checkpoint-every", "200"]  # fmt: skip


def command(*words, **options):
    return subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
    )


def resumed(out):
    words = [sys.executable, "-m", "fedpage", "resume", str(out)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def until(condition, seconds=60):
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("waited too long")
        time.sleep(0.005)


def interrupt_command(folder, signals=(signal.SIGKILL, signal.SIGTERM, signal.SIGINT), say=print):
    """SIGKILL, SIGTERM and Ctrl-C to the real command: 130 for the latter two, a resumable run after all three."""
    whole = None
    for number in signals:
        out = folder / signal.Signals(number).name
        process = command("--out", str(out))
        until(lambda out=out: any((out / "checkpoints").glob("*.npz")))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        if number == signal.SIGKILL:
            assert process.returncode == -number, process.returncode
        else:
            assert process.returncode == 130, (process.returncode, err)
            last = err.strip().splitlines()[-1]
            assert last.startswith("fedpage: interrupted after round "), last
            assert last.endswith(f"`fedpage resume {out}` goes on"), last
        assert fp.History.load(out / "history.jsonl").stopped.startswith("cut off")
        done = resumed(out)
        assert done.returncode == 0, done.stderr
        history = fp.History.load(out / "history.jsonl")
        whole = history if whole is None else whole
        assert history.same(whole)
        say(f"{signal.Signals(number).name}: exit {process.returncode}, resumed: {history.stopped}")
    problem = fp.RobustRegression(fp.load("census", rows=2000), clients=200)
    assert whole.same(fp.simulate(problem, fp.SCAFFOLD(), rounds=6000, seed=0, record_every=100))


def limited(problem, method, options, out, limit, answer):
    """A run whose files may not grow beyond `limit` bytes: what it ends with goes through the pipe."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        fp.simulate(
            problem,
            method,
            out=out,
            **options,
            options=fp.RunOptions(resume=True, checkpoint_every=3),
        )
        answer.send("done")
    except OSError as error:
        answer.send(f"{errno.errorcode[error.errno]}: {error.strerror}")


def fill_disk(folder, limits=range(0, 40_000, 2_500), say=print):
    """Files that cannot grow, at every size from nothing to enough; then room again: the same bits."""
    problem, method = uneven(), fp.SCAFFOLD(S=4, K=2)
    options = {"rounds": ROUNDS, "seed": 1, "record_every": 2}
    whole = fp.simulate(problem, method, **options)
    refused = 0
    for limit in limits:
        out = folder / f"limit-{limit}"
        here, there = FORK.Pipe()
        life = FORK.Process(target=limited, args=(problem, method, options, out, limit, there))
        life.start()
        life.join()
        said = here.recv()
        assert said == "done" or ("EFBIG" in said and "fedpage resume" in said), said
        refused += said != "done"
        assert fp.simulate(
            problem, method, out=out, **options, options=fp.RunOptions(resume=True)
        ).same(whole)
        shutil.rmtree(out)
    assert refused > len(limits) // 4
    say(
        f"files that cannot grow: {refused} runs ended with one line each, and went on: the same bits"
    )


def fill_tmpfs(folder, say=print):
    """A real file system that is full, where we may mount one."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        say("no tmpfs may be mounted here: that part is left to the file size limit")
        return
    try:
        out = folder / "run"
        process = command("--out", str(out))
        _, err = process.communicate(timeout=120)
        last = err.strip().splitlines()[-1]
        assert process.returncode == 1, (process.returncode, err)
        assert "No space left on device; the run is safe up to round " in last, last
        room = ["mount", "-o", "remount,size=16m", str(folder)]
        subprocess.run(room, check=True, capture_output=True)
        done = resumed(out)
        assert done.returncode == 0, done.stderr
        problem = fp.RobustRegression(fp.load("census", rows=2000), clients=200)
        whole = fp.simulate(problem, fp.SCAFFOLD(), rounds=6000, seed=0, record_every=100)
        assert fp.History.load(out / "history.jsonl").same(whole)
        say(f"a full tmpfs: {last}; with room again: the same bits")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def unprivileged(out, answer):
    """As nobody, whom permissions bind."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        fp.simulate(uneven(), fp.FedAvg(S=2), rounds=3, seed=0, out=out)
        answer.send("done")
    except fp.InputError as error:
        answer.send(str(error))


def no_permission(folder, say=print):
    """A directory that may not be written: refused before the first round."""
    closed = folder / "closed"
    closed.mkdir()
    for parent in (closed, *closed.parents):  # nobody must be able to look at it
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)
    closed.chmod(0o555)
    here, there = FORK.Pipe()
    life = FORK.Process(target=unprivileged, args=(closed / "run", there))
    life.start()
    life.join()
    said = here.recv()
    assert said == f"{closed / 'run'}: cannot be written (Permission denied)", said
    say(f"no permission: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=100, help="runs that are killed, each until it gets through"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    runs, kills, within = kill_runs(options.seed, runs_wanted=options.runs)
    print(f"{runs} runs killed {kills} times, {within} times within a write: all the same bits")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        interrupt_command(folder)
        fill_disk(folder)
        (folder / "small").mkdir()
        fill_tmpfs(folder / "small")
        no_permission(folder)
    print(f"survived, in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
