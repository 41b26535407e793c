"""Vectors on an accelerator, in place of numpy's arrays.

A problem may keep its vectors on a device, such as a graphics processor. Then the state of a
method, its messages, replies and client states are arrays of the device, and no round copies them
to the host. Methods that use arithmetic operators only need no change for that.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedpage.core.types import Vector


class DeviceArrays(Protocol):
    """Copies vectors to a device and back, and makes tables there."""

    def to_device(self, values: Vector) -> Any:
        """Return a copy on the device."""
        ...

    def to_host(self, values: Any) -> Vector:
        """Return a copy as numpy's array."""
        ...

    def zeros(self, rows: int, d: int) -> Any:
        """Return a table of zeros, (rows, d), on the device."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """A problem that may keep the vectors of rounds on a device."""

    @property
    def device_arrays(self) -> DeviceArrays | None:
        """How vectors are kept on the device; None: as numpy's arrays."""
        ...


def to_host(arrays: DeviceArrays, value: Any) -> Any:
    """Return a tree of NamedTuples with numpy's arrays in place of those of the device."""
    if _is_tree(value):
        return type(value)(*(to_host(arrays, part) for part in value))
    is_on_host = isinstance(value, np.ndarray) or not getattr(value, "ndim", 0)
    return value if is_on_host else arrays.to_host(value)


def to_device(arrays: DeviceArrays, value: Any, template: Any) -> Any:
    """Return a tree with arrays of the device where those of the template are."""
    if _is_tree(value):
        parts = zip(value, template, strict=True)
        return type(value)(*(to_device(arrays, part, like) for part, like in parts))
    is_on_host = isinstance(template, np.ndarray) or not getattr(template, "ndim", 0)
    return value if is_on_host else arrays.to_device(value)


def _is_tree(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")
