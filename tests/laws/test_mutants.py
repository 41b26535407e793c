"""Check that every mutant applies, and that the laws catch a few; `make mutants` runs them all."""

import ast
import os
import subprocess
import sys
import textwrap
from functools import cache

import pytest
from mutants import MUTANTS, ROOT, Mutant, apply

A_FEW = [
    "SCAFFOLD.direction: correction never applied",
    "FedPAGE.server: x_prev is stale",
    "SAG: any codec is allowed",
]
"""Mutants of two functions, and one of a class, which needs a copy of the package."""
no_mutants_of_mutants = pytest.mark.skipif(
    "FEDPAGE_MUTANT" in os.environ, reason="these laws already run on a mutant"
)


@pytest.mark.slow
@no_mutants_of_mutants
def test_the_laws_catch_a_few():
    command = [sys.executable, str(ROOT / "tests" / "mutants.py"), *A_FEW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "3 of 3 mutants caught" in done.stdout, done.stdout + done.stderr


def test_there_are_mutants_with_names_of_their_own():
    assert len(MUTANTS) >= 63
    assert len({(m.file, str(m)) for m in MUTANTS}) == len(MUTANTS)


@cache
def dump(source):
    return ast.dump(ast.parse(textwrap.dedent(source)))


@no_mutants_of_mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_changes_one_place(mutant):
    """An edit that does not apply is refused, and the new code is not the old one."""
    apply(mutant, mutant.source)
    assert dump(mutant.old) != dump(mutant.new)


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("k=a", "k=b", "def f(a, b):\n    g(k=b)\n    c = a\n"),
        ("c = a", "c = b\nd = c", None),
        ("c=a", "c = (a - b) * 3", "def f(a, b):\n    g(k=a)\n    c = (a - b) * 3\n"),
        ("c = a", "c = b", "def f(a, b):\n    g(k=a)\n    c = b\n"),
        ("g(k=a)", "b", "def f(a, b):\n    b\n    c = a\n"),
        ("a", "b", None),
        ("missing", "b", None),
    ],
)
def test_an_edit_replaces_the_one_matching_node(old, new, result):
    mutant, source = Mutant("m", "f.py", "f", old, new), "def f(a, b):\n    g(k=a)\n    c = a\n"
    if result is None:
        with pytest.raises(ValueError, match=r"not once|unpack|in the place of"):
            apply(mutant, source)
    else:
        assert ast.unparse(apply(mutant, source)) == result.strip()
