"""Import a user's class or function from a file: what `file.py@name` means."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.files import refuse_special


def import_object(
    path: Path, name: str, noun: str, inspect: Callable[[object], object] | None = None
) -> object:
    """Import a class or a function from a Python file.

    The module is not left in `sys.modules`, so that what is imported is sent to other processes by
    value: those could not import the file by its name.

    Args:
        path: the file.
        name: the class or function.
        noun: what it should be, for the error message, such as "method".
        inspect: called with what was found while its module can still be looked up.

    Returns:
        The object, or None if the file has none of this name.

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
        found: object = getattr(module, name, None)
        if inspect is not None:
            inspect(found)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from None
    finally:
        del sys.modules[path.stem]
        if before is not None:
            sys.modules[path.stem] = before
    return found
