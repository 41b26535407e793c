"""These tests need torch; without it they are skipped, and say so. A folder named torch would pass for the package."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if find_spec("torch") else ["nets.py", "test_torch.py", "test_training.py"]
