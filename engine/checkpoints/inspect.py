"""Tensor names and shapes -> what a file holds: its family, and the configuration of each network. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.architectures.autoencoder_kl import VaeConfig
from engine.architectures.clip_text import ClipTextConfig
from engine.architectures.latent_unet import (
    BlockSpec,
    ConvSpec,
    DownSpec,
    LayerSpec,
    ResSpec,
    TransformerSpec,
    UnetConfig,
    UpSpec,
)
from engine.checkpoints.families import sd15

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Prediction = Literal["eps", "v"]


class NotRecognised(Exception):
    """The tensors are not those of a network the engine has; `found` says what they look like."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


@dataclass(frozen=True, slots=True)
class CheckpointFamily:
    """What differs between files of one architecture."""

    name: str
    prediction: Prediction = "eps"
    zero_terminal_snr: bool = False
    is_inpaint: bool = False
    is_edit: bool = False  # InstructPix2Pix: it sees the picture to be changed


# Tensors by which other architectures and other kinds of file are known, most telling first.
OTHER_FILES: tuple[tuple[str, str], ...] = (
    ("conditioner.embedders.1.", "a Stable Diffusion XL checkpoint"),
    ("conditioner.embedders.0.model.", "a Stable Diffusion XL refiner or 2.x checkpoint"),
    ("model.diffusion_model.label_emb.", "a Stable Diffusion XL or unCLIP checkpoint"),
    ("label_emb.", "the UNet of Stable Diffusion XL"),
    ("cond_stage_model.model.", "a Stable Diffusion 2.x checkpoint"),
    ("model.diffusion_model.joint_blocks.", "a Stable Diffusion 3 checkpoint"),
    ("joint_blocks.", "the network of Stable Diffusion 3"),
    ("model.diffusion_model.double_blocks.", "a Flux checkpoint"),
    ("double_blocks.", "the network of Flux"),
    ("lora_unet_", "a LoRA"),
    ("lora_te_", "a LoRA"),
    ("control_model.", "a ControlNet"),
    ("controlnet_", "a ControlNet in diffusers layout"),
    ("input_hint_block.", "a ControlNet"),
    ("down_blocks.", "a UNet in diffusers layout"),
    ("string_to_param", "a textual inversion"),
    ("clip_l", "a textual inversion"),
    ("emb_params", "a textual inversion"),
)
PARTS: tuple[tuple[str, str], ...] = (
    ("text_model.encoder.", "a CLIP text encoder"),
    ("decoder.conv_in.", "a VAE"),
    ("input_blocks.", "a UNet without VAE and text encoder"),
    ("diffusion_model.input_blocks.", "a UNet without VAE and text encoder"),
    ("model.diffusion_model.", "a UNet without VAE and text encoder"),
)


def describe(shapes: Shapes) -> str:
    """What a file seems to be, for error messages."""
    for prefix, description in (*OTHER_FILES, *PARTS):
        if any(name.startswith(prefix) for name in shapes):
            return description
    return f"{len(shapes)} tensors of no known network" + (f", {next(iter(shapes))!r} first" if shapes else "")


def checkpoint_family(shapes: Shapes, metadata: Mapping[str, str] | None = None) -> CheckpointFamily:
    """The family of a whole checkpoint. Raises `NotRecognised`."""
    parts = (
        sd15.UNET_PREFIX + "input_blocks.0.0.weight",
        sd15.VAE_PREFIX + "decoder.conv_in.weight",
    )
    has_text = any(name.startswith(sd15.TEXT_PREFIX + "transformer.") for name in shapes)
    if not has_text or any(part not in shapes for part in parts):
        raise NotRecognised(describe(shapes))
    return unet_family(without_prefix(shapes, sd15.UNET_PREFIX), shapes, metadata)


