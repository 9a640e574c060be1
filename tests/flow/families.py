"""A base directory with a checkpoint of every family of plain workflows, and what a test asks of its worker."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.flux.controlnet import HintKind
from darkroom.engine.families.sd3.controlnet import Sd35ControlNet, Sd35ControlNetConfig
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from tests.engine.families.test_transformer_controlnets import control_network, write_control
from tests.flow.running_worker import RunningWorker
from tests.flow.small_models import write_control_net, write_lora

DEFAULT, *OTHERS = registry.families()
DRAWN = [family for family in OTHERS if family.nodes == DEFAULT.nodes]  # by the modifiers' plain workflows
STEERED = [family for family in DRAWN if family.controls is not None]  # by ControlNets and LoRAs as well
MEASURED = DRAWN[0]
FLUX, SD3 = registry.family_named("flux"), registry.family_named("sd3")
PROJECTIONS = {"flux": "double_blocks_0_img_attn_proj", "sd3": "joint_blocks_0_x_block_attn_proj"}
WIDTH = 128  # of both small networks


def furnish_families(base: Path) -> None:
    """Write the checkpoints, and ControlNets and LoRAs for those of them that take any."""
    models = base / "models"
    (models / "checkpoints").mkdir(parents=True)
    for family in (*DRAWN, FLUX, SD3):
        write_random_checkpoint(models / "checkpoints" / file_of(family), family=family)
    for family in STEERED:
        write_control_net(models / "controlnet" / file_of(family), family)
        write_lora(models / "loras" / file_of(family), family, models / "checkpoints" / file_of(family))
    for family in (FLUX, SD3):
        write_control(models / "controlnet" / file_of(family), control_for(family))
        key = f"lora_unet_{PROJECTIONS[family.name]}"
        pair = {f"{key}.lora_up.weight": torch.randn(WIDTH, 2), f"{key}.lora_down.weight": torch.randn(2, WIDTH)}
        write_safetensors(models / "loras" / file_of(family), pair)


def control_for(family: ModelFamily) -> nn.Module:
    if family is FLUX:
        return control_network(HintKind.LATENT)
    return Sd35ControlNet(Sd35ControlNetConfig(num_blocks=1, width=WIDTH, embeds_twice=True))


def file_of(family: ModelFamily) -> str:
    return f"{family.name}.safetensors"


def sampling_of(worker: RunningWorker, **modifications: Any) -> dict[str, Any]:
    """The inputs of the sampler, as the image of an Image2Image request tells them."""
    asked = {"prompt": "a boat", "input_image": EXAMPLE_IMAGE, "denoise": 0.1, **modifications}
    body = {"input": {"modifier": "Image2Image", "modifications": asked, "return_outputs_as_base64": True}}
    result = worker.generate(body).raise_for_status().json()
    image = Image.open(io.BytesIO(base64.b64decode(result["output"][0]["data"])))
    prompt = json.loads(image.info["prompt"])
    inputs: dict[str, Any] = prompt["3"]["inputs"]
    return inputs


def drawn(worker: RunningWorker, modifier: str, **modifications: Any) -> Image.Image:
    """The image that a modifier gives."""
    body = {"input": {"modifier": modifier, "modifications": modifications, "return_outputs_as_base64": True}}
    result = worker.generate(body).raise_for_status().json()
    return Image.open(io.BytesIO(base64.b64decode(result["output"][0]["data"]))).convert("RGB")
