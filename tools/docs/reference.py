"""The pages of the API reference: which names stand on which page. What is said of them is their docstrings'."""

from __future__ import annotations

import fedpage as fp

PAGES: dict[str, tuple[str, str, list[str]]] = {
    "running": (
        "Running", "One run, many runs, and when they end.",
        ["engine.simulate", "engine.sweep", "engine.Simulation", "stopping.Stop", "rundir.RunDirectory"],
    ),
    "history": ("History", "The record of a run.", ["history.History", "history.by_method", "history.COSTS"]),
    "methods": (
        "Methods", "A frozen dataclass each; its fields are the paper's hyper-parameters.",
        [
            "methods.METHODS", "methods.FedPAGE", "methods.PAGE", "methods.FedAvg", "methods.FedProx",
            "methods.SCAFFOLD", "methods.VRLSGD", "methods.SLocalSVRG", "methods.FedPAGEFull", "methods.SCAFFOLDFull",
            "methods.FedAvgFull", "methods.walks", "methods.fair",
        ],
    ),
    "problems": (
        "Problems", "What is minimised, and what a client may ask of its rows.",
        [
            "problems.RobustRegression", "problems.LogisticRegression", "problems.LeastSquares", "problems.Quadratic",
            "problems.RowProblem",
        ],
    ),
    "torch": (
        "Torch models", "Any torch module as a problem, and its files (`pip install 'fedpage[torch]'`).",
        [
            "problems.torch_model.TorchProblem", "problems.torch_files.save_model", "problems.torch_files.load_model",
            "problems.torch_rows.accuracy",
        ],
    ),
    "callbacks": (
        "Callbacks", "What watches a run: the best model, a progress bar, trackers.",
        ["callbacks.Callback", "callbacks.Best", "trackers.Track"],
    ),
    "data": (
        "Data", "Reading, generating and dividing data.",
        [
            "data.load", "data.census", "data.Dataset", "data.Partition", "data.blocks", "data.shuffled",
            "data.by_label", "data.dirichlet", "data.power_law",
        ],
    ),
    "theory": (
        "Theory, planning, tuning", "Theorems as functions, what they say a run costs, and what runs say.",
        ["theory", "plan", "tune"],
    ),
    "faults": ("Faults", "Clients that fail, and what is done about it.", ["faults.Faults", "arrivals.Policy"]),
    "types": ("Types", "The words that every room shares.", ["types"]),
    "engines": (
        "For engines", "What an engine of one's own is made of.",
        [
            "serving.Server", "running.Run", "running.Engine", "running.Interrupted", "arrivals.Post",
            "arrivals.Answer", "arrivals.Letter", "arrivals.GaveUp", "rounds.Rounds", "rounds.Tally",
            "rounds.Memories",
        ],
    ),
    "draws": ("Draws and sums", "Random numbers as functions, and the one order of sums.", ["draws", "sums"]),
    "plots": ("Plots and reports", "Curves, tables and pages from histories.", ["plot", "report", "webpage"]),
}  # fmt: skip
"""A page's name, its title, a sentence, and the names on it, below `fedpage`."""


def pages() -> dict[str, str]:
    """The reference's pages as Markdown, by path."""
    made = {"api/index.md": _contents()}
    for name, (title, about, things) in PAGES.items():
        body = "\n\n".join(f"::: fedpage.{thing}" for thing in things)
        made[f"api/{name}.md"] = f"# {title}\n\n{about}\n\n{body}\n"
    return made


def _contents() -> str:
    lines = [
        "# API reference\n",
        "`import fedpage as fp` gives what is written with `fp.`; the rest is in its module.\n",
    ]
    lines += ["| page | what is on it |", "|---|---|"]
    for name, (title, about, things) in PAGES.items():
        shown = ", ".join(f"[`{_called(thing)}`][fedpage.{thing}]" for thing in things)
        lines.append(f"| [{title}]({name}.md) | {about} {shown} |")
    return "\n".join(lines) + "\n"


def _called(thing: str) -> str:
    """What people write for it."""
    name = thing.rpartition(".")[2]
    return f"fp.{name}" if name in fp.__all__ else thing
