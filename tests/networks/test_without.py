"""What users without torch are told; and the reason why the other tests of it are skipped."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

import fedpage as fp


def test_torch_is_installed():
    if find_spec("torch") is None:
        pytest.skip(
            "torch is not installed: pip install 'fedpage[torch]' (all tests of torch models are left out)"
        )


@pytest.mark.parametrize("name", ["TorchProblem", "load_model", "save_model"])
def test_the_extra_is_named(name, monkeypatch):
    for module in [
        one for one in sys.modules if one.startswith(("torch", "fedpage.problems.torch_"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(fp), name, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'fedpage\[torch\]'"):
        getattr(fp, name)


def test_importing_fedpage_imports_no_torch():
    import subprocess

    code = "import sys, fedpage, fedpage.cli; fedpage.simulate; fedpage.Track; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
