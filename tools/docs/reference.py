"""Say which names the pages of the API reference show; the text is that of their docstrings."""

from __future__ import annotations

import fedpage as fp

PAGES: dict[str, tuple[str, str, list[str]]] = {
    "running": (
        "Running", "One run, many runs, and when they end.",
        ["engine.simulate.simulate", "studies.sweep.sweep", "engine.simulation.Simulation", "engine.stopping.Stop", "runs.store.RunDirectory"],
    ),
    "history": ("History", "The record of a run.", ["runs.history.History", "runs.history.by_method", "core.types.COSTS"]),
    "methods": (
        "Methods", "A frozen dataclass each; its fields are the paper's hyper-parameters.",
        [
            "methods.METHODS", "methods.FedPAGE", "methods.PAGE", "methods.FedAvg", "methods.FedProx",
            "methods.SCAFFOLD", "methods.VRLSGD", "methods.SLocalSVRG", "methods.FedPAGEFull", "methods.SCAFFOLDFull",
            "methods.FedAvgFull", "core.local_steps", "methods.fair",
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
            "problems.torch.problem.TorchProblem", "problems.torch.files.save_model", "problems.torch.files.load_model",
            "problems.torch.rows.accuracy",
        ],
    ),
    "callbacks": (
        "Callbacks", "What watches a run: the best model, a progress bar, trackers.",
        ["callbacks.base.Callback", "callbacks.base.Best", "callbacks.trackers.Track"],
    ),
    "data": (
        "Data", "Reading, generating and dividing data.",
        [
            "data.load", "data.census", "data.Dataset", "data.Partition", "data.blocks", "data.iid",
            "data.label_shards", "data.dirichlet", "data.power_law",
        ],
    ),
    "theory": (
        "Theory, planning, tuning", "Theorems as functions, what they say a run costs, and what runs say.",
        ["theory", "theory.planner", "studies.tune"],
    ),
    "faults": ("Faults", "Clients that fail, and what is done about it.", ["engine.faults.Faults", "engine.policy.Policy"]),
    "types": ("Types", "The words that every room shares.", ["core.types", "core.errors"]),
    "engines": (
        "For engines", "What an engine of one's own is made of.",
        [
            "engine.base.Server", "engine.loop.Run", "engine.loop.Engine", "engine.loop.Interrupted", "engine.policy.Post",
            "engine.policy.Answer", "engine.policy.Letter", "engine.policy.RoundFailed", "engine.round.Rounds", "engine.round.Costs",
            "engine.round.ClientStates",
        ],
    ),
    "draws": ("Draws and sums", "Random numbers as functions, and the one order of sums.", ["core.random", "core.aggregate"]),
    "plots": ("Plots and reports", "Curves, tables and pages from histories.", ["report.plots", "report.summary", "report.page"]),
}  # fmt: skip
"""A page's name, its title, a sentence, and the names on it, below `fedpage`."""


def pages() -> dict[str, str]:
    """Return the Markdown of the reference's pages, by path."""
    import docstrings  # needs griffe, which only the docs extra installs

    written = {"api/index.md": _contents()}
    for name, (title, about, paths) in PAGES.items():
        body = "\n\n".join(docstrings.render(path, _public_name(path)) for path in paths)
        written[f"api/{name}.md"] = f"# {title}\n\n{about}\n\n{body}\n"
    return written


def _contents() -> str:
    lines = [
        "# API reference\n",
        "A name with `fp.` is available after `import fedpage as fp`. Other names are imported from "
        "their module.\n",
        "| page | names |",
        "|---|---|",
    ]
    for name, (title, about, paths) in PAGES.items():
        links = ", ".join(f"[`{_public_name(path)}`]({name}.md#fedpage.{path})" for path in paths)
        lines.append(f"| [{title}]({name}.md) | {about} {links} |")
    return "\n".join(lines) + "\n"


def _public_name(path: str) -> str:
    name = path.rpartition(".")[2]
    return f"fp.{name}" if name in fp.__all__ else f"fedpage.{path}"
