"""What a server may name: fedpage's own methods, objectives and data, and what the owner allows.

A name such as `file.py@Class` or `module:function` makes a process import and execute code. On the
server its operator chooses these names. On a node they come from the server, so a node accepts only
names of the installed package and those that its owner lists in the node config as `allow`.
"""

from __future__ import annotations

from collections.abc import Set

from fedpage.core.errors import short_repr
from fedpage.data.registry import DATASETS, Embedded
from fedpage.flower.config import AppConfig
from fedpage.flower.node_errors import Code, NodeError
from fedpage.methods import METHODS
from fedpage.problems import OBJECTIVES


def check_allowed(config: AppConfig, allowed: Set[str], *, fits_only: bool = False) -> None:
    """Refuse a run that names something that neither fedpage nor the node's owner provides.

    Nothing is imported, opened or downloaded.

    Args:
        config: The run's configuration, as the server sent it.
        allowed: The names that the node's owner allows, exactly as a run writes them.
        fits_only: Whether the owner refuses every run without a family.

    Raises:
        NodeError: A name is not allowed.
    """
    if fits_only and not config.family:
        raise NodeError(Code.NOT_ALLOWED, "run config: it has no family (fits-only)")
    if config.method.lower() not in METHODS:
        _check("method", config.method, allowed)
    for word in config.hyper.split():
        value = word.partition("=")[2]
        if "@" in value:  # a schedule of the server's own
            _check("hyper", value, allowed)
    if config.objective not in OBJECTIVES:
        _check("objective", config.objective, allowed)
    # Files are named in the node's own configuration. Here only names of data sets are accepted:
    # those of files must be complete, those of embedded ones may have settings.
    name, colon, _ = config.data.partition(":")
    entry = DATASETS.get(name)
    if config.data and (entry is None or (colon and not isinstance(entry, Embedded))):
        raise NodeError(
            Code.NOT_ALLOWED,
            f"run config: there is no data set {short_repr(config.data)}; a file is named in the "
            "node's own config",
        )


def _check(key: str, name: str, allowed: Set[str]) -> None:
    if name not in allowed:
        raise NodeError(
            Code.NOT_ALLOWED,
            f"run config: {key} {short_repr(name)} is not one of fedpage's own; if you trust it, "
            "add this name to allow in the node's config",
        )
