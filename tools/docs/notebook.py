"""Writes examples/from_data_to_plot.ipynb, with what it prints and draws: `python tools/docs/notebook.py`.

A test runs it again and compares.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[2] / "examples" / "from_data_to_plot.ipynb"
CELLS = [
    """# From data to a plot

Three federated methods on data that nobody has to download, compared at equal communication. `pip install fedpage` and
a notebook are all that is needed.""",
    """import fedpage as fp

data = fp.load("census", skew=1.0)  # generated; 0/1 features, labels -1/+1
data""",
    """Divide it among 500 clients and choose an objective. `shuffled` is the easy case, `label_shards` the hard one: most
clients then have seen one label only.""",
    """division = fp.label_shards(data.y, 500)
problem = fp.LogisticRegression(data, division, reg="nonconvex", alpha=0.1)
problem.describe()""",
    """What would be safe? A theorem answers before anything is run. Its steps are small; runs may be bolder.""",
    """fp.FedPAGE.from_theory(problem, S=10, K=5)""",
    """methods = [
    fp.FedPAGE(S=10, K=5, eta_g=0.3),
    fp.SCAFFOLD(S=20, K=5, eta_l=0.06, b=4),
    fp.FedAvg(S=20, K=5, eta_l=0.06, b=4),
]  # about 20 clients a round, one effective step: 0.3
histories = fp.sweep(problem, methods, rounds=300, seeds=3, record_every=10)""",
    """for history in histories[::3]:
    spent = history.bytes_to("grad_norm", 0.02) / 1e6
    print(f"{history.label:9} gradient norm {history.last('grad_norm'):.1e}; 0.02 after {spent:.1f} MB")""",
    """import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for axis, cost in zip(axes, ("round", "bytes"), strict=True):
    fp.report.plots.curves(histories, x=cost, ax=axis)""",
    """Medians over three seeds, with their middle half. FedPAGE's first round calls everybody, which the right panel
shows as a late start; after that it goes down while the others, whose clients have seen one label each, stop at a
floor. Next: the [documentation](../docs/index.md), a [method of your own](../docs/add-method.md), a
[neural network](../docs/torch.md).""",
]
"""Ten cells; those that begin like prose are Markdown."""


def is_text(cell: str) -> bool:
    """Whether a cell is Markdown."""
    return cell.startswith(("#", "Divide", "What", "Medians"))


def made() -> Any:
    """The notebook, not run yet."""
    import nbformat

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for number, cell in enumerate(CELLS):
        new = (
            nbformat.v4.new_markdown_cell(cell)
            if is_text(cell)
            else nbformat.v4.new_code_cell(cell)
        )
        new["id"] = f"cell-{number}"  # the same file for the same cells
        book.cells.append(new)
    return book


def executed(book: Any) -> Any:
    """The same notebook with its outputs, run by a real kernel in an empty directory."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        client = NotebookClient(
            book, timeout=300, kernel_name="python3", resources={"metadata": {"path": scratch}}
        )
        client.execute(env=environment)
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    book.metadata.pop("language_info", None)
    return book


def texts(book: Any) -> list[str]:
    """What each code cell printed or returned, as text."""
    found = []
    for cell in book.cells:
        parts = [
            out.get("text") or out.get("data", {}).get("text/plain", "")
            for out in cell.get("outputs", []) if "image/png" not in out.get("data", {})
        ]  # fmt: skip
        found.append("".join(parts))
    return found


if __name__ == "__main__":
    import nbformat

    nbformat.write(executed(made()), PATH)
    print(PATH)
