"""Weight patches: applied in float32 to a copy, so that restoring the original undoes them.

A patch is `(strength, value, strength of the weight, offset, function)` with a value of ComfyUI's forms: `("diff",
(tensor,))` or `(tensor,)` is added, `("set", (tensor,))` replaces, `("model_as_lora", (tensor,))` adds what another
model's weight is above the original, an object with `calculate_weight` does it itself (LoRA and its relatives), and a
list `[(weight, conversion), patch, ...]` is another model's weight with its own patches, as merging gives it.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

WeightPatch = tuple[float, Any, float, Any, Any]
Patches = Mapping[str, Sequence[WeightPatch]]
Originals = Callable[[str], torch.Tensor]

FLOAT32_BIAS, FLOAT32_MANTISSA_BITS = 127, 23
MANTISSA_BITS: Mapping[torch.dtype, int] = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}

log = logging.getLogger(__name__)


def patched(
    entries: Sequence[WeightPatch],
    weight: torch.Tensor,
    key: str,
    originals: Originals | None = None,
    rounded: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a new tensor: `weight` with the patches, rounded to `rounded`, in its own type and on its own device."""
    changed = calculate_weight(entries, weight.to(torch.float32, copy=True), key, originals)
    if rounded is not None:
        changed = changed.to(rounded)
    if weight.dtype in MANTISSA_BITS:
        return rounded_at_random(changed.to(torch.float32), weight.dtype, key)
    return changed.to(weight.dtype)


def rounded_at_random(values: torch.Tensor, dtype: torch.dtype, key: str) -> torch.Tensor:
    """Round float32 `values` (which are changed) at random to float8, to the nearer of two neighbours more often.

    Neighbouring float8 values are a sixteenth to an eighth apart: rounding to the nearest would lose most of what a
    LoRA adds. Stochastic rounding keeps it in the mean (Gupta et al. 2015, arXiv 1502.02551). The draw depends on `key`
    alone, so that a weight is always patched to the same bits.
    """
    limits = torch.finfo(dtype)
    exponents = torch.frexp(values).exponent  # int32; a value's magnitude is in [0.5, 1) * 2 ** exponent
    exponents.clamp_(min=round(math.log2(limits.smallest_normal)) + 1).sub_(1 + MANTISSA_BITS[dtype])
    spacing = exponents.add_(FLOAT32_BIAS).bitwise_left_shift_(FLOAT32_MANTISSA_BITS).view(torch.float32)  # 2 ** them
    generator = torch.Generator(device=values.device).manual_seed(zlib.crc32(key.encode()))
    values.div_(spacing)
    values.add_(torch.rand(values.shape, generator=generator, device=values.device)).floor_().mul_(spacing)
    return values.clamp_(limits.min, limits.max).to(dtype)


def same_patches(first: Sequence[WeightPatch], second: Sequence[WeightPatch]) -> bool:
    return len(first) == len(second) and all(
        a is b or (a[0] == b[0] and a[1] is b[1] and a[2:] == b[2:]) for a, b in zip(first, second, strict=True)
    )


def calculate_weight(
    patches: Sequence[WeightPatch], weight: torch.Tensor, key: str, originals: Originals | None = None
) -> torch.Tensor:
    """Apply the patches in order to `weight` (float32, changed in place where possible).

    A patch of another shape is skipped with a warning, as in ComfyUI: merging an inpainting network with another one
    relies on it. Raises ValueError for an unknown kind of patch.
    """
    for strength, value, strength_model, offset, given_function in patches:
        function = given_function or _unchanged
        place = weight if offset is None else weight.narrow(*offset)
        if strength_model != 1.0:
            place *= strength_model
        if hasattr(value, "calculate_weight"):
            changed = value.calculate_weight(
                place, key, strength, strength_model, offset, function, torch.float32, originals
            )
        elif isinstance(value, list):
            other = calculate_weight(value[1:], value[0][1](value[0][0].to(place, copy=True)), key, originals)
            changed = _added(place, strength, other, function, key)
        else:
            changed = _plain(place, strength, value, function, key, originals)
        if offset is None:
            weight = changed
    return weight


def _plain(
    place: torch.Tensor,
    strength: float,
    value: Sequence[Any],
    function: Callable[[torch.Tensor], torch.Tensor],
    key: str,
    originals: Originals | None,
) -> torch.Tensor:
    kind, tensors = ("diff", value) if len(value) == 1 else value
    if kind == "diff":
        if len(tensors) > 1 and tensors[1]["pad_weight"] and tensors[0].shape != place.shape:
            place = _padded(place, tensors[0].shape)
        return _added(place, strength, tensors[0], function, key)
    if kind == "set":
        return place.copy_(tensors[0])
    if kind == "model_as_lora" and originals is not None:
        difference = tensors[0].to(place) - originals(key).to(place)
        return place.add_(function(strength * difference))
    raise ValueError(f"{key}: there is no weight patch of kind {kind!r}")


def _added(
    place: torch.Tensor,
    strength: float,
    difference: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    key: str,
) -> torch.Tensor:
    if strength == 0.0:
        return place
    if difference.shape != place.shape:
        log.warning(
            "%s: a patch of shape %s on a weight of shape %s is left out", key, [*difference.shape], [*place.shape]
        )
        return place
    return place.add_(function(strength * difference.to(place)))


def _padded(weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    larger = weight.new_zeros(shape)
    larger[tuple(slice(0, size) for size in weight.shape)] = weight
    return larger


def _unchanged(difference: torch.Tensor) -> torch.Tensor:
    return difference
