"""List the names on each page of the API reference, whose text is their docstrings."""

from __future__ import annotations

import fedpage as fp

PAGES: dict[str, tuple[str, str, list[str]]] = {
    "running": (
        "Running", "Run a method once or many times, and decide when a run ends.",
        [
            "engine.simulate.simulate", "runs.spec.RunOptions", "runs.spec.RunSpec",
            "studies.study.sweep", "engine.simulate.Simulation", "engine.stopping.Stop",
            "core.columns.Target", "runs.store.RunStore",
        ],
    ),
    "history": (
        "History", "The record of a run, and many runs as one table.",
        [
            "runs.history.History", "runs.frame.Runs", "report.titles.by_method",
            "core.columns.COLUMNS", "core.columns.Cost", "core.columns.Target",
        ],
    ),
    "methods": (
        "Methods",
        "Each method is a frozen dataclass whose fields are the paper's hyper-parameters.",
        [
            "methods.METHODS", "methods.FedPAGE", "methods.PAGE", "methods.FedAvg",
            "methods.FedProx", "methods.SCAFFOLD", "methods.VRLSGD", "methods.SLocalSVRG",
            "methods.SecantPAGE",
            "core.local_steps", "core.optimizers", "methods.schedules",
            "methods.registry", "methods.fair", "testing",
        ],
    ),
    "codecs": (
        "Codecs", "Compression of replies and messages, as values.",
        ["codecs", "codecs.base", "codecs.message_codec"],
    ),
    "problems": (
        "Problems", "The objectives: what is minimised.",
        [
            "problems.RobustRegression", "problems.LogisticRegression", "problems.LeastSquares",
            "problems.Softmax", "problems.SquaredHinge", "problems.Huber", "problems.Poisson",
            "problems.LinearModel", "problems.Quadratic", "problems.RowProblem",
            "problems.cox.CoxModel",
            "problems.reference.reference_solution",
            "problems.scores.ClientScores",
            "problems.OBJECTIVES", "core.metrics", "core.metrics.METRICS",
        ],
    ),
    "fit": (
        "Exact fits over sites", "Newton's method over a few sites, with standard errors.",
        [
            "inference.fit",
            "inference.FitResult",
            "inference.WaldTest",
            "inference.load_federated",
            "inference.FederatedModel",
        ],
    ),
    "sklearn": (
        "scikit-learn estimators", "Federated models with the interface of scikit-learn.",
        ["sklearn.FederatedClassifier", "sklearn.FederatedRegressor"],
    ),
    "torch": (
        "Torch models", "A torch module as a problem (`pip install 'fedpage[torch]'`).",
        [
            "problems.torch.problem.TorchProblem", "problems.torch.files.save_model",
            "problems.torch.files.load_model", "problems.torch.norms.to_group_norm",
        ],
    ),
    "callbacks": (
        "Callbacks", "Observers of a run: progress, the best model, trackers.",
        [
            "callbacks.base", "callbacks.progress.Progress", "callbacks.best_model.Best",
            "callbacks.trackers.Track", "callbacks.checkpointing.Checkpointing",
        ],
    ),
    "data": (
        "Data", "Read, generate and divide data.",
        [
            "data.load", "data.census", "data.Dataset", "data.Partition", "data.by_id",
            "data.blocks", "data.iid", "data.label_shards", "data.dirichlet",
            "data.dirichlet_yurochkin", "data.dirichlet_hsu", "data.power_law",
            "data.quantity_dirichlet", "data.shift_features", "data.from_huggingface",
            "data.client_datasets",
        ],
    ),
    "theory": (
        "Theory, planning, tuning",
        "Theorems as functions, the planner, the search for hyper-parameters, and choose.",
        [
            "theory", "theory.planner", "studies.plan", "studies.tuning", "studies.tuning_result",
            "studies.candidates",
        ],
    ),
    "statistics": (
        "Statistics and tables",
        "Comparisons of methods over seeds and over problems, and tables of them.",
        [
            "studies.comparison", "studies.statistics",
            "report.diagrams.plot_critical_difference", "report.tables",
        ],
    ),
    "studies": (
        "Studies", "Problems x methods x grids x seeds, and what is made of their runs.",
        [
            "studies.study", "studies.grid", "studies.results",
            "studies.run_archive", "studies.claims",
        ],
    ),
    "faults": (
        "Faults", "Clients that fail, the policy for them, and devices for simulated time.",
        ["engine.faults.Faults", "engine.policy.Policy", "engine.devices",
         "engine.aggregation", "engine.fixed_point", "engine.outliers", "engine.privacy"],
    ),
    "types": (
        "Types", "Protocols, types and errors.", ["core.types", "core.columns", "core.errors"],
    ),
    "engines": (
        "For engines", "The parts of an engine of your own.",
        [
            "engine.round", "engine.transport", "engine.collect", "engine.local", "engine.loop",
            "core.messages",
        ],
    ),
    "draws": (
        "Random numbers and sums",
        "Random numbers as pure functions, and sums in client order.",
        ["core.random", "core.messages.add_rows", "core.messages.mean_rows"],
    ),
    "plots": (
        "Plots and reports", "Curves, tables and pages from histories.",
        [
            "report.write_report", "report.plots", "report.bands", "report.style", "report.titles",
            "report.figure_file", "report.diagrams.search_panels",
            "report.data_summary.plot_partition", "report.summary", "report.page",
            "report.watch", "runs.status",
        ],
    ),
}  # fmt: skip
"""The title, a sentence and the names (below `fedpage`) of each page."""


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
        "A name with `fp.` is available after `import fedpage as fp`. Other names are imported "
        "from their module.\n",
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
