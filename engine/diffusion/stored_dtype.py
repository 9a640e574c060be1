"""The type that the weights of a network are stored in."""

from __future__ import annotations

import torch
from torch import nn


def stored_dtype(network: nn.Module) -> torch.dtype:
    """Return the type of the largest weight: small ones, the first among them, may stay float32 in any type."""
    return max(network.parameters(), key=torch.Tensor.numel).dtype
