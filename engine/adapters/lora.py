"""Patches in a LoRA file, by the names of the weights they belong to.

A tensor of such a file is called `<name of a weight>.<part of an adapter>`. `engine/adapters/lora_names.py` has the
names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from engine.adapters.weight_adapters import (
    BoftAdapter,
    GloraAdapter,
    LohaAdapter,
    LokrAdapter,
    LoraAdapter,
    OftAdapter,
    WeightAdapter,
)

# Ending of the upper factor -> of the lower one, kohya's first, then those of diffusers, PEFT and others.
LORA_FACTORS: tuple[tuple[str, str], ...] = (
    (".lora_up.weight", ".lora_down.weight"),
    ("_lora.up.weight", "_lora.down.weight"),
    (".lora_B.weight", ".lora_A.weight"),
    (".lora.up.weight", ".lora.down.weight"),
    (".lora_B", ".lora_A"),
    (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight"),
    (".lora_B.default.weight", ".lora_A.default.weight"),
)

Tensors = Mapping[str, torch.Tensor]
Take = Callable[[str], torch.Tensor | None]  # ending -> tensor, noted as used

log = logging.getLogger(__name__)


def lora_patches(lora: Tensors, keys: Mapping[str, str], *, warn: bool = True) -> dict[str, Any]:
    """Return the file's patches by weight name. Tensors that match no weight are logged as a warning."""
    patches: dict[str, Any] = {}
    used: set[str] = set()
    for key, weight_name in keys.items():

        def take(ending: str, key: str = key) -> torch.Tensor | None:
            tensor = lora.get(key + ending)
            if tensor is not None:
                used.add(key + ending)
            return tensor

        adapter = _adapter(take)
        if adapter is not None:
            patches[weight_name] = adapter
        patches |= _plain_patches(take, weight_name)
    if warn:
        for name in lora:
            if name not in used:
                log.warning("lora key not loaded: %s", name)
    return patches


def _adapter(take: Take) -> WeightAdapter | None:
    """Return the adapter of one weight. Where a file holds several kinds, the last one is used, as in ComfyUI."""
    stored_alpha, dora_scale = take(".alpha"), take(".dora_scale")
    alpha = None if stored_alpha is None else float(stored_alpha.item())
    found: WeightAdapter | None = None
    for read in (_lora, _loha, _lokr, _glora, _orthogonal):
        found = read(take, alpha, dora_scale) or found
    return found


def _lora(take: Take, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    for number, (up_ending, down_ending) in enumerate(LORA_FACTORS):
        up = take(up_ending)
        if up is None:
            continue
        down = _needed(take, down_ending)
        mid = take(".lora_mid.weight") if number == 0 else None
        reshape = take(".reshape_weight")
        return LoraAdapter(up, down, alpha, mid, dora_scale, None if reshape is None else reshape.tolist())
    return None


def _loha(take: Take, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    first = take(".hada_w1_a")
    if first is None:
        return None
    w1_b, w2_a, w2_b = (_needed(take, f".hada_{part}") for part in ("w1_b", "w2_a", "w2_b"))
    return LohaAdapter(first, w1_b, w2_a, w2_b, alpha, take(".hada_t1"), take(".hada_t2"), dora_scale)


def _lokr(take: Take, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    w1, w2, w1_a, w1_b, w2_a, w2_b, t2 = (
        take(f".lokr_{part}") for part in ("w1", "w2", "w1_a", "w1_b", "w2_a", "w2_b", "t2")
    )
    if all(part is None for part in (w1, w2, w1_a, w2_a)):
        return None
    return LokrAdapter(w1, w2, alpha, w1_a, w1_b, w2_a, w2_b, t2, dora_scale)


def _glora(take: Take, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    a1 = take(".a1.weight")
    if a1 is None:
        return None
    a2, b1, b2 = (_needed(take, f".{part}.weight") for part in ("a2", "b1", "b2"))
    return GloraAdapter(a1, a2, b1, b2, alpha, dora_scale)


def _orthogonal(take: Take, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    blocks = take(".oft_blocks")
    if blocks is None:
        return None
    kind = BoftAdapter if blocks.ndim == 4 else OftAdapter
    return kind(blocks, alpha, take(".rescale"), dora_scale)


def _needed(take: Take, ending: str) -> torch.Tensor:
    tensor = take(ending)
    if tensor is None:
        raise ValueError(f"the LoRA holds only a part of an adapter: no tensor ends with {ending!r}")
    return tensor


def _plain_patches(take: Take, weight_name: str) -> dict[str, Any]:
    """Return differences of whole tensors, and tensors that replace the weight."""
    patches: dict[str, Any] = {}
    bias_name = weight_name.removesuffix(".weight") + ".bias"
    for name, kind, endings in (
        (weight_name, "diff", (".w_norm", ".diff")),
        (bias_name, "diff", (".b_norm", ".diff_b")),
        (weight_name, "set", (".set_weight",)),
    ):
        for ending in endings:
            tensor = take(ending)
            if tensor is not None:
                patches[name] = (kind, (tensor,))
    return patches
