"""Bits of runs, public names, help, prints and JSON are those of the files beside this one.

Where a change means to alter a name or a text, `python freeze.py names help prints json` writes the
files anew and the commit says why. Bits stay.
"""

import functools
import json
from importlib.metadata import version
from importlib.util import find_spec

import freeze
import pytest
from rows import ROWS

FROZEN = json.loads((freeze.HERE / "bits.json").read_text(encoding="utf-8"))
CONSTRAINTS = freeze.HERE.parents[1] / "constraints.txt"
problem_of = functools.cache(lambda kind: freeze.PROBLEMS[kind]())


@pytest.fixture(params=freeze.PROBLEMS)
def problem(request):
    if request.param == "network" and not find_spec("torch"):
        pytest.skip("the digests of networks need fedpage[torch]")
    if freeze.probe() != FROZEN["processor"]:
        pytest.skip("the digests were made on a processor whose elementary functions differ")
    return request.param


def frozen(row, kind):
    """Return the frozen digests of a row on a problem by setting."""
    return dict(part.split("=") for part in FROZEN["runs"][f"{row} {kind}"].split())


def test_every_row_is_frozen():
    known = {f"{row} {kind}" for kind in freeze.PROBLEMS for row in freeze.rows_of(kind)}
    assert set(FROZEN["runs"]) == known


@pytest.mark.parametrize("row", ROWS)
def test_runs_have_the_frozen_bits(problem, row, tmp_path):
    """Each row also runs with threads, and resumes, on one of the problems in turn."""
    if row not in freeze.rows_of(problem):
        pytest.skip("networks have no Hessians")
    made, expected = problem_of(problem), frozen(row, problem)
    assert freeze.run_digests(made, row) == expected
    kinds = [kind for kind in freeze.PROBLEMS if row in freeze.rows_of(kind)]
    if problem == kinds[list(ROWS).index(row) % len(kinds)]:
        assert freeze.threaded_digest(made, row) == expected["plain"]
        assert freeze.resumed_digest(made, row, tmp_path) == expected["plain"]


@pytest.mark.parametrize("what", ["names", "help", "prints", "json"])
def test_names_and_texts_are_frozen(what):
    if what == "names":
        pytest.importorskip("griffe", reason="the list of names needs fedpage[docs]")
    if what == "help" and f"typer=={version('typer')}" not in CONSTRAINTS.read_text().split():
        pytest.skip("help is frozen as the release of typer in constraints.txt lays it out")
    name, make = freeze.FILES[what]
    text = (freeze.HERE / name).read_text(encoding="utf-8")
    assert make() == (json.loads(text) if name.endswith(".json") else text)
