"""The steps between the matrix products of diffusion transformers, as layers that strategies can replace.

Each layer is one form of a step: its constructor takes the form, its `forward` takes all tensors, and it has no
parameters, so that the names in model files stay as they are. The forward functions here are the plain forms, with the
order of operations of the original networks; `engine/tuning/strategies/fused_layers.py` replaces them by Triton
kernels of one pass. Norms with weights are passed as modules and called, since the weights of a layer may be elsewhere
until it is called.

`B` batch, `T` tokens, `H` heads, `W` channels of a head, `D` channels of all heads, `P` pairs of channels, `...`
leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.rotary import rotated, rotated_by_channel, rotated_halves, rotated_pairs

LARGEST_HALF: Final = 65504.0

Tables = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Rotations: matrices [..., P, 2, 2], or cosines and sines [..., P or W] each, to broadcast over heads [..., W]."""

Part = tuple[torch.Tensor, nn.Module | None]
"""Queries or keys of one stream of tokens, and their norm (None for none)."""


def finite(x: torch.Tensor) -> torch.Tensor:
    """Return float16 numbers without overflows, others as they are."""
    return x.nan_to_num(nan=0.0, posinf=LARGEST_HALF, neginf=-LARGEST_HALF) if x.dtype == torch.float16 else x


@dataclass(frozen=True, slots=True)
class Stretches:
    """A scale, shift or gate that differs between stretches of tokens.

    `parts` [B or 1, 1, D] are the values of stretches of `lengths` tokens, which follow each other.
    """

    lengths: tuple[int, ...]
    parts: tuple[torch.Tensor, ...]


Modulator = torch.Tensor | Stretches
"""A scale, shift or gate [..., D] that broadcasts over tokens [..., D]; [B, 1, D] or [B, T, D], say."""


NormKind = Literal["layer", "rms", "none"]
ActivationKind = Literal["silu", "gelu", "gelu_tanh", "sigmoid"]


class RotaryLayout(StrEnum):
    """Channels of a head that turn together, and the form of the tables of angles."""

    MATRICES = "matrices"
    """Neighbouring channels, by matrices [..., P, 2, 2]."""
    PAIRS = "pairs"
    """Neighbouring channels, by cosines and sines [..., P]."""
    CHANNELS = "channels"
    """Neighbouring channels, by cosines and sines [..., W] of each channel."""
    HALVES = "halves"
    """Channel n with channel n + P, by cosines and sines [..., P]; channels from 2 P on are left as they are."""


ROTATIONS: Final[dict[RotaryLayout, Callable[..., torch.Tensor]]] = {
    RotaryLayout.MATRICES: rotated,
    RotaryLayout.PAIRS: rotated_pairs,
    RotaryLayout.CHANNELS: rotated_by_channel,
    RotaryLayout.HALVES: rotated_halves,
}


