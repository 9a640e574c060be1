"""Files of random weights that fit the small checkpoint: LoRAs, a ControlNet, an upscaling network."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.registry import default_family
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.kinds.controlnet import ControlNetModel
from darkroom.engine.models.kinds.upscaler import RrdbConfig, RrdbNet

LORAS = ("first.safetensors", "second.safetensors")
CONTROL_NET = "small_control.safetensors"
UPSCALER = "twice.safetensors"


def write_small_models(models: Path) -> None:
    """Writes below a `models` folder what is not there yet."""
    torch.manual_seed(0)
    for name in LORAS:
        _write(models / "loras" / name, _lora())
    write_control_net(models / "controlnet" / CONTROL_NET, default_family())
    config = RrdbConfig(in_channels=3, out_channels=3, width=8, growth=4, num_blocks=1, num_doublings=1)
    _write(models / "upscale_models" / UPSCALER, RrdbNet(config).state_dict())


def write_control_net(path: Path, family: ModelFamily) -> None:
    """Write a ControlNet for the small scale of a family of UNets."""
    net = ControlNetModel(family.scales["small"].denoiser)
    weights = {f"control_model.{key}": torch.randn_like(weight) * 0.05 for key, weight in net.state_dict().items()}
    _write(path, weights)


def write_lora(path: Path, family: ModelFamily, checkpoint: Path) -> None:
    """Write a LoRA for the cross attention of a checkpoint's network."""
    shapes = SafetensorsFile(checkpoint).shapes
    names = family.denoiser_lora_keys(
        [f"diffusion_model.{name.removeprefix(PREFIX)}" for name in shapes if name.startswith(PREFIX)],
        family.scales["small"].denoiser,
    )
    tensors = {}
    for key, name in names.items():
        if not isinstance(name, str) or not key.startswith("lora_unet_") or not name.endswith("attn2.to_k.weight"):
            continue
        outputs, inputs = shapes[PREFIX + name.removeprefix("diffusion_model.")]
        tensors[f"{key}.lora_up.weight"] = torch.randn(outputs, 2)
        tensors[f"{key}.lora_down.weight"] = torch.randn(2, inputs)
    _write(path, tensors)


def _lora() -> dict[str, torch.Tensor]:
    layers = (
        "unet_input_blocks_1_1_transformer_blocks_0_attn2_to_k",
        "te_text_model_encoder_layers_0_self_attn_q_proj",
    )
    sides = {"lora_up": (64, 2), "lora_down": (2, 64)}
    return {f"lora_{layer}.{side}.weight": torch.randn(shape) for layer in layers for side, shape in sides.items()}


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(path, {key: tensor.contiguous() for key, tensor in tensors.items()})
