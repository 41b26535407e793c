"""Identify functions by what they compute: their code, and the values and functions they use."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np

Render = Callable[[object], str | None]
"""Renders a value of a type that this module does not know, or returns None."""

_INSTALLED = (
    Path(__file__).resolve().parents[1],
    *{Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")},
)
"""The directories of fedpage, of Python and of installed packages."""
_PLAIN = (bool, int, float, complex, str, bytes)


def function_digest(function: object, render: Render | None = None) -> str:
    """Digest a function's code, closure, defaults, partial arguments and the globals it uses.

    Functions and classes of the same package, and of files that are not installed, are followed
    into the functions that they use in turn; those of installed packages count by name. An object
    counts with its class and with those of its attributes that are numbers, text or functions.

    Args:
        function: A function, a method, a partial or an object that can be called.
        render: Renders values of further types, such as tensors.

    Returns:
        64 hexadecimal digits, which do not depend on addresses in memory or on line numbers.

    >>> limit = 3
    >>> first = function_digest(lambda record: record["loss"] < limit)
    >>> limit = 4
    >>> first == function_digest(lambda record: record["loss"] < limit)
    False
    """
    renderer = _Renderer(_root(function), render)
    return hashlib.sha256(renderer.render(function).encode()).hexdigest()


def is_installed(file: str) -> bool:
    """Say whether a file belongs to fedpage, to Python or to an installed package."""
    return file[:7] == "<frozen" or any(map(Path(file).is_relative_to, _INSTALLED))


def _root(value: object) -> str:
    """Return the name of the package that a function or an object belongs to."""
    module = getattr(value, "__module__", None)
    return (module if isinstance(module, str) else "").partition(".")[0]


_OF_EVERY_CLASS = (
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
    "__static_attributes__", "__slots__",
)  # fmt: skip


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
        if isinstance(value, FunctionType):
            return self._render_function(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return self._render_class(value)
        name = getattr(value, "__qualname__", "")
        if name or isinstance(value, BuiltinFunctionType):
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
        used = {
            name: function.__globals__[name]
            for name in _names(function.__code__)
            if name in function.__globals__
        }
        given = [cells, function.__defaults__, function.__kwdefaults__, used]
        return f"function {_render_code(function.__code__)} {self.render(given)}"

    def _render_class(self, cls: type) -> str:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if cls.__module__ == "builtins" or self._is_foreign(cls, file or ""):
            return f"class {cls.__module__}.{cls.__qualname__}"
        own = {
            key: part.fget if isinstance(part, property) else getattr(part, "__func__", part)
            for key, part in vars(cls).items()
            if key not in _OF_EVERY_CLASS
        }
        return f"class {cls.__qualname__} {self.render(own)} {self.render(cls.__bases__)}"

    def _is_foreign(self, value: object, file: str) -> bool:
        """Say whether a function or a class belongs to another package, which is installed."""
        return is_installed(file) and _root(value) not in {self._package} - {"fedpage"}


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
