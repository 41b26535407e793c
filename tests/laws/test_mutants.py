"""Check that every mutant applies, and that the laws catch a few; `make mutants` runs them all."""

from __future__ import annotations

import ast
import difflib
import os
from functools import cache

import pytest
from mutants import MUTANTS, ROOT, Mutant, apply, judge

A_FEW = {
    "SCAFFOLD.direction: correction never applied": "test_controlled.py",
    "FedPAGE.server: x_prev is stale": "test_replays.py",
    "VRLSGD.client: update has the wrong sign": "test_controlled.py",
}
"""Mutants, and the file in tests/laws that catches each; the other files are not run first."""
no_mutants_of_mutants = pytest.mark.skipif(
    "FEDPAGE_MUTANT" in os.environ, reason="these laws already run on a mutant"
)


@pytest.mark.slow
@no_mutants_of_mutants
@pytest.mark.parametrize("name", A_FEW)
def test_the_laws_catch(name):
    (mutant,) = [m for m in MUTANTS if str(m) == name]
    verdict = judge(mutant._replace(laws=A_FEW[name]))
    assert verdict.caught
    assert verdict.law.startswith("test_")


def test_there_are_mutants_with_names_of_their_own():
    assert len(MUTANTS) >= 63
    assert len({(m.file, str(m)) for m in MUTANTS}) == len(MUTANTS)


@cache
def read(file):
    """Return the text of a file of the package, and its syntax tree as text."""
    source = (ROOT / "src" / "fedpage" / file).read_text(encoding="utf-8")
    return source, ast.dump(ast.parse(source))


@no_mutants_of_mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_changes_one_place(mutant):
    source, tree = read(mutant.file)
    mutated = apply(mutant, source)
    assert ast.dump(ast.parse(mutated)) != tree
    matcher = difflib.SequenceMatcher(None, source.splitlines(), mutated.splitlines(), False)
    assert len([code for code, *_ in matcher.get_opcodes() if code != "equal"]) == 1


def test_formatting_does_not_matter():
    mutant = Mutant("m", "f.py", "A.f", "a + 2 * b", "a - b")
    source = (
        "class A:\n    def f(self, a, b):\n"
        "        ü = '…'; return (a\n            + 2*(b))  # why\n"
    )
    assert apply(mutant, source).endswith("return (a - b)  # why\n")


def test_precedence_is_kept():
    mutant = Mutant("m", "f.py", "f", "a * b", "a - b")
    assert apply(mutant, "def f(a, b): return a * b * 3\n") == ("def f(a, b): return (a - b) * 3\n")


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("k=a", "k=b", "def f(a, b):\n    g(k=b)\n    c = a\n"),
        ("c = a", "c = b\nd = c", None),
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
        assert apply(mutant, source) == result
