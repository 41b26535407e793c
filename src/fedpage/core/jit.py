"""Compile functions with numba, and keep the compiled code on disk where that is possible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


@overload
def compile_kernel(function: Kernel) -> Kernel: ...
@overload
def compile_kernel(*, inline: Literal["never", "always"]) -> Callable[[Kernel], Kernel]: ...


def compile_kernel(
    function: Callable[..., Any] | None = None, *, inline: Literal["never", "always"] = "never"
) -> Any:
    """Compile a function on its first call, or load what an earlier process has compiled.

    numba writes beside the module, into the user's cache directory, or into NUMBA_CACHE_DIR. Where
    none of them can be written, each process compiles what it calls.

    Args:
        function: The function; without it, a decorator is returned.
        inline: "always" to insert its body into its callers.
    """

    def decorate(function: Kernel) -> Kernel:
        compiled: Any = njit(nogil=True, error_model="numpy", inline=inline)(function)
        with contextlib.suppress(RuntimeError):  # there is nowhere to write
            compiled.enable_caching()
        return compiled  # type: ignore[no-any-return]

    return decorate if function is None else decorate(function)
