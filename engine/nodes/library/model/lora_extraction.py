"""A node that saves the difference of two models, as subtraction nodes give it, as a LoRA file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden, Optional
from darkroom.engine.nodes.sockets import CLIP, MODEL
from darkroom.engine.nodes.widgets import Combo, FilePrefix, Flag, Int

LORA_TYPES = ("standard", "full_diff")
CLAMP_QUANTILE = 0.99
UNET_PREFIX = "diffusion_model."
TEXT_PREFIX = "text_encoders."

log = logging.getLogger(__name__)


def low_rank(difference: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the up and down weights of the LoRA nearest to a linear [O, I] or convolution [O, I, h, w] difference.

    Computed from its singular values in float32, clamped at the 99th percentile. Raises RuntimeError when there is no
    such decomposition.
    """
    out_width, in_width, *kernel = difference.shape
    rank = min(rank, in_width, out_width)
    left, values, right = torch.linalg.svd(difference.flatten(1).float(), full_matrices=False)
    up, down = left[:, :rank] * values[:rank], right[:rank]
    limit = torch.quantile(torch.cat([up.flatten(), down.flatten()]), CLAMP_QUANTILE)
    up, down = up.clamp(-limit, limit), down.clamp(-limit, limit)
    if kernel:
        up, down = up.reshape(out_width, rank, 1, 1), down.reshape(rank, in_width, *kernel)
    return up, down


def _extracted(
    model: ModulePatcher, prefix: str, named: str, rank: int, *, as_difference: bool, with_biases: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a file's entries for the weights below `prefix`, with their patches; `named` is the prefix in the file."""
    with model.in_use() as network:
        model.apply_hooks(model.forced_hooks)
        for key in network.state_dict():
            layer, _, kind = key.removeprefix(prefix).rpartition(".")
            if not key.startswith(prefix) or kind not in ("weight", "bias"):
                continue
            weight = model.weights.current_weight(key)
            if kind == "bias":
                if with_biases:
                    yield f"{named}{layer}.diff_b", weight
            elif as_difference or weight.ndim < 2:
                if as_difference or with_biases:
                    yield f"{named}{layer}.diff", weight
            else:
                try:
                    up, down = low_rank(weight, rank)
                except RuntimeError as error:
                    report_warning(log, "weight_left_out", f"{key} is left out of the LoRA: {error}")
                    continue
                yield f"{named}{layer}.lora_up.weight", up
                yield f"{named}{layer}.lora_down.weight", down


@node("LoraSave", display_name="Extract and Save Lora", category="experimental", is_output=True, experimental=True,
      python_module="comfy_extras.nodes_lora_extract", advanced=("rank", "lora_type", "bias_diff"))  # fmt: skip
def lora_save(
    context: NodeContext,
    *,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "loras/ComfyUI_extracted_lora",
    rank: Annotated[int, Int(min=1, max=4096, step=1)] = 8,
    lora_type: Annotated[str, Combo(LORA_TYPES)],
    bias_diff: Annotated[bool, Flag()] = True,
    model_diff: Annotated[MODEL | None, Optional()] = None,
    text_encoder_diff: Annotated[CLIP | None, Optional()] = None,
    prompt: Annotated[object, Hidden("PROMPT")] = None,
    extra_pnginfo: Annotated[object, Hidden("EXTRA_PNGINFO")] = None,
) -> NodeOutput:
    """Save the difference as a LoRA: float16, without metadata, as in ComfyUI.

    `rank` is that of each weight; a full difference has none.
    """
    parts: list[tuple[ModulePatcher, str, str]] = []
    if model_diff is not None:
        parts.append((model_diff, UNET_PREFIX, UNET_PREFIX))
    if text_encoder_diff is not None:
        parts.append((text_encoder_diff.patcher, "", TEXT_PREFIX))
    if not parts:
        return NodeOutput({})
    tensors = {}
    for model, prefix, named in parts:
        entries = _extracted(model, prefix, named, rank, as_difference=lora_type == "full_diff", with_biases=bias_diff)
        for name, weight in entries:
            context.cancel.check()
            tensors[name] = weight.to("cpu", torch.float16, copy=True, memory_format=torch.contiguous_format)
    path: Path = context.files.save_path(filename_prefix, suffix=".safetensors").path
    write_safetensors(path, tensors, {})
    return NodeOutput({})


NODES = (lora_save,)
