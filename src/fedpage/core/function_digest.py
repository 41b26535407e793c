"""Identify code: functions by their byte code and values, classes by their source files."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType

import numpy as np

Render = Callable[[object], str | None]
"""Renders a value of a type that this module does not know, or returns None."""

PACKAGE = Path(__file__).resolve().parents[1]
"""The directory of fedpage."""
_INSTALLED = (
    PACKAGE,
    *{Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")},
)
"""The directories of fedpage, of Python and of installed packages."""
_PLAIN = (bool, int, float, complex, str, bytes)
_OF_EVERY_CLASS = (
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
    "__static_attributes__", "__slots__",
)  # fmt: skip


def function_digest(*functions: object, render: Render | None = None) -> str:
    """Digest the code, closure, defaults, partial arguments and used globals of functions.

    Functions and classes of the same package, and of files that are not installed, are followed
    into the functions that they use in turn. Those of installed packages count by name. An object
    counts with its class and with those of its attributes that are numbers, text or functions.

    Args:
        *functions: Functions, methods, partials or objects that can be called.
        render: Renders values of further types, such as tensors.

    Returns:
        64 hexadecimal digits, which do not depend on addresses in memory or on line numbers.

    >>> limit = 3
    >>> first = function_digest(lambda record: record["loss"] < limit)
    >>> limit = 4
    >>> first == function_digest(lambda record: record["loss"] < limit)
    False
    """
    renderer = _Renderer(_root(functions[0]), render)
    text = " ".join(map(renderer.render, functions))
    return hashlib.sha256(text.encode()).hexdigest()


def source_digest(cls: type, files: Iterable[Path] = ()) -> str:
    """Digest the source files that a class computes with.

    These are the files of the class, of its bases, and of the functions that they use, of fedpage
    and of files that are not installed, such as the user's. A function without a file, such as one
    typed at a prompt, counts with its compiled code.

    Args:
        cls: The class.
        files: Further files that count.

    Returns:
        64 hexadecimal digits.
    """
    paths = {_locate(str(path))[0]: path for path in files}
    sources: dict[str, bytes] = {}
    own_modules = {base.__module__ for base in cls.__mro__}  # also of bases without functions
    seen: set[int] = set()
    stack: list[object] = [*cls.__mro__, *(sys.modules.get(name) for name in own_modules)]
    while stack:
        item = _unwrap(stack.pop())
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type):
            stack += vars(item).values()
        elif isinstance(item, ModuleType):
            path = Path(str(getattr(item, "__file__", None)))
            name, is_counted = _locate(str(path))
            if is_counted and path.is_file():
                paths[name] = path
        elif isinstance(item, FunctionType) and not item.__name__.startswith("__"):
            # dataclasses generate the functions with two underscores
            path = Path(item.__code__.co_filename)
            name, is_counted = _locate(str(path))
            if not is_counted and item.__module__ not in own_modules:
                continue
            if paths.get(name) == path or path.is_file():
                paths[name] = path
            else:
                sources[f"{name} {item.__qualname__}"] = _render_code(item.__code__).encode()
            used = item.__code__.co_names
            stack += [item.__globals__[part] for part in used if part in item.__globals__]
            stack.append(getattr(item, "__wrapped__", None))  # the function below a decorator
    return hash_sources(sources | {name: path.read_bytes() for name, path in paths.items()})


def hash_sources(sources: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of files and their names, in any order."""
    total = hashlib.sha256()
    for name in sorted(sources):
        total.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return total.hexdigest()


