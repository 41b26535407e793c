"""Share independent work among threads that are started once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="fedpage")


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_workers.cache_clear)


def map_threads(
    work: Callable[[int], T], count: int, threads: int, then: Callable[[int], T] | None = None
) -> list[T]:
    """Compute work(0), ..., work(count - 1) in at most `threads` threads.

    Each thread takes the next number that is left, so that a slow one does not hold up the others.
    The calling thread takes part, and does not wait for a thread that has not begun when nothing is
    left to do. So a busy machine delays the result little.

    Args:
        work: a function of a number, which releases the interpreter's lock while it computes.
        count: how many numbers there are.
        threads: the most threads, the calling one included.
        then: another such function. then(i) is computed after work(i) has ended, in any thread.

    Returns:
        The results in the order of the numbers: those of `then` if it is given, else of `work`.

    >>> map_threads(lambda i: i * i, 4, threads=2)
    [0, 1, 4, 9]
    """
    left, results = deque((work, i) for i in range(count)), dict[int, T]()

    def run() -> None:
        while left:
            try:
                task, i = left.popleft()
            except IndexError:  # another thread took the last one
                return
            results[i] = task(i)
            if then is not None and task is work:
                left.append((then, i))

    helpers = min(threads, count) - 1
    futures = [_workers(threads - 1).submit(run) for _ in range(helpers)]
    try:
        run()
    finally:
        left.clear()  # nothing more to begin where a call failed
        for future in futures:
            if not future.cancel():
                future.result()
    return [results[i] for i in range(count)]
