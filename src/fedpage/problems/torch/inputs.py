"""What a torch module is called with: positional or keyword arguments."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor, nn

Inputs: TypeAlias = tuple[Tensor, ...] | dict[str, Tensor]
"""Positional arguments, or keyword arguments by name; tensors with a row per example."""


def call_with(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module with its inputs."""
    return module(**inputs) if isinstance(inputs, dict) else module(*inputs)


def list_tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of inputs, those of a dict in its order."""
    return tuple(inputs.values()) if isinstance(inputs, dict) else inputs
