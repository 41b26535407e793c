"""Which metrics nodes compute, and which the server computes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpage.core.errors import InputError
from fedpage.core.metrics import LOSS, ClientQuantile, Metric, ReferenceMetric, find_quantile


def select_metrics(names: Sequence[str], problem: object) -> dict[str, Metric]:
    """Return the metrics of these names as a problem defines them, and those they depend on.

    Args:
        names: The metrics of the run's configuration.
        problem: A problem with `metrics`; other names are taken for metrics of rows.

    Raises:
        InputError: A metric needs the reference solution, or has no direction.
    """
    known: Mapping[str, Metric] = getattr(problem, "metrics", {})
    found: dict[str, Metric] = {}
    for name in names:
        entry = known.get(name) or find_quantile(name, known, "run config") or Metric(name, _remote)
        if isinstance(entry, ClientQuantile) and entry.base is not LOSS:
            found.setdefault(entry.base.name, entry.base)
        found[name] = entry
    refuse_reference(found)
    return found


def refuse_reference(metrics: Mapping[str, Metric]) -> None:
    """Refuse metrics that compare a model with the reference solution.

    Raises:
        InputError: There is one.
    """
    for name, entry in metrics.items():
        if isinstance(entry, ReferenceMetric):
            raise InputError(
                f"run config: metric {name!r} needs the reference solution, which takes all "
                "clients' rows, and in a federation nobody has them; leave it out"
            )


def _remote(outputs: object, targets: object) -> float:
    raise NotImplementedError("nodes compute it")