def unet_family(unet: Shapes, whole: Shapes, metadata: Mapping[str, str] | None = None) -> CheckpointFamily:
    """The family of a UNet in a file (`whole`), whose marks (`v_pred`, `ztsnr`) count. Raises `NotRecognised`."""
    if "label_emb.0.0.weight" in unet:
        raise NotRecognised("the UNet of Stable Diffusion XL")
    context = next((shape for name, shape in unet.items() if name.endswith("attn2.to_k.weight")), None)
    if context is None or "input_blocks.0.0.weight" not in unet:
        raise NotRecognised(describe(whole))
    if context[1] in (1024, 2048, 1280):
        raise NotRecognised(f"a UNet for text encoders of width {context[1]} (Stable Diffusion 2.x or XL)")
    in_channels = unet["input_blocks.0.0.weight"][1]
    if in_channels not in (4, 8, 9):
        raise NotRecognised(f"a UNet of {in_channels} input channels")
    told = (metadata or {}).get("modelspec.prediction_type", "").lower()
    return CheckpointFamily(
        sd15.NAME,
        prediction="v" if "v_pred" in whole or told.startswith("v") else "eps",
        zero_terminal_snr="ztsnr" in whole,
        is_inpaint=in_channels == 9,
        is_edit=in_channels == 8,
    )


def without_prefix(shapes: Shapes, prefix: str) -> dict[str, Shape]:
    return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}


def find_prefix(shapes: Shapes, prefixes: tuple[str, ...], ending: str) -> str | None:
    """The prefix under which the tensor `ending` is there; None when it is under none of them."""
    return next((prefix for prefix in prefixes if prefix + ending in shapes), None)


# --- configurations --------------------------------------------------------------------------------------------------


def unet_config(shapes: Shapes) -> UnetConfig:
    """Every layer of the UNet whose tensors these are (names without prefix)."""
    first, last = shapes["input_blocks.0.0.weight"], shapes["out.2.weight"]
    return UnetConfig(
        in_channels=first[1],
        out_channels=last[0],
        model_channels=first[0],
        input_blocks=_blocks(shapes, "input_blocks"),
        middle_block=_block(shapes, "middle_block"),
        output_blocks=_blocks(shapes, "output_blocks"),
    )


def unet_half_config(shapes: Shapes) -> UnetConfig:
    """Of a network that is the first half of a UNet (a ControlNet), without output blocks."""
    first = shapes["input_blocks.0.0.weight"]
    blocks, middle = _blocks(shapes, "input_blocks"), _block(shapes, "middle_block")
    return UnetConfig(first[1], first[0], first[0], blocks, middle, output_blocks=())


def diffusers_unet_config(shapes: Shapes) -> UnetConfig:
    """Of a UNet, or its first half, whose tensors have the names of the diffusers library."""
    first = shapes["conv_in.weight"]
    inputs: list[BlockSpec] = [(ConvSpec(first[1], first[0]),)]
    for level in range(_count(shapes, "down_blocks")):
        inputs += _diffusers_level(shapes, f"down_blocks.{level}")
    outputs: list[BlockSpec] = []
    for level in range(_count(shapes, "up_blocks")):
        outputs += _diffusers_level(shapes, f"up_blocks.{level}")
    inner = (_diffusers_resnet(shapes, f"mid_block.resnets.{index}") for index in range(2))
    middle = (next(inner), _diffusers_transformer(shapes, "mid_block.attentions.0"), next(inner))
    out_channels = shapes.get("conv_out.weight", first)[0]
    return UnetConfig(first[1], out_channels, first[0], tuple(inputs), middle, tuple(outputs))


def _diffusers_level(shapes: Shapes, name: str) -> list[BlockSpec]:
    """The blocks between two changes of size, and the change: a block of its own on the way down, else in the last."""
    blocks: list[BlockSpec] = []
    for index in range(_count(shapes, f"{name}.resnets")):
        layers: list[LayerSpec] = [_diffusers_resnet(shapes, f"{name}.resnets.{index}")]
        if f"{name}.attentions.{index}.proj_in.weight" in shapes:
            layers.append(_diffusers_transformer(shapes, f"{name}.attentions.{index}"))
        blocks.append(tuple(layers))
    if down := shapes.get(f"{name}.downsamplers.0.conv.weight"):
        blocks.append((DownSpec(down[1], down[0]),))
    if up := shapes.get(f"{name}.upsamplers.0.conv.weight"):
        blocks[-1] = (*blocks[-1], UpSpec(up[1], up[0]))
    return blocks


