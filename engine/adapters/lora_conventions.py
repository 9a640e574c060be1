"""LoRA files whose names follow a convention of their own, under the names that others use.

Which one a file follows is seen in its names alone: they are renamed before a model is looked at, as in ComfyUI
(`comfy/lora_convert.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from darkroom.engine.adapters.lora_names import DENOISER_PREFIX

FIRST_DOWN, FIRST_UP = "img_in.lora_A.weight", "img_in.lora_B.weight"
TOOL_MARKS = (FIRST_DOWN, FIRST_UP, "single_blocks.0.norm.key_norm.scale")
# Parts of names in Black Forest Labs' LoRAs for Canny and Depth, and those that they stand for.
TOOL_NAMES = ((".lora_B.bias", ".diff_b"), ("_norm.scale", "_norm.scale.set_weight"))
PROCESSOR_MARKS = (
    "single_blocks.37.processor.qkv_lora.up.weight",
    "double_blocks.18.processor.qkv_lora2.up.weight",
)
# The same of LoRAs that are the attention processors of a trainer (USO: Wu et al. 2025, arXiv 2508.18966).
PROCESSOR_NAMES = (
    (".down.weight", ".lora_down.weight"), (".up.weight", ".lora_up.weight"), (".qkv_lora2.", ".txt_attn.qkv."),
    (".qkv_lora1.", ".img_attn.qkv."), (".proj_lora1.", ".img_attn.proj."), (".proj_lora2.", ".txt_attn.proj."),
    (".qkv_lora.", ".linear1_qkv."), (".proj_lora.", ".linear2."), (".processor.", "."),
)  # fmt: skip
# Prefixes of kohya's scripts with an empty name of a module in between, as those of Wan-Fun write them.
EMPTY_MODULES = {"lora_unet__": "lora_unet_", "lora_te__": "lora_te_"}


def under_common_names(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return a LoRA's tensors under the common names; the same ones for files of no convention of their own.

    Those of Black Forest Labs for Canny and Depth add to a first layer that is wider than the network's: it is filled
    up with zeros to their shape.
    """
    if all(mark in tensors for mark in TOOL_MARKS):
        shape = [tensors[FIRST_UP].shape[0], tensors[FIRST_DOWN].shape[1]]
        reshaped = {f"{DENOISER_PREFIX}img_in.reshape_weight": torch.tensor(shape)}
        return {**{_renamed(name, TOOL_NAMES): tensor for name, tensor in tensors.items()}, **reshaped}
    if all(mark in tensors for mark in PROCESSOR_MARKS):
        return {_renamed(name, PROCESSOR_NAMES): tensor for name, tensor in tensors.items()}
    if any(name.startswith(tuple(EMPTY_MODULES)) for name in tensors):
        return {_without_empty_module(name): tensor for name, tensor in tensors.items()}
    return tensors


def _renamed(name: str, parts: Iterable[tuple[str, str]]) -> str:
    for theirs, ours in parts:
        name = name.replace(theirs, ours)
    return DENOISER_PREFIX + name


def _without_empty_module(name: str) -> str:
    for theirs, ours in EMPTY_MODULES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name
