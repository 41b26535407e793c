"""Write the notebooks of examples/ with their outputs.

    python tools/docs/notebook.py from_data_to_plot

A test runs the notebooks again and compares the outputs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[2] / "examples"
FROM_DATA_TO_PLOT = [
    """# From data to a plot

This notebook compares three federated methods at equal communication. It needs
`pip install fedpage` and no download: the data set is bundled.""",
    """import fedpage as fp

data = fp.load("census", skew=1.0)  # generated; 0/1 features, labels -1/+1
data""",
    """Divide the data among 500 clients and choose an objective. `fp.iid` is the easy case and
`fp.label_shards` the hard one: most clients then have rows of one label only.""",
    """division = fp.label_shards(data.y, 500)
problem = fp.LogisticRegression(data, division, reg="nonconvex", alpha=0.1)
problem.describe()""",
    """What step size is safe? A theorem answers before a run. Its step sizes are small; in practice
larger ones work.""",
    """fp.FedPAGE.from_theory(problem, S=10, K=5)""",
    """methods = [
    fp.FedPAGE(S=10, K=5, eta_g=0.3),
    fp.SCAFFOLD(S=20, K=5, eta_l=0.06, b=4),
    fp.FedAvg(S=20, K=5, eta_l=0.06, b=4),
]  # about 20 clients per round; the effective step is 0.3
histories = fp.sweep(problem, methods, rounds=300, seeds=3, record_every=10)""",
    """for history in histories[::3]:
    megabytes = history.cost_to(0.02, cost="bytes") / 1e6
    print(f"{history.label:9} ends at a gradient norm of {history.last('grad_norm'):.1e}")
    print(f"{'':9} and reaches 0.02 after {megabytes:.1f} MB")""",
    """import matplotlib.pyplot as plt
from fedpage.report import plots

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for axis, cost in zip(axes, ("round", "bytes"), strict=True):
    plots.curves(histories, x=cost, ax=axis)""",
    """The curves are medians over three seeds with the middle half. FedPAGE's first round calls all
clients, which the right panel shows as a late start. After that its gradient norm keeps falling,
while the other methods stop at a floor.

Next: the [documentation](../docs/index.md), a [method of your own](../docs/add-method.md), a
[neural network](../docs/torch.md).""",
]
THREE_HOSPITALS = [
    """# Three hospitals

Three hospitals want odds ratios of a complication and hazard ratios of death. No hospital may send
its patients' rows away. This notebook simulates what they would get from a federation: the table of
the pooled analysis, after a few exchanges of sums. It needs `pip install fedpage`.""",
    """import numpy as np
import polars as pl
import fedpage as fp

def patients(hospital, n, seed):  # invented
    rng = np.random.default_rng(seed)
    age = np.round(rng.normal(62 + 2 * seed, 11, n))
    stage = rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    smoker = rng.choice(["no", "yes"], n, p=[0.7, 0.3])
    risk = 0.03 * (age - 65) + 0.7 * (stage == "III") + 0.5 * (smoker == "yes")
    days = rng.exponential(1500 * np.exp(-risk))
    columns = {"hospital": [hospital] * n, "age": age, "stage": stage, "smoker": smoker}
    columns["complication"] = rng.binomial(1, 1 / (1 + np.exp(1 - risk)))
    columns |= {"days": np.ceil(np.minimum(days, 1000)), "died": (days < 1000).astype(int)}
    return pl.DataFrame(columns)

sizes = {"Bern": 320, "Oslo": 410, "Rome": 230}
for seed, (hospital, n) in enumerate(sizes.items()):
    patients(hospital, n, seed).write_csv(f"{hospital}.csv")
tables = pl.concat([pl.read_csv(f"{hospital}.csv") for hospital in sizes])
tables.head(3)""",
    """The column `hospital` says whose row each is. In the simulation the rows lie in one table,
and every hospital computes sums over its own.""",
    """result = fp.fit(tables.drop("days", "died"), label="complication", client="hospital")
result""",
    """print(result.ratios().round(3))  # odds ratios and their intervals
print(result.wald_test("stage"))
print(f"{result.exchanges} exchanges, {result.bytes_up + result.bytes_down:,} bytes")""",
    """result.plot()  # a forest plot""",
    """A Cox model has a baseline hazard for each hospital, and two outcomes: time and event.""",
    """survival = fp.fit(
    tables.drop("complication"), "cox", label=("days", "died"), client="hospital"
)
print(survival.summary(ratios=True))""",
    """What would the pooled analysis give? All rows at one site are a federation of one.""",
    """pooled = tables.drop("days", "died", "hospital").with_columns(site=pl.lit("all"))
same = fp.fit(pooled, label="complication", client="site")
print(np.abs(same.params / result.params - 1).max() < 1e-6)
print(np.abs(same.bse / result.bse - 1).max() < 1e-6)""",
    """Next: [the same on a federation](../docs/fit.md#on-a-federation), where each hospital checks
what may leave it, and [the script](three_hospitals.py) that does so on one machine.""",
]
NOTEBOOKS = {"from_data_to_plot": FROM_DATA_TO_PLOT, "three_hospitals": THREE_HOSPITALS}
"""The cells of each notebook."""


def is_text(cell: str) -> bool:
    """Return whether a cell is Markdown."""
    words = ("# ", "Divide", "What", "The c", "A Cox", "Next")
    return cell.startswith(words)


def create(name: str) -> NotebookNode:
    """Return a notebook without outputs."""
    import nbformat

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for number, cell in enumerate(NOTEBOOKS[name]):
        new = (
            nbformat.v4.new_markdown_cell(cell)
            if is_text(cell)
            else nbformat.v4.new_code_cell(cell)
        )
        new["id"] = f"cell-{number}"  # random ids would change the file each time
        book.cells.append(new)
    return book


def execute(book: NotebookNode) -> NotebookNode:
    """Run the notebook with a real kernel in an empty directory and add its outputs."""
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


def outputs(book: NotebookNode) -> list[str]:
    """Return what each code cell printed or returned, as text."""
    texts = []
    for cell in book.cells:
        parts = [
            out.get("text") or out.get("data", {}).get("text/plain", "")
            for out in cell.get("outputs", []) if "image/png" not in out.get("data", {})
        ]  # fmt: skip
        texts.append("".join(parts))
    return texts


if __name__ == "__main__":
    import nbformat

    for name in sys.argv[1:] or NOTEBOOKS:
        nbformat.write(execute(create(name)), FOLDER / f"{name}.ipynb")
        print(f"examples/{name}.ipynb")
