"""What happens where Flower is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="the tests of fedpage[flower] need flwr: pip install 'fedpage[flower]'",
)
def test_flower_is_here():
    """So that a run without it says that these tests were skipped."""


def test_nothing_but_the_extra_imports_flower():
    code = "import sys, fedpage, fedpage.engine, fedpage.cli; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, _, err = run("deploy", "keys", "here")
    assert code == 2
    assert err == "fedpage: this needs Flower: pip install 'fedpage[flower]'\n"
