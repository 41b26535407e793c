"""Call a function for many tasks, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS_BETWEEN_LOOKS = 0.5


def run_tasks(
    function: Callable[..., T],
    tasks: Sequence[tuple[object, ...]],
    jobs: int | None,
    *,
    in_order: bool = True,
) -> Iterator[T]:
    """Yield the results of a function, each as soon as it is known.

    Worker processes end within a second or two of the death of the process that started them.

    Args:
        function: The function to call.
        tasks: The arguments of each call.
        jobs: Processes; None leaves the choice to `joblib.parallel_config`, for Dask or Ray.
        in_order: Whether results come in the order of the tasks.

    >>> list(run_tasks(pow, [(2, 3), (3, 2)], jobs=1))
    [8, 9]
    """
    if jobs == 1:
        yield from starmap(function, tasks)
        return
    from joblib import Parallel, delayed

    settings: dict[str, Any] = {}
    if jobs is not None:  # the user's backend may not be able to return results one by one
        order = "generator" if in_order else "generator_unordered"
        settings = {"n_jobs": max(1, min(jobs, len(tasks))), "return_as": order}
    parallel = Parallel(initializer=end_with_parent, **settings)
    yield from parallel(delayed(function)(*task) for task in tasks)


def end_with_parent() -> None:
    """End this process when the one that started it is gone; do nothing in a main process.

    It is the initializer of workers that are started with multiprocessing or loky. Dask's backend
    ignores it: the workers of a local cluster end with their client, and others are their owner's.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait_for_end_of_parent, daemon=True).start()


def _wait_for_end_of_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    if parent.sentinel is not None:
        parent.join()
    else:  # loky's workers are direct children without a sentinel, but on Windows they have one
        while os.getppid() == parent.pid:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)  # sys.exit would end this thread only
