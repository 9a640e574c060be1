"""`comfy.ldm.modules.attention`: attention as a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.architectures.attention import optimized_attention
from engine.architectures.latent_unet_layers import BasicTransformerBlock, CrossAttention, SpatialTransformer

__all__ = ["BasicTransformerBlock", "CrossAttention", "SpatialTransformer", "optimized_attention"]

attention_pytorch = optimized_attention
attention_basic = optimized_attention
optimized_attention_masked = optimized_attention


def optimized_attention_for_device(
    device: object, mask: bool = False, small_input: bool = False
) -> Callable[..., object]:
    """Return the only attention function there is."""
    return optimized_attention


def default(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def exists(value: object) -> bool:
    return value is not None


def get_attn_precision(attn_precision: torch.dtype | None, current_dtype: torch.dtype) -> torch.dtype | None:
    return attn_precision
