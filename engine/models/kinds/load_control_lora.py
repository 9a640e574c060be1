"""Control-LoRA files: a ControlNet as low-rank differences to the UNet that it runs beside.

A layer has `NAME.up` [O, r] and `NAME.down` [r, I], to be added to the UNet's own weight, or a whole weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import set_weight
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import WeightFile
from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.models.kinds.controlnet import ControlNetModel

MARK = "lora_controlnet"
HINT = "input_hint_block.0.weight"
WEIGHT = ".weight"


def is_control_lora(file: WeightFile) -> bool:
    """Return True if a file holds differences of low rank to a UNet. Raises `BadModelFile` for an incomplete one."""
    if MARK not in file.tensors:
        return False
    if HINT not in file.tensors:
        raise BadModelFile(file.path.name, f"a Control-LoRA without the tensor {HINT}", "a whole Control-LoRA")
    return True


def build_control_lora(
    lora: Mapping[str, torch.Tensor],
    unet: UnetConfig,
    base_weight: Callable[[str], torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> ControlNetModel:
    """Return the ControlNet beside a UNet of that configuration.

    `base_weight` gives the weights of the UNet by name; those that the file leaves alone are shared where they are of
    that type and on that device. Raises LookupError for a weight that neither has.
    """
    half = replace(unet, output_blocks=(), out_channels=unet.model_channels)
    with unfilled():
        network = ControlNetModel(half, hint_channels=lora[HINT].shape[1])
    for name in network.state_dict():
        stored = lora.get(name)
        weight = (base_weight(name) if stored is None else stored).to(device, dtype)
        layer = name.removesuffix(WEIGHT)
        if name.endswith(WEIGHT) and f"{layer}.up" in lora:
            weight = weight + _difference(lora, layer, weight)
        set_weight(network, name, weight)
    return network.eval()


def _difference(lora: Mapping[str, torch.Tensor], layer: str, weight: torch.Tensor) -> torch.Tensor:
    up, down = (lora[f"{layer}.{part}"].to(weight).flatten(1) for part in ("up", "down"))
    if (up.shape[0], down.shape[1]) != (weight.shape[0], weight[0].numel()):
        raise ValueError(
            f"Control-LoRA: {layer} does not fit the model; got a difference of {up.shape[0]} by {down.shape[1]}, "
            f"expected {weight.shape[0]} by {weight[0].numel()}"
        )
    return (up @ down).reshape(weight.shape)
