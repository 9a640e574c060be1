"""An encoded prompt."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Encoded(NamedTuple):
    """An encoded prompt: conditioning [B, T, D], pooled output [B, D], and further options of the conditioning.

    `pooled` is None for encoders without such an output. `options` are by ComfyUI's names: tensors, such as
    `attention_mask` [B, T], or places of tokens.
    """

    cond: torch.Tensor
    pooled: torch.Tensor | None
    options: Mapping[str, Any] = NO_OPTIONS
