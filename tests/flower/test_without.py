"""fedpage without Flower."""

import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="the tests of fedpage[flower] need flwr: pip install 'fedpage[flower]'",
)
def test_flower_is_here():
    """Make a run without Flower report that its tests were skipped."""


def test_the_package_does_not_import_flower():
    code = "import sys, fedpage, fedpage.engine, fedpage.cli; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_deploy_names_the_extra_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, _, err = run("deploy", "keys", "here")
    assert code == 2
    assert err == "fedpage: this needs Flower: pip install 'fedpage[flower]'\n"
