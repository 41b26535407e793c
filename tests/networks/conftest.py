"""Skip the tests of this folder where torch is not installed; test_without_torch.py says so."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for nets.py
NEED_TORCH = [
    "nets.py",
    "test_dropout.py",
    "test_gradients.py",
    "test_models.py",
    "test_optimizers.py",
    "test_refusals.py",
    "test_training.py",
]
collect_ignore_glob = [] if find_spec("torch") else NEED_TORCH
