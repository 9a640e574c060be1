"""The layers of `engine/layers/transformer_layers.py` as single kernels: a forward function for each layer.

What a kernel cannot take is computed plainly: tensors of different types, modulators or tables that have no common rows
with the tokens. The weights of a norm are read where they are resident; a norm whose weights are brought for its call,
or whose class or forward function is unknown, is called, and the rest is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from darkroom.engine.layers.norms import CentredRmsNorm, RmsNorm, ScaleRmsNorm
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Gelu,
    JoinedActivation,
    Modulator,
    Part,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
    Stretches,
    Tables,
    finite,
)
from darkroom.engine.tuning.kernels.activation import activate
from darkroom.engine.tuning.kernels.residual_norm import (
    LAYER_NORM,
    MAX_WIDTH,
    NO_NORM,
    RMS_NORM,
    Modulation,
    NormForm,
    Residual,
    residual_norm,
)
from darkroom.engine.tuning.kernels.rotary_heads import (
    CHANNELS,
    HALVES,
    MATRICES,
    MAX_NUMBERS,
    PAIRS,
    Heads,
    Turns,
    rotary_heads,
)
from darkroom.engine.tuning.kernels.rows import Rows, modulator_rows

TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
KINDS: Final = {"none": NO_NORM, "layer": LAYER_NORM, "rms": RMS_NORM}
LAYOUTS: Final = {
    RotaryLayout.MATRICES: MATRICES,
    RotaryLayout.PAIRS: PAIRS,
    RotaryLayout.CHANNELS: CHANNELS,
    RotaryLayout.HALVES: HALVES,
}
NORMS: Final = (RmsNorm, ScaleRmsNorm, CentredRmsNorm, nn.RMSNorm, nn.LayerNorm)
NOTHING: Final = NormForm()

Forward = Callable[..., Any]


# --- norms -----------------------------------------------------------------------------------------------------------


def norm_form(norm: nn.Module) -> NormForm | None:
    """Return the form of a norm of the last dimension for a kernel, or None where it must be called."""
    if norm._forward_hooks or norm._forward_pre_hooks or "forward" in norm.__dict__:
        return None
    if type(norm) not in NORMS:
        return None
    if isinstance(norm, CentredRmsNorm):
        return NormForm(RMS_NORM, norm.eps, norm.scale, is_one_plus=True)
    if isinstance(norm, nn.RMSNorm):
        weight = norm.scale if isinstance(norm, ScaleRmsNorm) else norm.weight
        return None if norm.eps is None else NormForm(RMS_NORM, norm.eps, weight)
    assert isinstance(norm, nn.LayerNorm)
    return NormForm(LAYER_NORM, norm.eps, norm.weight, norm.bias) if len(norm.normalized_shape) == 1 else None


def _prepared(x: torch.Tensor, norm: nn.Module | None) -> tuple[torch.Tensor, NormForm]:
    """Return tokens and the norm that is left to compute of them: none where it had to be called."""
    if norm is None:
        return x, NOTHING
    form = norm_form(norm)
    return (norm(x), NOTHING) if form is None else (x, form)


# --- modulators ------------------------------------------------------------------------------------------------------


def _stretches(x: torch.Tensor, modulators: Sequence[Modulator | None]) -> Iterator[tuple[slice, list[Rows | None]]]:
    """Yield stretches of tokens with their modulators as rows. Raises LookupError where a kernel cannot take those."""
    lengths = {item.lengths for item in modulators if isinstance(item, Stretches)}
    if not lengths:
        yield slice(None), [_rows(item, x) for item in modulators]
        return
    stretched = [item for item in modulators if item is None or isinstance(item, Stretches)]
    if len(lengths) > 1 or x.ndim != 3 or len(stretched) < len(modulators):
        raise LookupError
    (counts,) = lengths
    start = 0
    for number, count in enumerate(counts):
        stretch = slice(start, start + count)
        yield stretch, [None if item is None else _rows(item.parts[number], x[:, stretch]) for item in stretched]
        start += count
    if start != x.shape[1]:
        raise LookupError


def _rows(modulator: Modulator | None, x: torch.Tensor) -> Rows | None:
    if modulator is None:
        return None
    assert isinstance(modulator, torch.Tensor)
    rows = modulator_rows(modulator, x) if _fits(modulator, x) else None
    if rows is None:
        raise LookupError
    return rows


def _fits(tensor: torch.Tensor, x: torch.Tensor) -> bool:
    return tensor.dtype == x.dtype and tensor.device == x.device


def _is_row_type(x: torch.Tensor) -> bool:
    """Return True for tokens that a program can hold."""
    return x.dtype in TYPES and x.ndim >= 2 and x.shape[-1] <= MAX_WIDTH


# --- norms and residuals ---------------------------------------------------------------------------------------------


def fused_adaptive_norm(layer: AdaptiveNorm) -> Forward:
    """Return the fused forward function of an `AdaptiveNorm`."""
    own = NormForm(KINDS[layer.kind], layer.eps)

    def forward(
        x: torch.Tensor,
        scale: Modulator | None = None,
        shift: Modulator | None = None,
        norm: nn.Module | None = None,
    ) -> torch.Tensor:
        if not _is_row_type(x):
            return AdaptiveNorm.forward(layer, x, scale, shift, norm)
        try:
            stretches = list(_stretches(x, (scale, shift)))
        except LookupError:
            return AdaptiveNorm.forward(layer, x, scale, shift, norm)
        tokens, form = (x, own) if norm is None else _prepared(x, norm)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for stretch, (scales, shifts) in stretches:
            modulation = Modulation(form, scales, shifts, layer.is_joined)
            residual_norm(_part(tokens, stretch), None, modulation, None, _part(out, stretch))
        return out

    return forward


def fused_gated_residual(layer: GatedResidual) -> Forward:
    """Return the fused forward function of a `GatedResidual`."""

    def forward(
        x: torch.Tensor, change: torch.Tensor, gate: Modulator | None = None, norm: nn.Module | None = None
    ) -> torch.Tensor:
        found = _residuals(layer, x, change, norm, (gate,))
        if found is None:
            return GatedResidual.forward(layer, x, change, gate, norm)
        total = torch.empty_like(x, memory_format=torch.contiguous_format)
        for stretch, residual, _ in found:
            residual_norm(_part(x, stretch), residual, None, _part(total, stretch), None)
        return total

    return forward


def fused_residual_norm(layer: ResidualNorm) -> Forward:
    """Return the fused forward function of a `ResidualNorm`."""
    own = NormForm(KINDS[layer.norm.kind], layer.norm.eps)

    def forward(
        x: torch.Tensor,
        change: torch.Tensor,
        gate: Modulator | None,
        scale: Modulator | None,
        shift: Modulator | None = None,
        *,
        change_norm: nn.Module | None = None,
        norm: nn.Module | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        form = own if norm is None else norm_form(norm)
        found = None if form is None else _residuals(layer.residual, x, change, change_norm, (gate, scale, shift))
        if form is None or found is None:
            return ResidualNorm.forward(layer, x, change, gate, scale, shift, change_norm=change_norm, norm=norm)
        total, normed = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
        for stretch, residual, (scales, shifts) in found:
            modulation = Modulation(form, scales, shifts, layer.norm.is_joined)
            residual_norm(_part(x, stretch), residual, modulation, _part(total, stretch), _part(normed, stretch))
        return total, normed

    return forward


def _residuals(
    layer: GatedResidual,
    x: torch.Tensor,
    change: torch.Tensor,
    norm: nn.Module | None,
    modulators: tuple[Modulator | None, ...],
) -> list[tuple[slice, Residual, list[Rows | None]]] | None:
    """Return stretches of tokens, their residual and the modulators behind the gate; None where they do not fit."""
    if not (_is_row_type(x) and change.shape == x.shape and _fits(change, x)):
        return None
    gate = modulators[0]
    if layer.has_tanh and gate is not None:
        gate = (
            Stretches(gate.lengths, tuple(part.tanh() for part in gate.parts))
            if isinstance(gate, Stretches)
            else gate.tanh()
        )
    try:
        stretches = list(_stretches(x, (gate, *modulators[1:])))
    except LookupError:
        return None
    clamps = layer.clamps_change
    if norm is None:
        form = NormForm(KINDS[layer.kind], layer.eps)
    else:
        found = norm_form(norm)
        if found is None:
            change, clamps = norm(finite(change) if clamps else change), False
        form = found or NOTHING
    return [
        (
            stretch,
            Residual(_part(change, stretch), form, gates, layer.is_joined, clamps, layer.clamps_sum),
            others,
        )
        for stretch, (gates, *others) in stretches
    ]


def _part(x: torch.Tensor, stretch: slice) -> torch.Tensor:
    return x if stretch == slice(None) else x[:, stretch]


# --- queries and keys ------------------------------------------------------------------------------------------------


def fused_rotary_heads(layer: RotaryHeads) -> Forward:
    """Return the fused forward function of a `RotaryHeads`."""

    def forward(
        queries: Sequence[Part], keys: Sequence[Part], tables: Tables | None, key_tables: Tables | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if key_tables is not None:
            return RotaryHeads.forward(layer, queries, keys, tables, key_tables)
        shapes = [_shape(layer, parts) for parts in (queries, keys)]
        first = queries[0][0]
        turns = None
        if tables is not None:
            turns = _turns(layer, tables, shapes[0], first)
            if turns is None or (shapes[1] != shapes[0] and _turns(layer, tables, shapes[1], first) is None):
                return RotaryHeads.forward(layer, queries, keys, tables)
        if len(queries) != len(keys) or not _can_fuse(layer, (*queries, *keys)):
            return RotaryHeads.forward(layer, queries, keys, tables)
        q, k = (first.new_empty(shape) for shape in shapes)
        q_start = k_start = 0
        for of_query, of_key in zip(queries, keys, strict=True):
            query = _heads(layer, of_query, q, q_start)
            key = _heads(layer, of_key, k, k_start)
            q_end, k_end = q_start + query.x.shape[1], k_start + key.x.shape[1]
            of_stream = turns if turns is None or len(queries) == 1 else turns.of_tokens(slice(q_start, q_end))
            rotary_heads(query, key, of_stream, is_whole=layer.num_heads is not None)
            q_start, k_start = q_end, k_end
        return q, k

    return forward


def _heads(layer: RotaryHeads, part: Part, out: torch.Tensor, start: int) -> Heads:
    """Return queries or keys of a stream, and where in `out` they go, as the kernel takes them."""
    tokens, form = _prepared(*part)
    heads = _token_first(layer, tokens if layer.num_heads is None else layer.split(tokens))
    if heads.stride(-1) != 1:
        heads = heads.contiguous()
    return Heads(heads, form, _token_first(layer, out)[:, start : start + heads.shape[1]])


def _shape(layer: RotaryHeads, parts: Sequence[Part]) -> tuple[int, ...]:
    """Return the shape of the result of streams."""
    x = parts[0][0]
    token_dim = layer.token_dim if x.ndim == 4 else 1
    num_tokens = sum(stream.shape[token_dim] for stream, _ in parts)
    if layer.num_heads is not None:
        heads = (num_tokens, layer.num_heads) if layer.token_dim == 1 else (layer.num_heads, num_tokens)
        return x.shape[0], *heads, x.shape[-1] // layer.num_heads
    return *x.shape[:token_dim], num_tokens, *x.shape[token_dim + 1 :]


def _can_fuse(layer: RotaryHeads, parts: Sequence[Part]) -> bool:
    """Return True for streams of one type, whose heads, or whose tokens, a program can hold."""
    first = parts[0][0]
    numbers = first.shape[-1] * (1 if layer.num_heads is None else 2)
    return (
        first.dtype in TYPES
        and numbers <= MAX_NUMBERS
        and first.shape[-1] % 2 == 0
        and all(_fits(x, first) and x.ndim == first.ndim for x, _ in parts)
    )


def _token_first(layer: RotaryHeads, x: torch.Tensor) -> torch.Tensor:
    """Return heads, or channels of all heads [B, T, D], as [B, T, H, W]."""
    if x.ndim == 3:
        return x.unsqueeze(2)
    return x.transpose(1, 2) if layer.token_dim == 2 else x


def _turns(layer: RotaryHeads, tables: Tables, shape: tuple[int, ...], x: torch.Tensor) -> Turns | None:
    """Return rotations as the kernel takes them for a result of this shape, or None where it cannot."""
    inner = 3 if layer.layout is RotaryLayout.MATRICES else 1
    given = (tables,) if isinstance(tables, torch.Tensor) else tables
    own = [table for item in given if (table := _table(layer, item, inner, shape)) is not None]
    if len(own) < len(given) or len({(table.shape, table.dtype) for table in own}) > 1:
        return None
    first = own[0]
    is_float32 = first.dtype == torch.float32 or (layer.is_float32 and inner == 1)
    if first.device != x.device or not (is_float32 or first.dtype == x.dtype):
        return None
    if any(size not in (1, full) for size, full in zip(first.shape[:3], _token_first_shape(layer, shape), strict=True)):
        return None
    width, count = shape[-1], first.shape[3]
    num_pairs = count // 2 if layer.layout is RotaryLayout.CHANNELS else count
    is_whole = 2 * num_pairs == width and (layer.layout is not RotaryLayout.CHANNELS or count == width)
    if not (is_whole or (layer.layout is RotaryLayout.HALVES and 2 * num_pairs < width)):
        return None
    rounds = not is_float32 and x.dtype != torch.float32
    return Turns(LAYOUTS[layer.layout], first, own[1] if len(own) == 2 else None, num_pairs, rounds)


def _table(layer: RotaryHeads, table: torch.Tensor, inner: int, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return a table as [B, T, H, inner ...], with 1 where it is shared and inner dimensions next to each other."""
    missing = len(shape) - 1 - (table.ndim - inner)
    if missing < 0:
        return None
    table = table[(None,) * missing]
    if len(shape) == 3:
        table = table.unsqueeze(2)
    elif layer.token_dim == 2:
        table = table.transpose(1, 2)
    strides = (4, 2, 1) if inner == 3 else (1,)
    return table if table.stride()[3:] == strides else table.contiguous()


