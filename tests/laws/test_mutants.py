"""A few mutants in every run of the tests; `make mutants` has them all."""

from __future__ import annotations

import os

import pytest
from mutants import MUTANTS, caught

A_FEW = (
    "SCAFFOLD: correction never applied",
    "FedPAGE: x_prev is stale",
    "VRL-SGD: update has the wrong sign",
)


@pytest.mark.skipif("FEDPAGE_MUTANT" in os.environ, reason="a mutant's laws do not breed mutants")
@pytest.mark.parametrize("name", A_FEW)
def test_the_laws_catch(name):
    (mutant,) = [m for m in MUTANTS if m.name == name]
    dead, _, law = caught(mutant)
    assert dead
    assert law.startswith("test_")


def test_every_mutant_changes_one_place():
    from mutants import ROOT

    assert len(MUTANTS) >= 12
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    if "FEDPAGE_MUTANT" not in os.environ:
        for mutant in MUTANTS:
            text = (ROOT / "src" / "fedpage" / mutant.file).read_text(encoding="utf-8")
            assert text.count(mutant.old) == 1, mutant.name
            assert mutant.old != mutant.new