@cache  # thousands of functions are in a few files
def _locate(file: str) -> tuple[str, bool]:
    """Return the name with which a file counts, and whether it is of fedpage or not installed."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).as_posix(), True
    return path.name, not _is_installed(file)


def _is_installed(file: str) -> bool:
    return file[:7] == "<frozen" or any(map(Path(file).is_relative_to, _INSTALLED))


def _unwrap(value: object) -> object:
    """Return the plain function behind a numba function, a property or a class method."""
    for attribute in ("py_func", "fget", "__func__"):
        inner: object = getattr(value, attribute, None)
        if inner is not None:
            return inner
    return value


def _root(value: object) -> str:
    """Return the name of the package that a function or an object belongs to."""
    module = getattr(value, "__module__", None)
    return (module if isinstance(module, str) else "").partition(".")[0]


class _Renderer:
    """Render values as text that is the same in every process."""

    def __init__(self, package: str, further: Render | None) -> None:
        self._package, self._further = package, further
        self._seen: dict[int, tuple[int, object]] = {}  # a number, and the value to keep it alive

    def render(self, value: object) -> str:
        if value is None or isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray):
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return f"{value.dtype} {value.shape} {digest}"
        text = None if self._further is None else self._further(value)
        if text is not None:
            return text
        if id(value) in self._seen:  # a function that calls itself, a list that holds itself
            return f"again {self._seen[id(value)][0]}"
        self._seen[id(value)] = len(self._seen), value
        return self._render_new(value)

    def _render_new(self, value: object) -> str:
        if isinstance(value, partial):
            return f"partial {self.render((value.func, value.args, value.keywords))}"
        if isinstance(value, Mapping):
            keys = sorted(value, key=repr)
            return "{" + " ".join(f"{key!r}: {self.render(value[key])}" for key in keys) + "}"
        if isinstance(value, (list, tuple, set, frozenset)):
            is_set = isinstance(value, (set, frozenset))
            parts = sorted(value, key=repr) if is_set else value
            return f"{type(value).__name__} {[self.render(part) for part in parts]}"
        if isinstance(value, MethodType):
            return f"method {self.render(value.__func__)} {self.render(value.__self__)}"
        if isinstance(function := getattr(value, "py_func", value), FunctionType):
            return self._render_function(function)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return self._render_class(value)
        if name := getattr(value, "__qualname__", ""):
            return f"{getattr(value, '__module__', '')}.{name}"
        attributes = {
            key: part
            for key, part in getattr(value, "__dict__", {}).items()
            if part is None or isinstance(part, (*_PLAIN, FunctionType, MethodType))
        }
        return f"object {self.render(type(value))} {self.render(attributes)}"

    def _render_function(self, function: FunctionType) -> str:
        if self._is_foreign(function, function.__code__.co_filename):
            return f"function {function.__module__}.{function.__qualname__}"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        names = _names(function.__code__)
        used = {name: function.__globals__[name] for name in names if name in function.__globals__}
        for name, module in list(used.items()):
            file = getattr(module, "__file__", None)
            if isinstance(module, ModuleType) and file and not _is_installed(file):
                used |= {f"{name}.{key}": vars(module)[key] for key in names if key in vars(module)}
        given = [cells, function.__defaults__, function.__kwdefaults__, used]
        return f"function {_render_code(function.__code__)} {self.render(given)}"

    def _render_class(self, cls: type) -> str:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if cls.__module__ == "builtins" or self._is_foreign(cls, file or ""):
            return f"class {cls.__module__}.{cls.__qualname__}"
        own = {key: _unwrap(part) for key, part in vars(cls).items() if key not in _OF_EVERY_CLASS}
        return f"class {cls.__qualname__} {self.render(own)} {self.render(cls.__bases__)}"

    def _is_foreign(self, value: object, file: str) -> bool:
        """Return True for a function or a class of another package that is installed."""
        return _is_installed(file) and _root(value) not in {self._package} - {"fedpage"}


def _names(code: CodeType) -> list[str]:
    """List the names that code, and the functions inside it, may read from their module."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return sorted({*code.co_names, *(name for part in inner for name in _names(part))})


def _render_code(code: CodeType) -> str:
    constants = [
        _render_code(part)
        if isinstance(part, CodeType)
        else repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)
        for part in code.co_consts
    ]
    names = repr((code.co_names, code.co_varnames, code.co_freevars, constants))
    return hashlib.sha256(code.co_code + names.encode()).hexdigest()
