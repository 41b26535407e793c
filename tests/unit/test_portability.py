"""Other systems and bare environments: nowhere to write, no /proc, modules of Unix missing.

Also files that are no files: pipes and devices.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.files import import_object
from fedpage.core.jit import compile_kernel
from fedpage.flower.deploy import processes
from fedpage.flower.deploy.processes import find_descendants

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
for folder in /var/tmp /dev/shm /tmp; do
  mount --rbind $folder $folder && mount -o remount,bind,ro $folder || exit 77
done
cd / && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
  --inh-caps=+dac_read_search --ambient-caps=+dac_read_search \
  env -i PATH=/usr/bin:/bin HOME=/nonexistent NUMBA_OPT=0 PYTHONPATH="$PYTHONPATH" "$@"
"""
"""A shell script: become a user without a home who may read all files and write none.

Public folders are made read-only, not hidden: this clone and its Python may lie in one of them.
"""


@pytest.mark.slow
def test_a_user_who_may_write_nowhere_can_run():
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to become a user who may write nowhere")
    command = [sys.executable, "-m", "fedpage", "run", "fedavg", "--data", "census:rows=200",
               "--clients", "20", "--rounds", "3"]  # fmt: skip
    unprivileged = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", *command]
    env = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(unprivileged, env=env, capture_output=True, text=True, check=False)
    if re.match("(unshare|mount):", done.stderr):
        pytest.skip("needs a mount namespace of its own")
    assert done.returncode == 0, done.stderr
    assert "FedAvg" in done.stdout
    assert "Traceback" not in done.stderr
    unprivileged += ["--out", "new"]
    refused = subprocess.run(unprivileged, env=env, capture_output=True, text=True, check=False)
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


PRETEND_WINDOWS = """
import importlib, os, pkgutil, signal, sys

def modules():
    import fedpage
    for found in pkgutil.walk_packages(fedpage.__path__, "fedpage."):
        if not found.name.endswith("__main__"):
            yield found.name

def import_all():
    for name in modules():
        try:
            importlib.import_module(name)
        except ImportError as error:  # an extra that is not installed
            if (error.name or "").partition(".")[0] in UNIX:
                raise
        except SystemExit:
            pass

UNIX = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "tty"}
import_all()  # so that other packages are imported as on this system
for name in [name for name in sys.modules if name.partition(".")[0] == "fedpage"]:
    del sys.modules[name]
for name in UNIX - {"posix"}:
    sys.modules[name] = None
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGCHLD", "SIGQUIT", "alarm"):
    delattr(signal, name)
for name in ("fork", "getuid", "geteuid", "getgid", "setsid", "killpg", "fchmod", "getpgid"):
    delattr(os, name)
sys.platform = "win32"
import_all()

import tempfile
import fedpage as fp
with tempfile.TemporaryDirectory() as folder:
    problem = fp.RobustRegression(fp.load("census", rows=100), clients=10)
    first = fp.simulate(problem, fp.FedAvg(S=2), rounds=3, seed=0, out=folder)
    assert fp.History.load(folder).same(first)
print(len(list(modules())), "modules")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pretends that Linux is Windows")
def test_every_module_is_imported_without_modules_of_unix():
    done = subprocess.run(
        [sys.executable, "-c", PRETEND_WINDOWS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 150


def test_text_is_read_and_written_as_utf8():
    """Windows would use its own encoding where none is named."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            parts = [part for arg in call.args[1:2] for part in ast.walk(arg)]
            mode = [part.value for part in parts if isinstance(part, ast.Constant)]
            is_text = name in ("read_text", "write_text") or (
                isinstance(call.func, ast.Name)
                and name == "open"
                and not any("b" in str(word) for word in mode)
            )
            if is_text and not any(word.arg == "encoding" for word in call.keywords):
                found.append(f"{path.name}:{call.lineno}")
    assert not found


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "method": (".py", lambda path: import_object(path, "Own", "method")),
    "devices": (".csv", lambda path: fp.Devices.from_text(str(path))),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices in the file system")
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("reader", READERS)
def test_special_files_are_refused_at_once(reader, kind, tmp_path):
    suffix, read = READERS[reader]
    path = tmp_path / f"file{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    found = []

    def try_to_read():
        try:
            found.append(read(path))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=try_to_read, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the reader waits"
    assert isinstance(found[0], InputError), found[0]
    assert str(path) in str(found[0])
    assert "\n" not in str(found[0])
