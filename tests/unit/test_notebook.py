"""The notebook goes from data to a plot in ten cells, and shows what it shows."""

from __future__ import annotations

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


def test_it_says_again_what_it_says():
    kept = nbformat.read(notebook.PATH, as_version=4)
    assert [cell.source for cell in kept.cells] == notebook.CELLS
    assert len(kept.cells) == 10
    again = notebook.executed(notebook.made())
    for before, now in zip(notebook.texts(kept), notebook.texts(again), strict=True):
        assert gallery.alike(before, now), now
    for book in (kept, again):
        (picture,) = [
            out.data["image/png"] for cell in book.cells for out in cell.get("outputs", [])
            if "image/png" in out.get("data", {})
        ]  # fmt: skip
        assert len(base64.b64decode(picture)) > 20_000


def test_it_has_no_trace_of_a_machine():
    text = notebook.PATH.read_text(encoding="utf-8")
    assert "/home/" not in text
    assert "/tmp/" not in text
    assert '"execution"' not in text
