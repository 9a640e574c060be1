"""`comfy.ldm.modules.attention`: attention as a function, and the layers from which packs build networks of their own.

`B` batch, `T` tokens, `D` width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.comfy.names.comfy.ops import disable_weight_init
from darkroom.engine.layers import unet_layers
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.temporal_layers import TemporalTransformer as SpatialVideoTransformer
from darkroom.engine.layers.unet_layers import BasicTransformerBlock, SpatialTransformer

__all__ = ["BasicTransformerBlock", "SpatialTransformer", "SpatialVideoTransformer", "optimized_attention"]

ops = disable_weight_init
attention_pytorch = optimized_attention
attention_basic = optimized_attention
attention_split = optimized_attention
attention_sub_quad = optimized_attention
optimized_attention_masked = optimized_attention


REGISTERED_ATTENTION_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pytorch": optimized_attention,
    "sub_quad": optimized_attention,
    "split": optimized_attention,
}
"""Functions by the names under which packs choose one; packs add to them."""


def register_attention_function(name: str, func: Callable[..., Any]) -> None:
    """Add a function, unless the name is taken."""
    REGISTERED_ATTENTION_FUNCTIONS.setdefault(name, func)


def get_attention_function(name: str, default: Any = ...) -> Any:
    """Return the function of a name, else the default. Raises KeyError without one."""
    if name == "optimized":
        return optimized_attention
    if name not in REGISTERED_ATTENTION_FUNCTIONS and default is ...:
        raise KeyError(f"{name}: no such attention function; expected one of {sorted(REGISTERED_ATTENTION_FUNCTIONS)}")
    return REGISTERED_ATTENTION_FUNCTIONS.get(name, default)


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


def wrap_attn(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an attention function that a node's `optimized_attention_override` replaces, as the engine's own is."""

    @functools.wraps(function)
    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
        options: dict[str, Any] = kwargs.get("transformer_options") or {}
        override: Callable[..., torch.Tensor] | None = options.get("optimized_attention_override")
        if override is None:
            return function(*args, **kwargs)
        inner = {key: value for key, value in options.items() if key != "optimized_attention_override"}
        return override(function, *args, **{**kwargs, "transformer_options": inner})

    return attend


class GEGLU(nn.Module):
    """Gated GELU: [B, T, dim_in] -> [B, T, dim_out]."""

    def __init__(self, dim_in: int, dim_out: int, dtype: Any = None, device: Any = None, operations: Any = ops) -> None:
        super().__init__()
        self.proj = operations.Linear(dim_in, dim_out * 2, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        gated: torch.Tensor = value * functional.gelu(gate)
        return gated


class _KindOf(type(nn.Module)):  # type: ignore[misc]
    """Metaclass of a layer with ComfyUI's parameters: the engine's own layer of that kind is an instance too."""

    engine_layer: type = nn.Module

    def __instancecheck__(cls, instance: object) -> bool:
        is_engines = "engine_layer" in vars(cls) and isinstance(instance, cls.engine_layer)
        return is_engines or super().__instancecheck__(instance)


class FeedForward(nn.Module, metaclass=_KindOf):
    """Two linear maps with an activation between them, gated with `glu`: [B, T, dim] -> [B, T, dim_out]."""

    engine_layer = unet_layers.FeedForward

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        mult: float = 4,
        glu: bool = False,
        dropout: float = 0.0,
        dtype: Any = None,
        device: Any = None,
        operations: Any = ops,
    ) -> None:
        super().__init__()
        inner = int(dim * mult)
        first: nn.Module = (
            GEGLU(dim, inner, dtype=dtype, device=device, operations=operations)
            if glu
            else nn.Sequential(operations.Linear(dim, inner, dtype=dtype, device=device), nn.GELU())
        )
        last = operations.Linear(inner, dim if dim_out is None else dim_out, dtype=dtype, device=device)
        self.net = nn.Sequential(first, nn.Dropout(dropout), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


class CrossAttention(nn.Module, metaclass=_KindOf):
    """Attention of [B, T, query_dim] over a context [B, S, context_dim], or over itself without one."""

    engine_layer = unet_layers.CrossAttention

    def __init__(
        self,
        query_dim: int,
        context_dim: int | None = None,
        heads: int = 8,
        dim_head: int = 64,
        dropout: float = 0.0,
        attn_precision: torch.dtype | None = None,
        dtype: Any = None,
        device: Any = None,
        operations: Any = ops,
    ) -> None:
        super().__init__()
        inner = dim_head * heads
        context_dim = query_dim if context_dim is None else context_dim
        self.heads, self.dim_head, self.attn_precision = heads, dim_head, attn_precision
        self.to_q = operations.Linear(query_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_k = operations.Linear(context_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_v = operations.Linear(context_dim, inner, bias=False, dtype=dtype, device=device)
        last = operations.Linear(inner, query_dim, dtype=dtype, device=device)
        self.to_out = nn.Sequential(last, nn.Dropout(dropout))

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        transformer_options: CallOptions | None = None,
    ) -> torch.Tensor:
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context if value is None else value)
        out: torch.Tensor = self.to_out(
            optimized_attention(q, k, v, self.heads, mask, transformer_options=transformer_options)
        )
        return out
