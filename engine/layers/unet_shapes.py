"""The configuration of a latent-diffusion UNet, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from darkroom.engine.layers.shapes import Shape, Shapes, count_children
from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.layers.unet_layers import (
    BlockSpec,
    ConvSpec,
    DownSpec,
    LayerSpec,
    ResSpec,
    TransformerSpec,
    UpSpec,
)

FIRST = "input_blocks.0.0.weight"  # of every such network, also of its half
DIFFUSERS_FIRST = "conv_in.weight"
FIRST_ATTENTION = "input_blocks.1.1.proj_in.weight"
LABELS = "label_emb.0.0.weight"
LABEL_NUMBERS = "label_emb.weight"
DIFFUSERS_LABELS = ("add_embedding.linear_1.weight", "class_embedding.linear_1.weight")


# By a tensor of a layer: the tensor by which its kind is known.
KNOWN_BY = (
    ("out_layers.3.weight", "in_layers.2.weight"),
    ("norm.weight", "proj_in.weight"),
    ("op.bias", "op.weight"),
    ("conv.bias", "conv.weight"),
    ("bias", "weight"),
)


class UnknownLayer(LookupError):
    """A layer of the file that the network does not have, by the tensor it lacks."""


@dataclass(frozen=True, slots=True)
class UnetTraits:
    """Properties that distinguish the UNets of families.

    `context_dim` is 0 without cross attention, `label_dim` and `num_labels` without labels. `has_first_attention` says
    that there is a transformer on the level of full size.
    """

    in_channels: int
    model_channels: int
    context_dim: int
    uses_linear: bool
    label_dim: int
    has_first_attention: bool
    has_time_attention: bool
    num_labels: int = 0


def unet_traits(shapes: Shapes) -> UnetTraits:
    """Return the traits of a UNet, or of its first half (names without prefix)."""
    context = next((shape for name, shape in shapes.items() if name.endswith("attn2.to_k.weight")), (0, 0))
    projection = next((shape for name, shape in shapes.items() if name.endswith("proj_in.weight")), (0, 0, 1, 1))
    return UnetTraits(
        in_channels=shapes[FIRST][1],
        model_channels=shapes[FIRST][0],
        context_dim=context[1],
        uses_linear=len(projection) == 2,
        label_dim=_label_dim(shapes, LABELS),
        has_first_attention=FIRST_ATTENTION in shapes,
        has_time_attention=any(".time_stack." in name for name in shapes),
        num_labels=_num_labels(shapes),
    )


def unet_config(shapes: Shapes, *, head_channels: int | None = None) -> UnetConfig:
    """Return every layer of the UNet with these tensors (names without prefix).

    The shapes do not tell the number of attention heads: `head_channels` is that of `UnetConfig`.
    """
    first, last = shapes[FIRST], shapes["out.2.weight"]
    return UnetConfig(
        in_channels=first[1],
        out_channels=last[0],
        model_channels=first[0],
        input_blocks=_blocks(shapes, "input_blocks"),
        middle_block=_block(shapes, "middle_block"),
        output_blocks=_blocks(shapes, "output_blocks"),
        head_channels=head_channels,
        label_dim=_label_dim(shapes, LABELS),
        num_labels=_num_labels(shapes),
    )


def unet_half_config(shapes: Shapes, *, head_channels: int | None = None) -> UnetConfig:
    """Return the configuration of the first half of a UNet (a ControlNet), without output blocks."""
    first = shapes[FIRST]
    blocks, middle = _blocks(shapes, "input_blocks"), _block(shapes, "middle_block")
    return UnetConfig(
        first[1], first[0], first[0], blocks, middle, output_blocks=(), head_channels=head_channels,
        label_dim=_label_dim(shapes, LABELS),
    )  # fmt: skip


def diffusers_unet_config(shapes: Shapes) -> UnetConfig:
    """Return the configuration of a UNet, or of its first half, under the names of the diffusers library."""
    first = shapes["conv_in.weight"]
    inputs: list[BlockSpec] = [(ConvSpec(first[1], first[0]),)]
    for level in range(count_children(shapes, "down_blocks")):
        inputs += _diffusers_level(shapes, f"down_blocks.{level}")
    outputs: list[BlockSpec] = []
    for level in range(count_children(shapes, "up_blocks")):
        outputs += _diffusers_level(shapes, f"up_blocks.{level}")
    out_channels = shapes.get("conv_out.weight", first)[0]
    labels = _label_dim(shapes, *DIFFUSERS_LABELS)
    return UnetConfig(
        first[1], out_channels, first[0], tuple(inputs), _diffusers_middle(shapes), tuple(outputs), label_dim=labels
    )


def _label_dim(shapes: Shapes, *names: str) -> int:
    """Return the width of the labels that one of these weights takes; 0 without one."""
    return next((shapes[name][1] for name in names if name in shapes), 0)


def _num_labels(shapes: Shapes) -> int:
    """Return the number of labels of a network that is given one by its number; 0 for others."""
    return shapes.get(LABEL_NUMBERS, (0,))[0]


def _diffusers_middle(shapes: Shapes) -> BlockSpec:
    """Return the middle block: a residual block, and further ones each behind a transformer; distilled ones lack some.

    A network of which the file has nothing of the middle has an empty one.
    """
    layers: list[LayerSpec] = []
    for index in range(count_children(shapes, "mid_block.resnets")):
        if f"mid_block.attentions.{index - 1}.proj_in.weight" in shapes:
            layers.append(_diffusers_transformer(shapes, f"mid_block.attentions.{index - 1}"))
        layers.append(_diffusers_resnet(shapes, f"mid_block.resnets.{index}"))
    return tuple(layers)


def _diffusers_level(shapes: Shapes, name: str) -> list[BlockSpec]:
    """Return the blocks up to a change of size: a block of its own on the way down, in the last block on the way up."""
    blocks: list[BlockSpec] = []
    for index in range(count_children(shapes, f"{name}.resnets")):
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
    depth = count_children(shapes, f"{name}.transformer_blocks")
    return TransformerSpec(projection[0], depth, context[1], uses_linear=len(projection) == 2)


def _blocks(shapes: Shapes, name: str) -> tuple[BlockSpec, ...]:
    return tuple(_block(shapes, f"{name}.{index}") for index in range(count_children(shapes, name)))


def _block(shapes: Shapes, name: str) -> BlockSpec:
    return tuple(_layer(shapes, f"{name}.{index}") for index in range(count_children(shapes, name)))


def _layer(shapes: Shapes, name: str) -> LayerSpec:
    def shape(tensor: str) -> Shape | None:
        return shapes.get(f"{name}.{tensor}")

    if conv := shape("weight"):
        return ConvSpec(conv[1], conv[0])
    if res := shape("in_layers.2.weight"):
        width = _agreed(res[1], shape("in_layers.0.weight"), shape("in_layers.0.bias"))
        out_width = _agreed(res[0], shape("in_layers.2.bias"), shape("out_layers.0.weight"), shape("out_layers.3.bias"))
        return ResSpec(width, out_width, is_temporal=shape("time_stack.in_layers.2.weight") is not None)
    if projection := shape("proj_in.weight"):
        context = shape("transformer_blocks.0.attn2.to_k.weight") or (0, 0)
        first = shape("transformer_blocks.0.attn1.to_k.weight") or (0, projection[0])
        return TransformerSpec(
            projection[0],
            count_children(shapes, f"{name}.transformer_blocks"),
            context[1],
            uses_linear=len(projection) == 2,
            attends_context_only=first[1] != projection[0],
            is_temporal=shape("time_stack.0.attn1.to_q.weight") is not None,
        )
    if down := shape("op.weight"):
        return DownSpec(down[1], down[0])
    if up := shape("conv.weight"):
        return UpSpec(up[1], up[0])
    lacking = next((kind for present, kind in KNOWN_BY if shape(present) is not None), None)
    raise UnknownLayer(name if lacking is None else f"{name}.{lacking}")


def _agreed(width: int, *vectors: Shape | None) -> int:
    """Return the width that most of a layer's tensors have: reading the file refuses one of another width by name."""
    widths = Counter([width, *(shape[0] for shape in vectors if shape)])
    return widths.most_common(1)[0][0]
