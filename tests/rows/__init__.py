"""Every method under the laws, a file for each family, with what the laws may ask of it."""

from __future__ import annotations

import importlib
import pkgutil

from rows.row import Row, Setting

__all__ = ["ROWS", "Row", "Setting"]

ROWS: dict[str, Row] = {}
"""Every row by its name in the tests."""
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    for _name, _row in getattr(importlib.import_module(f"rows.{_module}"), "ROWS", {}).items():
        assert _name not in ROWS, f"two rows are called {_name}"
        ROWS[_name] = _row