class RotaryHeads(nn.Module):
    """Norms of queries and keys, and their rotation by position (Su et al. 2021, arXiv 2104.09864).

    `forward(queries, keys, tables, key_tables)` -> queries and keys of all streams behind each other, normalised and
    rotated. Streams are [B, H, T, W], with `token_dim` 2, or [B, T, H, W] or [B, T, D], with `token_dim` 1. With
    `num_heads` they are [B, T, D], are normalised over all heads, and are split into heads after that. `is_float32`:
    the rotation is computed in float32 (matrices are always used in their own type). Results have the type of the
    streams.
    """

    def __init__(
        self,
        layout: RotaryLayout = RotaryLayout.MATRICES,
        *,
        token_dim: int = 2,
        num_heads: int | None = None,
        is_float32: bool = False,
    ) -> None:
        super().__init__()
        self.layout, self.token_dim, self.num_heads, self.is_float32 = layout, token_dim, num_heads, is_float32

    def forward(
        self, queries: Sequence[Part], keys: Sequence[Part], tables: Tables | None, key_tables: Tables | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys. `tables` rotate both, or queries alone where `key_tables` are given.

        None rotates neither.
        """
        return self.plain(queries, tables), self.plain(keys, tables if key_tables is None else key_tables)

    def plain(self, parts: Sequence[Part], tables: Tables | None) -> torch.Tensor:
        """Return queries, or keys, of all streams, normalised and rotated."""
        heads = [self.split(x if norm is None else norm(x)) for x, norm in parts]
        x = heads[0] if len(heads) == 1 else torch.cat(heads, dim=self.token_dim)
        return x if tables is None else self.rotate(x, tables)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Split channels of all heads [B, T, D] into heads, where the layer has their number."""
        if self.num_heads is None:
            return x
        heads = x.view(*x.shape[:-1], self.num_heads, -1)  # [B, T, H, W]
        return heads.transpose(1, 2) if self.token_dim == 2 else heads

    def rotate(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """Rotate heads [..., W]."""
        if self.layout is RotaryLayout.MATRICES:
            return rotated(x, tables)  # type: ignore[arg-type]  # this layout's tables are one tensor
        return ROTATIONS[self.layout](x, tables, is_float32=self.is_float32)


class AdaptiveNorm(nn.Module):
    """A norm of each token, scaled and shifted by a condition (adaLN: Peebles and Xie 2022, arXiv 2212.09748).

    `forward(x [..., D], scale, shift, norm)` -> `norm(x) * (1 + scale) + shift`. `kind` is the norm where none is
    passed: `layer` or `rms` without weights, or `none`. With `is_joined` the product is added to the shift unrounded
    (`torch.addcmul`).
    """

    def __init__(self, kind: NormKind = "layer", eps: float = 1e-6, *, is_joined: bool = False) -> None:
        super().__init__()
        self.kind, self.eps, self.is_joined = kind, eps, is_joined

    def forward(
        self,
        x: torch.Tensor,
        scale: Modulator | None = None,
        shift: Modulator | None = None,
        norm: nn.Module | None = None,
    ) -> torch.Tensor:
        """Return the normalised tokens. Scale and shift are both tensors or both stretches, or None."""
        normed = normalised(x, self.kind, self.eps) if norm is None else norm(x)
        return by_stretch(self._modulated, normed, (), (scale, shift))

    def _modulated(self, normed: torch.Tensor, scale: torch.Tensor | None, shift: torch.Tensor | None) -> torch.Tensor:
        if scale is not None and shift is not None and self.is_joined:
            return torch.addcmul(shift, normed, 1 + scale)
        if scale is not None:
            normed = normed * (1 + scale)
        return normed if shift is None else normed + shift


class GatedResidual(nn.Module):
    """The sum of tokens and a gated change of them.

    `forward(x [..., D], change, gate, norm)` -> `x + norm(change) * gate`. `kind` is the norm where none is passed:
    `layer` or `rms` without weights, or `none`. With `is_joined` the product is added unrounded (`torch.addcmul`), with
    `has_tanh` the gate is the hyperbolic tangent of what is passed. float16 overflows are clamped (`finite`) in the
    change, before its norm, with `clamps_change`, and in the sum with `clamps_sum`.
    """

    def __init__(
        self,
        kind: NormKind = "none",
        eps: float = 1e-6,
        *,
        is_joined: bool = False,
        has_tanh: bool = False,
        clamps_change: bool = False,
        clamps_sum: bool = False,
    ) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        self.is_joined, self.has_tanh = is_joined, has_tanh
        self.clamps_change, self.clamps_sum = clamps_change, clamps_sum

    def forward(
        self, x: torch.Tensor, change: torch.Tensor, gate: Modulator | None = None, norm: nn.Module | None = None
    ) -> torch.Tensor:
        """Return the sum. Without a gate the change is added as it is."""
        change = finite(change) if self.clamps_change else change
        change = normalised(change, self.kind, self.eps) if norm is None else norm(change)
        total = by_stretch(self._added, x, (change,), (gate,))
        return finite(total) if self.clamps_sum else total

    def _added(self, x: torch.Tensor, change: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
        if gate is None:
            return x + change
        gate = gate.tanh() if self.has_tanh else gate
        return torch.addcmul(x, change, gate) if self.is_joined else x + change * gate


class ResidualNorm(nn.Module):
    """A gated residual and the adaptive norm of its sum.

    `forward(x, change, gate, scale, shift)` -> the sum and its norm, [..., D] each.
    """

    def __init__(self, residual: GatedResidual, norm: AdaptiveNorm) -> None:
        super().__init__()
        self.residual, self.norm = residual, norm

    def forward(
        self,
        x: torch.Tensor,
        change: torch.Tensor,
        gate: Modulator | None,
        scale: Modulator | None,
        shift: Modulator | None = None,
        *,
        change_norm: nn.Module | None = None,
        norm: nn.Module | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sum and norm. `change_norm` and `norm` are norms with weights of the change and of the sum."""
        total = self.residual(x, change, gate, change_norm)
        return total, self.norm(total, scale, shift, norm)


class Gelu(nn.Module):
    """GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415); `approximate` is `tanh` or `none`."""

    def __init__(self, approximate: str = "tanh") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate=self.approximate)


class GatedActivation(nn.Module):
    """Values times their activated gates (Shazeer 2020, arXiv 2002.05202).

    `forward(gate [..., N], value [..., N])`, or `forward(joined [..., 2 N])`, of which the gate is the first half, or
    with `is_gate_first` False the second. `kind` is the activation of the gate: `silu`, `gelu`, `gelu_tanh` or
    `sigmoid`. With `clamps_product` float16 overflows are clamped (`finite`).
    """

    def __init__(
        self, kind: ActivationKind = "silu", *, is_gate_first: bool = True, clamps_product: bool = False
    ) -> None:
        super().__init__()
        self.kind, self.is_gate_first, self.clamps_product = kind, is_gate_first, clamps_product

    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
        """Return the gated values [..., N]."""
        gate, value = self.parts(gate, value)
        product = ACTIVATIONS[self.kind](gate) * value
        return finite(product) if self.clamps_product else product

    def parts(self, gate: torch.Tensor, value: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gate and value, from one tensor of both where there is no value."""
        if value is not None:
            return gate, value
        first, second = gate.chunk(2, dim=-1)
        return (first, second) if self.is_gate_first else (second, first)


class JoinedActivation(nn.Module):
    """Attended tokens with activated ones behind them: `forward(attended [..., D], inner [..., N])` -> [..., D + N'].

    `N'` is `N` for `Gelu`, `N / 2` for `GatedActivation`.
    """

    def __init__(self, activation: Gelu | GatedActivation) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, attended: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
        return torch.cat([attended, self.activation(inner)], dim=-1)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: Final[dict[ActivationKind, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "sigmoid": torch.sigmoid,
}


def normalised(x: torch.Tensor, kind: NormKind, eps: float) -> torch.Tensor:
    """Normalise the last dimension without weights; `kind` is `layer`, `rms` or `none`."""
    if kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], eps=eps)
    return functional.rms_norm(x, x.shape[-1:], eps=eps) if kind == "rms" else x


def by_stretch(
    function: Callable[..., torch.Tensor],
    x: torch.Tensor,
    others: Sequence[torch.Tensor],
    modulators: Sequence[Modulator | None],
) -> torch.Tensor:
    """Compute a function of tokens [B, T, D] and modulators; where those are of stretches, of each stretch by itself.

    Raises ValueError for modulators of stretches of other lengths.
    """
    stretched = [item for item in modulators if isinstance(item, Stretches)]
    if not stretched:
        return function(x, *others, *modulators)
    lengths = stretched[0].lengths
    found = [item.lengths if isinstance(item, Stretches) else None for item in modulators if item is not None]
    if any(item != lengths for item in found):
        raise ValueError(f"modulators: their stretches of tokens differ; got {found}, expected {lengths} for all")
    tokens = zip(*(torch.split(item, list(lengths), dim=1) for item in (x, *others)), strict=True)
    tables = zip(
        *(item.parts if isinstance(item, Stretches) else [None] * len(lengths) for item in modulators), strict=True
    )
    return torch.cat([function(*part, *table) for part, table in zip(tokens, tables, strict=True)], dim=1)
