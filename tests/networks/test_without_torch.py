"""Check fedpage without torch, and report the skipped tests of torch models."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import fedpage as fp


def test_torch_is_installed():
    if find_spec("torch") is None:
        pytest.skip("tests of torch models need torch: pip install 'fedpage[torch]'")


@pytest.mark.parametrize("name", ["TorchProblem", "load_model", "save_model"])
def test_import_error_names_the_extra(name, monkeypatch):
    prefixes = ("torch", "fedpage.problems.torch")
    for module in [loaded for loaded in sys.modules if loaded.startswith(prefixes)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(fp), name, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'fedpage\[torch\]'"):
        getattr(fp, name)


def test_importing_fedpage_does_not_import_torch():
    code = (
        "import sys, fedpage, fedpage.cli; fedpage.simulate; fedpage.Track; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
