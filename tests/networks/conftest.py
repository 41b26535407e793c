"""Skip the tests of this folder where torch is not installed; test_without_torch.py says so."""

import functools
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for nets.py
if not find_spec("torch"):
    alone = {"conftest.py", "test_without_torch.py"}
    collect_ignore = [p.name for p in Path(__file__).parent.glob("*.py") if p.name not in alone]


@pytest.fixture
def traced(monkeypatch):
    """Let torch.compile trace functions without generating code, which takes most of the time."""
    import torch

    eager = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", eager)
    yield
    torch.compiler.reset()  # what is left of a trace cannot be freed at the end of the process
