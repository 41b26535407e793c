"""Tests of the notebook: its outputs are those of a new run."""

import base64

import gallery
import notebook
import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="needs a notebook's libraries: pip install 'fedpage[notebook]'"
)
pytest.importorskip(
    "nbclient", reason="needs a notebook's libraries: pip install 'fedpage[notebook]'"
)
pytest.importorskip(
    "ipykernel", reason="needs a notebook's libraries: pip install 'fedpage[notebook]'"
)
pytestmark = pytest.mark.slow  # runs the notebook in a kernel


@pytest.mark.parametrize("name", notebook.NOTEBOOKS)
def test_outputs_are_those_of_a_new_run(name):
    stored = nbformat.read(notebook.FOLDER / f"{name}.ipynb", as_version=4)
    assert [cell.source for cell in stored.cells] == notebook.NOTEBOOKS[name]
    assert len(stored.cells) >= 10
    again = notebook.execute(notebook.create(name))
    for before, now in zip(notebook.outputs(stored), notebook.outputs(again), strict=True):
        assert gallery.is_similar(before, now), now
    for book in (stored, again):
        (picture,) = [
            out.data["image/png"] for cell in book.cells for out in cell.get("outputs", [])
            if "image/png" in out.get("data", {})
        ]  # fmt: skip
        assert len(base64.b64decode(picture)) > 5_000


@pytest.mark.parametrize("name", notebook.NOTEBOOKS)
def test_the_file_contains_no_path_of_a_machine(name):
    text = (notebook.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert "/home/" not in text
    assert "/tmp/" not in text
    assert '"execution"' not in text
