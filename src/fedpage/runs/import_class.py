"""Import a user's class from a file: the methods and losses that `file.py@Class` names."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedpage.core.files import import_object
from fedpage.runs.config import field_types


def import_class(path: Path, name: str, noun: str) -> type | None:
    """Import a class from a Python file, with the types of its fields if it is a dataclass.

    Args:
        path: the file.
        name: the class.
        noun: what the class should be, for the error message, such as "method".

    Returns:
        The class, or None if the file has no class of this name.

    Raises:
        InputError: the file cannot be imported.
    """
    found = import_object(path, name, noun, _resolve_types)
    return found if isinstance(found, type) else None


def _resolve_types(found: object) -> None:
    """Resolve annotations in quotes while the module can be looked up."""
    if isinstance(found, type) and dataclasses.is_dataclass(found):
        field_types(found)
