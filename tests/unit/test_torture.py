"""A short version of `make torture`."""

import random
import signal
from pathlib import Path

import pytest

torture = pytest.importorskip(
    "torture", reason="forked processes and their limits need a Unix", exc_type=ImportError
)

pytestmark = pytest.mark.slow  # starts processes and kills them


def quiet(text):
    """Print nothing."""


def test_ten_kills_change_no_bit():
    runs, kills, _ = torture.kill_runs(seed=1, kills_wanted=10, say=quiet)
    assert runs >= 1
    assert kills >= 10


def test_sigterm_and_ctrl_c_leave_a_resumable_run_and_exit_130(tmp_path):
    torture.interrupt_command(tmp_path, (signal.SIGTERM, signal.SIGINT), say=quiet)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are found in /proc")
def test_workers_end_when_their_command_is_killed(tmp_path):
    torture.orphan_workers(tmp_path, random.Random(0), ["compare", "study"], say=quiet)
