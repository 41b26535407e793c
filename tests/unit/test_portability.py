"""Other systems and bare environments: nowhere to write, no /proc, modules of Unix missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedpage.core import processes
from fedpage.core.errors import InputError
from fedpage.core.jit import compile_kernel
from fedpage.core.processes import find_descendants

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fedpage"


def test_a_function_without_a_place_for_its_cache_is_compiled():
    place: dict = {}
    exec(compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec"), place)
    assert compile_kernel(place["double"])(21) == 42


def test_only_one_module_asks_for_cached_code():
    asks = re.compile(r"cache=True|enable_caching")
    found = [path.name for path in SOURCE.rglob("*.py") if asks.search(path.read_text("utf-8"))]
    assert found == ["jit.py"]


READ_ONLY = """
for folder in /var/tmp /dev/shm /tmp; do mount -t tmpfs -o ro tmpfs $folder || exit 77; done
cd / && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
  --inh-caps=+dac_read_search --ambient-caps=+dac_read_search \
  env -i PATH=/usr/bin:/bin HOME=/nonexistent "$@"
"""
"""A shell script: a user without a home, who may read all files and write none."""


@pytest.mark.slow
def test_a_user_who_may_write_nowhere_can_run():
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to become a user who may write nowhere")
    command = [sys.executable, "-m", "fedpage", "run", "fedavg", "--data", "census:rows=200",
               "--clients", "20", "--rounds", "3"]  # fmt: skip
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if re.match("(unshare|mount):", done.stderr):
        pytest.skip("needs a mount namespace of its own")
    assert done.returncode == 0, done.stderr
    assert "FedAvg" in done.stdout
    assert "Traceback" not in done.stderr
    refused = subprocess.run(
        ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", *command, "--out", "new"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stderr == "fedpage: --out new: cannot be written (Permission denied)\n"


def test_descendants_are_found_with_ps_where_there_is_no_proc(monkeypatch, tmp_path):
    if not shutil.which("ps"):
        pytest.skip("needs the command ps")
    real = processes._list_processes
    monkeypatch.setattr(processes, "_list_processes", lambda: real(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in find_descendants(os.getpid())
        child.communicate(b"\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="neither /proc nor the command ps"):
        find_descendants(os.getpid())
