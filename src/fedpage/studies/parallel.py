"""Call a function for many tasks, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def run_tasks(
    function: Callable[..., T],
    tasks: Sequence[tuple[object, ...]],
    jobs: int | None,
    *,
    in_order: bool = True,
) -> Iterator[T]:
    """Yield the results of a function, each as soon as it is known.

    Args:
        function: The function to call.
        tasks: The arguments of each call.
        jobs: Processes; None leaves the choice to `joblib.parallel_config`, for Dask or Ray.
        in_order: Whether results come in the order of the tasks.

    >>> list(run_tasks(pow, [(2, 3), (3, 2)], jobs=1))
    [8, 9]
    """
    if jobs == 1:
        for task in tasks:
            yield function(*task)
        return
    from joblib import Parallel, delayed

    work = (delayed(function)(*task) for task in tasks)
    if jobs is None:  # the user's backend may not be able to return results one by one
        yield from Parallel()(work)
    else:
        kind = "generator" if in_order else "generator_unordered"
        yield from Parallel(n_jobs=max(1, min(jobs, len(tasks))), return_as=kind)(work)
