"""Compile functions with numba, and keep the compiled code on disk where that is possible."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


@overload
def compile_kernel(function: Kernel) -> Kernel: ...
@overload
def compile_kernel(
    *, inline: Literal["never", "always"] = "never", uses: Sequence[str] = ()
) -> Callable[[Kernel], Kernel]: ...


def compile_kernel(
    function: Callable[..., Any] | None = None,
    *,
    inline: Literal["never", "always"] = "never",
    uses: Sequence[str] = (),
) -> Any:
    """Compile a function on its first call, or load what an earlier process has compiled.

    numba writes beside the module, into the user's cache directory, or into NUMBA_CACHE_DIR. Where
    none of them can be written, each process compiles what it calls.

    Args:
        function: The function; without it, a decorator is returned.
        inline: "always" to insert its body into its callers.
        uses: Other source files of functions that are compiled into this one. numba itself notices
            a change only of the file that the function is in.
    """

    def decorate(function: Kernel) -> Kernel:
        compiled: Any = njit(nogil=True, error_model="numpy", inline=inline)(function)
        with contextlib.suppress(RuntimeError):  # there is nowhere to write
            compiled.enable_caching()
            if uses:
                index = compiled._cache._cache_file
                index._source_stamp = (index._source_stamp, *map(_stamp, uses))
        return compiled  # type: ignore[no-any-return]

    return decorate if function is None else decorate(function)


def _stamp(file: str) -> tuple[float, int]:
    status = os.stat(file)
    return status.st_mtime, status.st_size
