"""Import a user's class from a file: the methods and losses that `file.py@Class` names."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.files import refuse_special
from fedpage.runs.config import field_types


def import_class(path: Path, name: str, noun: str) -> type | None:
    """Import a class from a Python file.

    The module is not left in `sys.modules`, so that instances and functions of the class are sent
    to other processes by value: those could not import the file by its name.

    Args:
        path: the file.
        name: the class.
        noun: what the class should be, for the error message, such as "method".

    Returns:
        The class, or None if the file has no class of this name.

    Raises:
        InputError: the file cannot be imported.
    """
    refuse_special(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file to import the {noun} {name!r} from")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses and type hints look the module up
    try:
        spec.loader.exec_module(module)
        cls: object = getattr(module, name, None)
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            field_types(cls)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from None
    finally:
        del sys.modules[path.stem]
        if before is not None:
            sys.modules[path.stem] = before
    return cls if isinstance(cls, type) else None
