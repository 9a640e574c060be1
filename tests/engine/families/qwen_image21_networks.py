"""Small networks of Qwen-Image 2.1 with weights drawn alike on every machine, and what they are given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from darkroom.engine.families.qwen_image21.transformer import QwenImage21Transformer
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.wan22.vae import OpacityVae

FILE = Path(__file__).with_name("qwen_image21.safetensors")
SMALL = family_named("qwen_image21").scales["small"]
SLOT = 3  # the place in the text where the reference is


def _drawn(seed: int, *shape: int) -> torch.Tensor:
    numbers = np.random.Generator(np.random.PCG64(seed)).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(numbers)


LATENT, REFERENCE = _drawn(1, 1, 64, 6, 4), _drawn(2, 1, 64, 4, 8)
TEXT, TIMES = _drawn(3, 1, 9, SMALL.denoiser.context_dim), torch.tensor([0.7])
IMAGE = _drawn(4, 1, 4, 64, 48).clamp(-1, 1)


def _with_weights(network: nn.Module, deviation: float) -> None:
    for seed, weight in enumerate(network.parameters(), start=10):
        weight.requires_grad_(False).copy_(_drawn(seed, *weight.shape) * deviation)


def separate_network() -> QwenImage21Transformer:
    """Return a transformer whose gates are layers of their own, as those of the diffusers library."""
    network = QwenImage21Transformer(replace(SMALL.denoiser, joins_gates=False))
    _with_weights(network, 0.06)
    return network


def joined_network() -> QwenImage21Transformer:
    """Return the same transformer with gates and values joined, as ComfyUI's files have them."""
    separate = separate_network().state_dict()
    joined = {}
    for name, weight in separate.items():
        if name.endswith("img_mlp.gate_layer.weight"):
            values = separate[name.replace("gate_layer", "proj")]
            joined[name.replace("gate_layer", "gate_up")] = torch.cat([weight, values])
        elif not name.endswith("img_mlp.proj.weight"):
            joined[name] = weight
    network = QwenImage21Transformer(SMALL.denoiser).requires_grad_(False)
    network.load_state_dict(joined)
    return network


def drawn_vae() -> OpacityVae:
    vae = OpacityVae(SMALL.vae)
    _with_weights(vae, 0.08)
    return vae


def diffusers_name(name: str) -> str:
    """Return the diffusers library's name of a weight of the VAE."""
    inner = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2"}
    for ours, theirs in {**inner, "shortcut": "conv_shortcut"}.items():
        name = name.replace(f".{ours}.", f".{theirs}.")
    for way, blocks in (("down", 2), ("up", 3)):
        found = re.sub(rf"\.{way}samples\.(\d+)\.{way}samples\.{blocks}\.", rf".{way}_blocks.\1.{way}sampler.", name)
        name = re.sub(rf"\.{way}samples\.(\d+)\.{way}samples\.(\d+)\.", rf".{way}_blocks.\1.resnets.\2.", found)
    name = name.replace(".middle.1.", ".mid_block.attentions.0.")
    name = name.replace(".middle.0.", ".mid_block.resnets.0.").replace(".middle.2.", ".mid_block.resnets.1.")
    name = re.sub(r"^(encoder|decoder)\.conv1\.", r"\1.conv_in.", name)
    name = name.replace(".head.0.", ".norm_out.").replace(".head.2.", ".conv_out.")
    return re.sub(r"^conv1\.", "quant_conv.", re.sub(r"^conv2\.", "post_quant_conv.", name))
