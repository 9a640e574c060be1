"""A folder of small models, and a workflow that uses them: checkpoints, a LoRA and a ControlNet of SD1.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from darkroom.engine.families.registry import default_family
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.kinds.controlnet import ControlNetModel
from darkroom.engine.models.random_weights import write_random_checkpoint


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def workflow(
    *,
    first: str = "a",
    second: str | None = "b",
    lora: float | None = 0.7,
    control: bool = True,
    size: int = 64,
    steps: int = 2,
) -> dict[str, Any]:
    """An image by one checkpoint, perhaps with a LoRA and a ControlNet, then perhaps on by another."""
    prompt = {
        "1": node("CheckpointLoaderSimple", ckpt_name=f"{first}.safetensors"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="a (red:1.2) fox"),
        "4": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "5": node("EmptyLatentImage", width=size, height=size, batch_size=1),
        "20": node("SaveLatent", samples=["9", 0], filename_prefix="latent"),
        "21": node("SaveImage", images=["10", 0], filename_prefix="picture"),
    }
    model, positive, negative = ["1", 0], ["3", 0], ["4", 0]
    if lora is not None:
        prompt["2"] = node("LoraLoaderModelOnly", model=model, lora_name="l.safetensors", strength_model=lora)
        model = ["2", 0]
    if control:
        prompt["6"] = node("ControlNetLoader", control_net_name="c.safetensors")
        prompt["7"] = node("EmptyImage", width=size, height=size, batch_size=1, color=0x4080FF)
        prompt["8"] = node(
            "ControlNetApplyAdvanced", positive=positive, negative=negative, control_net=["6", 0], image=["7", 0],
            strength=0.8, start_percent=0.0, end_percent=1.0,
        )  # fmt: skip
        positive, negative = ["8", 0], ["8", 1]
    sampling = {"seed": 5, "steps": steps, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    sampled = {"model": model, "positive": positive, "negative": negative, "latent_image": ["5", 0], **sampling}
    prompt["9"] = node("KSampler", **sampled)
    vae = ["1", 2]
    if second is not None:
        prompt["11"] = node("CheckpointLoaderSimple", ckpt_name=f"{second}.safetensors")
        prompt["12"] = node("CLIPTextEncode", clip=["11", 1], text="a red fox")
        then = {"model": ["11", 0], "positive": ["12", 0], "negative": ["12", 0], "latent_image": ["9", 0]}
        prompt["13"] = node("KSampler", **{**sampled, **then, "denoise": 0.5})
        prompt["20"]["inputs"]["samples"] = ["13", 0]
        vae = ["11", 2]
    prompt["10"] = node("VAEDecode", samples=prompt["20"]["inputs"]["samples"], vae=vae)
    return prompt


def write_small_models(models: Path) -> None:
    """Two checkpoints, a LoRA and a ControlNet, some 100 MB as float32."""
    for seed, name in enumerate("ab"):
        write_random_checkpoint(models / "checkpoints" / f"{name}.safetensors", "small", seed=seed)
    torch.manual_seed(0)
    key = "lora_unet_{place}_attn2_to_k.lora_{part}.weight"
    lora = {}
    for place in ("input_blocks_1_1_transformer_blocks_0", "middle_block_1_transformer_blocks_0"):
        weight = SafetensorsFile(models / "checkpoints" / "a.safetensors").tensors[
            "model.diffusion_model." + place.replace("blocks_1_1_t", "blocks.1.1.t").replace("block_1_t", "block.1.t")
            .replace("blocks_0", "blocks.0") + ".attn2.to_k.weight"
        ]  # fmt: skip
        outputs, inputs = weight.shape
        lora[key.format(place=place, part="up")] = torch.randn(outputs, 2)
        lora[key.format(place=place, part="down")] = torch.randn(2, inputs)
    write_safetensors(models / "loras" / "l.safetensors", lora)
    control = ControlNetModel(default_family().scales["small"].denoiser).state_dict()
    tensors = {f"control_model.{name}": torch.randn_like(weight) * 0.05 for name, weight in control.items()}
    write_safetensors(models / "controlnet" / "c.safetensors", tensors)