def _token_first_shape(layer: RotaryHeads, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return batch, tokens and heads of a result of this shape."""
    if len(shape) == 3:
        return shape[0], shape[1], 1
    return (shape[0], shape[2], shape[1]) if layer.token_dim == 2 else shape[:3]


# --- activations -----------------------------------------------------------------------------------------------------


def fused_gated_activation(layer: GatedActivation) -> Forward:
    """Return the fused forward function of a `GatedActivation`."""

    def forward(gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
        gates, values = layer.parts(gate, value)
        if gates.dtype not in TYPES or gates.shape != values.shape or not _fits(values, gates):
            return GatedActivation.forward(layer, gate, value)
        return activate(gates, values, layer.kind, clamps_product=layer.clamps_product)

    return forward


def fused_joined_activation(layer: JoinedActivation) -> Forward:
    """Return the fused forward function of a `JoinedActivation`."""
    activation = layer.activation

    def forward(attended: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
        is_alike = attended.shape[:-1] == inner.shape[:-1] and _fits(attended, inner)
        if inner.dtype not in TYPES or not is_alike:
            return JoinedActivation.forward(layer, attended, inner)
        if isinstance(activation, Gelu):
            kind = "gelu" if activation.approximate == "none" else "gelu_tanh"
            return activate(inner, None, kind, copied=attended)
        gates, values = activation.parts(inner, None)
        return activate(gates, values, activation.kind, copied=attended, clamps_product=activation.clamps_product)

    return forward


FUSED: Final[Mapping[type[nn.Module], Callable[[Any], Forward]]] = {
    RotaryHeads: fused_rotary_heads,
    AdaptiveNorm: fused_adaptive_norm,
    GatedResidual: fused_gated_residual,
    ResidualNorm: fused_residual_norm,
    GatedActivation: fused_gated_activation,
    JoinedActivation: fused_joined_activation,
}
"""Makers of the fused forward function of a layer, by its class."""
