"""Compare methods under client faults, with and without the policy: `make faults`.

Prints the tables of docs/faults.md and draws docs/img/faults.png. FedPAGE, SCAFFOLD and FedAvg run
robust regression on a9a with effective step 0.1 and five seeds. Each number is the median over
seeds of the median gradient norm over the last tenth of the records.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from joblib import Parallel, delayed

import fedpage as fp
from fedpage.methods.fair import match_terms

SEEDS, JOBS = 5, 2
METHODS = tuple(fp.METHODS[name] for name in ("fedpage", "scaffold", "fedavg"))
FAULTS = {
    "nothing fails": None,
    "20 % drop out": fp.Faults(dropout=0.2),
    "20 % drop out, tied to labels": fp.Faults(dropout=0.2, tied="labels"),
    "20 % of replies lost": fp.Faults(lost=0.2),
    "10 % of replies late": fp.Faults(late=0.1),
    "stragglers past a deadline": fp.Faults(spread=0.5, noise=0.5, deadline=2.0),
    "0.1 % of replies NaN": fp.Faults(nan=0.001),
    "a client leaves at round 100": fp.Faults(gone=(0,), gone_from=100),
}
IMAGE = Path(__file__).parents[1] / "docs" / "img" / "faults.png"


def problem_of_10_clients() -> fp.RobustRegression:
    data = fp.load("a9a")
    return fp.RobustRegression(data, fp.label_shards(data.y[:32_500], 10, shards=2))


def problem_of_3250_clients() -> fp.RobustRegression:
    return fp.RobustRegression(fp.load("a9a"), fp.blocks(32_500, 3_250))


def run(problem, method, rounds, record_every, faults, policy, seed):
    return fp.simulate(
        problem,
        method,
        rounds=rounds,
        seed=seed,
        record_every=record_every,
        options=fp.RunOptions(faults=faults, policy=policy),
    )


def runs(problem, method, rounds, record_every, faults, policy):
    return Parallel(n_jobs=JOBS)(
        delayed(run)(problem, method, rounds, record_every, faults, policy, seed)
        for seed in range(SEEDS)
    )


def end(histories) -> float:
    """Return the median over seeds of the final gradient norm; diverged runs count as inf."""
    tails = [
        np.median(h["grad_norm"][-max(1, len(h) // 10) :]) if not h.diverged else np.inf
        for h in histories
    ]
    return statistics.median(tails)


def format_norm(value: float) -> str:
    return f"{value:.4f}" if np.isfinite(value) else "diverged"


def print_10_clients() -> dict[tuple[str, str, str], list[fp.History]]:
    problem, found = problem_of_10_clients(), {}
    methods = [match_terms(entry, N=10, M=3_250, S=3, K=10, step=0.1) for entry in METHODS]
    print(
        "| what fails | " + " | ".join(f"{m.name}, policy | {m.name}, none" for m in methods) + " |"
    )
    print("|---|" + "---|" * (2 * len(methods)))
    for what, faults in FAULTS.items():
        cells = []
        for method in methods:
            for name, policy in (("policy", fp.Policy()), ("none", fp.Policy.naive())):
                if faults is None and name == "none":
                    cells.append("")
                    continue
                both = runs(problem, method, 600, 10, faults, policy if faults else None)
                found[what, method.name, name] = both
                cells.append(format_norm(end(both)))
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)
    return found


def print_3250_clients() -> None:
    problem = problem_of_3250_clients()
    methods = [match_terms(entry, N=3_250, M=10, S=10, K=10, step=0.1) for entry in METHODS]
    print(
        "\n| 20 % drop out, N = 3,250 | "
        + " | ".join(m.name for m in methods)
        + " | FedPAGE's full rounds |"
    )
    print("|---|" + "---|" * (len(methods) + 1))
    policies = {"nothing fails": None, "no policy": fp.Policy.naive()}
    for n in (2, 4, 6):
        usual = " (the default)" if n == fp.Policy().full_retries else ""
        policies[f"policy, full rounds retried {n} times{usual}"] = fp.Policy(full_retries=n)
    for name, policy in policies.items():
        faults = None if policy is None else fp.Faults(dropout=0.2)
        each = [runs(problem, method, 3_000, 50, faults, policy) for method in methods]
        full = statistics.median(h.last("full_rounds") for h in each[0])
        print(
            f"| {name} | " + " | ".join(format_norm(end(both)) for both in each) + f" | {full:g} |",
            flush=True,
        )


def draw(found) -> None:
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    styles = {"policy": "-", "none": ":"}
    for ax, entry in zip(axes, METHODS, strict=True):
        for number, what in enumerate(
            ("nothing fails", "20 % drop out, tied to labels", "20 % of replies lost")
        ):
            for name, style in styles.items():
                both = found.get((what, entry.label, name))
                if both is None:
                    continue
                middle = np.median([h["grad_norm"] for h in both], axis=0)
                label = (
                    what
                    if number == 0
                    else f"{what}, {'with' if name == 'policy' else 'without'} the policy"
                )
                ax.semilogy(
                    both[0]["round"], middle, style, color=f"C{number}", label=label, lw=1.4
                )
        ax.set_title(entry.label)
        ax.set_xlabel("rounds")
    axes[0].set_ylabel("gradient norm, median of 5 seeds")
    fig.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    fig.savefig(IMAGE, dpi=150)
    print(f"\n{IMAGE}")


if __name__ == "__main__":
    if (
        "a9a" not in sys.argv[1:]
        and fp.data.registry.find(fp.data.registry.libsvm_file("a9a")) is None
    ):
        raise SystemExit("a9a is missing: run `fedpage data fetch a9a`")
    draw(print_10_clients())
    print_3250_clients()
