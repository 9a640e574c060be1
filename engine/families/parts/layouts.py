"""Layouts of files: the names of a network's weights behind a prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.families.base import Layout, Shapes, Tensors
from engine.formats.weight_file import Names


def names_behind(shapes: Shapes, prefix: str) -> dict[str, str]:
    """Return the names of a file's tensors behind a prefix: without it -> with it."""
    return {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}


def behind_first(prefixes: Sequence[str], mark: str) -> Layout:
    """Make a layout for the first of these prefixes behind which the file has the tensor `mark`."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + mark in shapes), None)
        return None if prefix is None else names_behind(shapes, prefix)

    return layout


def saved_behind(prefix: str, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors with their names behind a prefix."""
    return {prefix + name: tensor for name, tensor in tensors.items()}
