"""Tables of mutants, a file for each family.

Each module has `TABLES`, the edits of each file below src/fedpage, and may name in `LAWS` the file
in tests/laws that catches most of them; the others run only if that one finds nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def load_tables() -> list[ModuleType]:
    """Import every module of this package that has `TABLES`."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [module for module in modules if hasattr(module, "TABLES")]
