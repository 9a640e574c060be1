"""LoRA files: whose weights their names mean, and the patches they hold.

Files come from many trainers. A file's tensor is called `<name of a weight>.<part of an adapter>`; the name follows the
original checkpoints with underscores (kohya), the diffusers library, or is the weight's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from engine.checkpoints.diffusers_names import unet_names
from engine.models.unet import UnetConfig
from engine.models.weight_adapters import (
    BoftAdapter,
    GloraAdapter,
    LohaAdapter,
    LokrAdapter,
    LoraAdapter,
    OftAdapter,
    WeightAdapter,
)

UNET_PREFIX = "diffusion_model."
TEXT_PREFIX = "clip_l.transformer."
TEXT_LAYERS = "text_model.encoder.layers."

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


def unet_keys(weight_names: Iterable[str], config: UnetConfig) -> dict[str, str]:
    """What files call a weight of the denoising network -> the weight's name in the network."""
    keys: dict[str, str] = {}
    known = [name for name in weight_names if name.startswith(UNET_PREFIX)]
    for name in known:
        bare = name.removesuffix(".weight")
        keys[bare] = name
        if bare != name:
            keys["lora_unet_" + bare.removeprefix(UNET_PREFIX).replace(".", "_")] = name
    for theirs, ours in unet_names(config).items():
        if not theirs.endswith(".weight"):
            continue
        bare, name = theirs.removesuffix(".weight"), UNET_PREFIX + ours
        flat = bare.replace(".", "_")
        processor = bare.replace(".to_", ".processor.to_")
        if processor.endswith(".to_out.0"):
            processor = processor.removesuffix(".0")
        for key in (f"lora_unet_{flat}", f"lycoris_{flat}", processor, f"unet.{processor}"):
            keys[key] = name
    return keys


def text_encoder_keys(weight_names: Iterable[str]) -> dict[str, str]:
    """What files call a weight of CLIP's text encoder -> the weight's name in the network."""
    keys: dict[str, str] = {}
    for name in weight_names:
        if not name.endswith(".weight"):
            continue
        bare = name.removesuffix(".weight")
        keys[f"text_encoders.{bare}"] = name
        inner = bare.removeprefix(TEXT_PREFIX)
        if inner.startswith(TEXT_LAYERS) and ".layer_norm" not in inner:
            flat = inner.replace(".", "_")
            for key in (f"lora_te_{flat}", f"lora_te1_{flat}", f"text_encoder.{inner}"):
                keys[key] = name
        elif inner == "text_projection":
            keys["lora_te1_text_projection"] = name
    return keys


def lora_patches(lora: Tensors, keys: Mapping[str, str], *, warn: bool = True) -> dict[str, Any]:
    """The file's patches by name of weight. Tensors that name none of the weights are warned about."""
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
    """The adapter of one weight. Where a file holds several kinds, the last one counts, as in ComfyUI."""
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
    """Differences of whole tensors, and tensors that replace the weight."""
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
