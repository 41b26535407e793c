"""Open, write and import files: whole files or nothing, and `file.py@name`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from fedpage.core.errors import InputError, short_repr


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or a directory, which may not exist yet.

    Raises:
        InputError: It is not a path, or it names a pipe, a socket or a device, whose reading may
            not end.
    """
    try:
        file = Path(path)
        is_special = file.exists() and not file.is_file() and not file.is_dir()
    except (TypeError, ValueError, OSError):
        raise InputError(f"{short_repr(path)} is not the path of a file") from None
    if is_special:
        raise InputError(f"{file}: is not a regular file")
    return file


def check_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file; raise an InputError if it cannot be read."""
    file = check_path(path)
    if file.is_dir():
        raise InputError(f"{path} is a directory; give the path of a file")
    try:
        file.open("rb").close()
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if is_gone else f"cannot be read ({error.strerror})"
        raise InputError(f"{path}: {reason}") from None
    return file


def sync_folder(folder: Path) -> None:
    """Wait until the names of a directory's files are on the disk."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # a rename lasts only once its directory is on the disk
    finally:
        os.close(handle)


def put(path: Path, data: bytes, *, private: bool = False, is_durable: bool = True) -> None:
    """Write a file as a whole, so that readers see its old bytes or its new ones.

    Args:
        path: The file; an existing one is replaced.
        data: All of its bytes.
        private: Whether only its owner can read it, whatever the umask.
        is_durable: Whether to wait until the bytes are on the disk, so that a crash leaves the old
            file or the new one, too.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(scratch, "wb", opener=_open_private if private else None) as stream:
            stream.write(data)
            if is_durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(scratch, path)
        if is_durable:
            sync_folder(path.parent)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    handle = os.open(path, flags, 0o600)
    if sys.platform != "win32":
        os.fchmod(handle, 0o600)  # it may exist, after a crash
    return handle


def import_object(
    path: Path, name: str, noun: str, inspect: Callable[[object], object] | None = None
) -> object:
    """Import a class or a function from a Python file.

    The module is not left in `sys.modules`, so that the object is sent to other processes by value.
    They could not import the file by its name.

    Args:
        path: The file.
        name: The class or function.
        noun: The kind of object, for the error message, such as "method".
        inspect: Called with the object while its module can still be looked up.

    Returns:
        The object, or None if the file does not define the name.

    Raises:
        InputError: The file cannot be imported.
    """
    check_file(path)
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
