"""Kill runs: `make torture`. A resumed run has the same bits.

Forked processes that run a method with a checkpoint every few rounds are killed with SIGKILL at
random moments until the run ends; slow writes make many kills fall into a checkpoint. The real
command is killed, terminated and interrupted. Commands with several processes are killed, and
their workers must end. tests/unit/test_rundir.py fills the disk; test_damage.py changes bits.
"""

import argparse
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import methods, uneven

import fedpage as fp
from fedpage.flower.deploy.processes import find_descendants

FORK = multiprocessing.get_context("fork")
FAULTS = fp.Faults(dropout=0.2, nan=0.05, late=0.1)
ROUNDS = 60


def slow_down_writes(seconds):
    """Make every sync and rename take a while, so that kills fall into them."""
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def slow(*args, real=real):
            time.sleep(seconds)
            result = real(*args)
            time.sleep(seconds)
            return result

        setattr(os, name, slow)


def run_and_resume(problem, method, out, arguments, faults=None):
    """Begin or resume a run, with a checkpoint every 3 rounds."""
    options = fp.RunOptions(faults=faults, resume=True, checkpoint_every=3)
    return fp.simulate(problem, method, out=out, options=options, **arguments)


def run_slowly(*args):
    """Begin or resume a run in a process that will be killed."""
    logging.disable()  # that a run begins again is expected here
    slow_down_writes(0.0008)
    run_and_resume(*args)


def kill_until_done(problem, method, arguments, faults, whole, chance, out, longest):
    """Kill a run at random moments until it ends.

    Returns how often it was killed, and how often within a write.
    """
    kills = within = 0
    left: set[Path] = set()
    while True:
        process = FORK.Process(target=run_slowly, args=(problem, method, out, arguments, faults))
        process.start()
        process.join(chance.uniform(0.001, longest))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            scratch = set(out.rglob(".*.tmp"))
            within += bool(scratch - left)
            left = scratch
            longest *= 1.15  # so that the run ends at some time
            continue
        assert process.exitcode == 0, f"{method.name}: exit code {process.exitcode}"
        break
    history = fp.History.load(out / "history.jsonl")
    assert history.same(whole), f"{method.name}: resumed {kills} times, and the result differs"
    return kills, within


def kill_runs(seed, runs_wanted=1, kills_wanted=1, say=print):
    """Kill runs of every method; returns runs, kills, and kills within a write."""
    problem, chance = uneven(), random.Random(seed)
    kills = within = runs = 0
    every = list(methods(4, 3, 0.1).items())
    while kills < kills_wanted or runs < runs_wanted:
        name, method = every[runs % len(every)]
        faults = FAULTS if runs % 3 == 2 and name != "VRL-SGD" else None
        arguments = {"rounds": ROUNDS, "seed": runs, "record_every": 4}
        whole = fp.simulate(problem, method, options=fp.RunOptions(faults=faults), **arguments)
        with tempfile.TemporaryDirectory() as folder:
            some, torn = kill_until_done(
                problem, method, arguments, faults, whole, chance, Path(folder) / "run", 0.05
            )
        if not some:
            continue  # the run ended before the first kill
        kills, within, runs = kills + some, within + torn, runs + 1
        say(f"{name:24s} killed {some:3d} times, {torn:3d} within a write: the same bits")
    return runs, kills, within


COMMAND = [
    sys.executable, "-m", "fedpage", "run", "scaffold", "--data", "census:rows=2000",
    "--clients", "200", "--rounds", "3000", "--record-every", "100", "--checkpoint-every", "200",
]  # fmt: skip


def start_command(*words):
    return subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def resume_command(out):
    words = [sys.executable, "-m", "fedpage", "resume", str(out)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def wait_for(condition, seconds=60):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("waited too long")
        time.sleep(0.005)


def interrupt_command(folder, signals=(signal.SIGKILL, signal.SIGTERM, signal.SIGINT), say=print):
    """Send SIGKILL, SIGTERM and Ctrl-C to the real command: each leaves a run that resumes.

    The exit code after SIGTERM and Ctrl-C is 130.
    """
    whole = None
    for number in signals:
        out = folder / signal.Signals(number).name
        process = start_command("--out", str(out))
        wait_for(lambda out=out: any((out / "checkpoints").glob("*.npz")))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        if number == signal.SIGKILL:
            assert process.returncode == -number, process.returncode
        else:
            assert process.returncode == 130, (process.returncode, err)
            last = err.strip().splitlines()[-1]
            assert last.startswith("fedpage: interrupted after round "), last
            assert f"`fedpage resume {out}`" in last, last
        stored = fp.History.load(out / "history.jsonl")
        assert stored.stop_reason is fp.StopReason.INTERRUPTED
        done = resume_command(out)
        assert done.returncode == 0, done.stderr
        history = fp.History.load(out / "history.jsonl")
        whole = history if whole is None else whole
        assert history.same(whole)
        name = signal.Signals(number).name
        say(f"{name}: exit {process.returncode}, resumed: {history.stop_reason}")
    problem = fp.RobustRegression(fp.load("census", rows=2000), clients=200)
    assert whole.same(fp.simulate(problem, fp.SCAFFOLD(), rounds=3000, seed=0, record_every=100))


LONG = ["--data", "census:rows=2000", "--clients", "200", "--rounds", "1000000", "--jobs", "2"]
STUDY = """
name = "long"
rounds = 1000000
seeds = 2
[problems]
census = { data = "census:rows=2000", clients = 200 }
[methods]
fedavg = { S = 20, K = 10 }
"""
PARALLEL = {
    "compare": ["compare", "--methods", "fedavg,scaffold", *LONG, "--out", "out"],
    "tune": ["tune", "fedavg", "--target", "1e-9", *LONG, "--out", "out"],
    "study": ["study", "run", "study.toml", "--jobs", "2"],
    "reproduce": ["reproduce", "comparison/a9a-robust", "--data", "census", "--jobs", "2"],
}


def find_workers(pid):
    """Return the ids of joblib's workers among the descendants of a process."""
    lines = {child: Path(f"/proc/{child}/cmdline") for child in find_descendants(pid)}
    return [child for child, line in lines.items() if b"LokyProcess" in line.read_bytes()]


def orphan_workers(folder, chance, commands=tuple(PARALLEL), say=print):
    """Kill commands with two workers at random moments: the workers end within seconds."""
    for name in commands:
        place = folder / f"orphans-{name}"
        place.mkdir()
        (place / "study.toml").write_text(STUDY)
        process = subprocess.Popen(
            [sys.executable, "-m", "fedpage", *PARALLEL[name]],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda pid=process.pid: len(find_workers(pid)) == 2)
        time.sleep(chance.uniform(0.0, 5.0))
        assert process.poll() is None, f"{name} has ended by itself"
        workers = find_workers(process.pid)
        assert len(workers) == 2, workers
        process.kill()
        process.wait()
        began = time.monotonic()
        wait_for(lambda pids=workers: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)
        say(f"{name} --jobs 2 killed: workers ended after {time.monotonic() - began:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs that are killed until they end")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    runs, kills, within = kill_runs(options.seed, runs_wanted=options.runs)
    print(f"{runs} runs killed {kills} times, {within} times within a write: all the same bits")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        interrupt_command(folder)
        orphan_workers(folder, random.Random(options.seed))
    print(f"survived, in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
