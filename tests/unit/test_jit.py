"""Check that compiled kernels follow the files that they are compiled from."""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches

import pytest


@pytest.mark.parametrize("uses", ["helper.__file__,", ""])
def test_a_kernel_is_compiled_again_where_a_file_that_it_uses_has_changed(
    tmp_path, monkeypatch, uses
):
    """Numba looks at the kernel's own file only: without `uses` it loads the old code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "kernel.py").write_text(
        "from functools import partial\n"
        "import helper\n"
        "from fedpage.core.jit import compile_kernel\n"
        "add = helper.add\n"
        f"@partial(compile_kernel, uses=({uses}))\n"
        "def kernel(x):\n"
        "    return add(x)\n"
    )
    found = []
    for number in ("1.0", "20.0"):
        (tmp_path / "helper.py").write_text(
            "from fedpage.core.jit import compile_kernel\n"
            "@compile_kernel\n"
            f"def add(x):\n    return x + {number}\n"
        )
        invalidate_caches()
        found.append(import_module("kernel").kernel(1.0))
        del sys.modules["kernel"], sys.modules["helper"]
    assert found == ([2.0, 21.0] if uses else [2.0, 2.0])