def _diffusers_resnet(shapes: Shapes, name: str) -> ResSpec:
    conv = shapes[f"{name}.conv1.weight"]
    return ResSpec(conv[1], conv[0])


def _diffusers_transformer(shapes: Shapes, name: str) -> TransformerSpec:
    projection = shapes[f"{name}.proj_in.weight"]
    context = shapes[f"{name}.transformer_blocks.0.attn2.to_k.weight"]
    depth = _count(shapes, f"{name}.transformer_blocks")
    return TransformerSpec(projection[0], depth, context[1], uses_linear=len(projection) == 2)


def _blocks(shapes: Shapes, name: str) -> tuple[BlockSpec, ...]:
    return tuple(_block(shapes, f"{name}.{index}") for index in range(_count(shapes, name)))


def _block(shapes: Shapes, name: str) -> BlockSpec:
    return tuple(_layer(shapes, f"{name}.{index}") for index in range(_count(shapes, name)))


def _layer(shapes: Shapes, name: str) -> LayerSpec:
    def shape(tensor: str) -> Shape | None:
        return shapes.get(f"{name}.{tensor}")

    if conv := shape("weight"):
        return ConvSpec(conv[1], conv[0])
    if res := shape("in_layers.2.weight"):
        return ResSpec(res[1], res[0])
    if projection := shape("proj_in.weight"):
        context = shape("transformer_blocks.0.attn2.to_k.weight") or (0, 0)
        depth = _count(shapes, f"{name}.transformer_blocks")
        return TransformerSpec(projection[0], depth, context[1], uses_linear=len(projection) == 2)
    if down := shape("op.weight"):
        return DownSpec(down[1], down[0])
    if up := shape("conv.weight"):
        return UpSpec(up[1], up[0])
    raise NotRecognised(f"a UNet with an unknown layer {name!r}")


def _count(shapes: Shapes, name: str) -> int:
    """How many numbered children `name.0`, `name.1`... there are."""
    prefix = name + "."
    numbers = {key[len(prefix) :].split(".", 1)[0] for key in shapes if key.startswith(prefix)}
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)


def vae_config(shapes: Shapes) -> VaeConfig:
    """Of a VAE's tensors (names without prefix). Raises `NotRecognised`."""
    if "decoder.conv_in.weight" not in shapes or "encoder.conv_in.weight" not in shapes:
        raise NotRecognised(describe(shapes))
    if shapes["decoder.conv_in.weight"][1] != 4 or "post_quant_conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of {shapes['decoder.conv_in.weight'][1]} latent channels of another family")
    first = shapes["encoder.conv_in.weight"]
    levels = range(_count(shapes, "encoder.down"))
    return VaeConfig(
        base_channels=first[0],
        level_channels=tuple(shapes[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in levels),
        blocks_per_level=_count(shapes, "encoder.down.0.block"),
        latent_channels=shapes["decoder.conv_in.weight"][1],
        embedding_channels=shapes["post_quant_conv.weight"][1],
        picture_channels=first[1],
    )


def clip_text_config(shapes: Shapes) -> ClipTextConfig:
    """Of a text encoder's tensors (names from `text_model.` on). Raises `NotRecognised`."""
    table = shapes.get("text_model.embeddings.token_embedding.weight")
    inner = shapes.get("text_model.encoder.layers.0.mlp.fc1.weight")
    positions = shapes.get("text_model.embeddings.position_embedding.weight")
    if table is None or inner is None or positions is None:
        raise NotRecognised(describe(shapes))
    if table[1] in (1024, 1280):
        raise NotRecognised(f"a CLIP text encoder of width {table[1]} (Stable Diffusion 2.x or XL)")
    return ClipTextConfig(
        num_layers=_count(shapes, "text_model.encoder.layers"),
        width=table[1],
        heads=max(1, table[1] // 64),
        inner_width=inner[0],
        vocabulary_size=table[0],
        num_positions=positions[0],
    )
