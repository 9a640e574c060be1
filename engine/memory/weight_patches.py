"""Weight patches: applied in float32 to a copy, so that restoring the original undoes them.

A patch is `(strength, value, strength of the weight, offset, function)` with a value of ComfyUI's forms: `("diff",
(tensor,))` or `(tensor,)` is added, `("set", (tensor,))` replaces, `("model_as_lora", (tensor,))` adds what another
model's weight is above the original, an object with `calculate_weight` does it itself (LoRA and its relatives), and a
list `[(weight, conversion), patch, ...]` is another model's weight with its own patches, as merging gives it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.log_context import report_warning

WeightPatch = tuple[float, Any, float, Any, Any]
Patches = Mapping[str, Sequence[WeightPatch]]
Originals = Callable[[str], torch.Tensor]

FLOAT8_FORMATS: Mapping[torch.dtype, tuple[int, int]] = {  # bits of the mantissa, bias of the exponent
    torch.float8_e4m3fn: (3, 7),
    torch.float8_e5m2: (2, 15),
}
ROUNDED_AT_ONCE = 4096 * 4096

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
    if weight.dtype in FLOAT8_FORMATS:
        return rounded_at_random(changed.to(torch.float32), weight.dtype, key)
    return changed.to(weight.dtype)


def rounded_at_random(values: torch.Tensor, dtype: torch.dtype, key: str) -> torch.Tensor:
    """Round float32 `values` at random to float8, to the nearer of two neighbours more often.

    Neighbouring float8 values are a sixteenth to an eighth apart: rounding to the nearest would lose most of what a
    LoRA adds. Stochastic rounding keeps it in the mean (Gupta et al. 2015, arXiv 1502.02551). The draw, a byte for each
    value, depends on `key` alone, so that a weight is always patched to the same bits: on a CPU those of ComfyUI.
    """
    return rounded_by_seed(values, dtype, zlib.crc32(key.encode()))


def rounded_by_seed(values: torch.Tensor, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Round float32 `values` at random to float8, with the draws of a seed."""
    generator = torch.Generator(device=values.device).manual_seed(seed)
    draws = torch.randint(256, values.shape, dtype=torch.uint8, device=values.device, generator=generator)
    rounded = torch.empty_like(values, dtype=dtype)
    num_rows = max(1, round(values.shape[0] / max(1.0, values.numel() / ROUNDED_AT_ONCE)))
    for start in range(0, values.shape[0], num_rows):
        rows = slice(start, start + num_rows)
        rounded[rows] = _on_the_grid(values[rows], draws[rows], dtype).to(dtype)
    return rounded


def _on_the_grid(values: torch.Tensor, draws: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float16 numbers that `dtype` has, each one of the two neighbours of a value, by draws of 0..255."""
    mantissa_bits, bias = FLOAT8_FORMATS[dtype]
    limits = torch.finfo(dtype)
    numbers = values.clamp(limits.min, limits.max).half()
    magnitudes = numbers.abs()
    exponents = (magnitudes.log2().floor() + bias).clamp(0, 2 * bias + 1)  # biased; 0 for subnormal numbers
    is_normal = exponents != 0
    steps = torch.where(
        is_normal,
        (magnitudes / 2.0 ** (exponents - bias) - 1.0) * 2**mantissa_bits,
        magnitudes / 2.0 ** (1 - bias - mantissa_bits),
    )
    steps += draws.to(steps.dtype) / 256
    mantissas = steps.floor() / 2**mantissa_bits
    chosen = torch.where(is_normal, 2.0 ** (exponents - bias) * (1.0 + mantissas), 2.0 ** (1 - bias) * mantissas)
    return (torch.where(magnitudes == 0, 0, numbers.sign()) * chosen).clamp(limits.min, limits.max)


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
        given, wanted = [*difference.shape], [*place.shape]
        message = f"{key}: a patch of shape {given} on a weight of shape {wanted} is left out"
        report_warning(log, "patch_left_out", message)
        return place
    return place.add_(function(strength * difference.to(place)))


def _padded(weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    larger = weight.new_zeros(shape)
    larger[tuple(slice(0, size) for size in weight.shape)] = weight
    return larger


def _unchanged(difference: torch.Tensor) -> torch.Tensor:
    return difference
