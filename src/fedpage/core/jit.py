"""Compile functions with numba, and share their work among threads."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal, TypeVar

from numba import njit

T = TypeVar("T")
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compile_kernel(
    function: Kernel,
    *,
    inline: Literal["never", "always"] = "never",
    uses: Sequence[str] = (),
) -> Kernel:
    """Compile a function on its first call, or load what an earlier process has compiled.

    numba writes beside the module, into the user's cache directory, or into NUMBA_CACHE_DIR. Where
    none of them can be written, each process compiles what it calls.

    Args:
        function: The function. Give the other arguments to a decorator by `functools.partial`.
        inline: "always" to insert its body into its callers.
        uses: Other source files of functions that are compiled into this one. numba itself notices
            a change only of the file that the function is in.
    """
    compiled: Any = njit(nogil=True, error_model="numpy", inline=inline)(function)
    with contextlib.suppress(RuntimeError):  # there is nowhere to write
        compiled.enable_caching()
        if uses:
            index = compiled._cache._cache_file
            stamps = ((file.st_mtime, file.st_size) for file in map(os.stat, uses))
            index._source_stamp = (index._source_stamp, *stamps)
    return compiled  # type: ignore[no-any-return]


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="fedpage")


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_workers.cache_clear)


def map_threads(work: Callable[[int], T], count: int, threads: int) -> list[T]:
    """Compute work(0), ..., work(count - 1) in at most `threads` threads.

    Each thread takes the next number that is left, so that a slow one does not hold up the others.
    The calling thread takes part, and does not wait for a thread that has not begun when nothing is
    left to do. So a busy machine delays the result little.

    Args:
        work: A function of a number, which releases the interpreter's lock while it computes.
        count: The number of calls.
        threads: The most threads, the calling one included.

    Returns:
        The results in the order of the numbers.

    >>> map_threads(lambda i: i * i, 4, threads=2)
    [0, 1, 4, 9]
    """
    helpers = min(threads, count) - 1
    if helpers < 1:
        return [work(i) for i in range(count)]
    left, results = deque(range(count)), dict[int, T]()

    def run() -> None:
        while left:
            try:
                i = left.popleft()
            except IndexError:  # another thread took the last one
                return
            results[i] = work(i)

    futures = [_workers(threads - 1).submit(run) for _ in range(helpers)]
    try:
        run()
    finally:
        left.clear()  # nothing more to begin where a call failed
        for future in futures:
            if not future.cancel():
                future.result()
    return [results[i] for i in range(count)]
