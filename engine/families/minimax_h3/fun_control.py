"""The control of MiniMax H3 (alibaba-pai 2026, "MiniMax-H3-Fun-Controlnet-Union"): blocks that add to some of its own.

They read the network's tokens, with a video's latent (edges, depth, poses; with it a mask and the video around it) in
place of the tokens of videos and images, and what they make is added behind blocks of the network. `B` batch, `S`
tokens, `D` hidden size, `C` channels, `t h w` latent frames, rows and columns. Module names are those of the original
files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from darkroom.engine.families.base import Network, NotRecognised
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.families.minimax_h3.layers import DitBlock, MiniMaxH3Config, Modulated, Rotation
from darkroom.engine.families.minimax_h3.layout import CELLS, Sequencing, Source
from darkroom.engine.families.minimax_h3.tokens import video_tokens
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.patches import pad_to_patches
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options

MARK = "control_blocks.0.before_proj.weight"
EMBEDDER = "control_proj_in"
NUM_LAYERS = 50  # of the network that the published ones are for, over which their blocks are spread
LAYERS, FORM, MASKED = "control_blocks_places", "minimax_h3_fun_controlnet", "inpaint_masked_pixel_mode"  # metadata
CURVE_FORM, GREY_FORM = "adaln_basis", "post_norm"
FLOAT32_ENDS = (f".{EMBEDDER}.weight", f".{EMBEDDER}.bias")
CURVE_FLOAT32_ENDS = (*FLOAT32_ENDS, ".adaln_proj.linear.weight", ".adaln_proj.linear.bias")


@dataclass(frozen=True, slots=True)
class FunControlConfig:
    """Configuration of a control. `blocks` is that of the network whose blocks it has.

    `layers` are the blocks of the network behind which it adds. `hint_channels` are those of a video's latent, of a
    mask and of another video's latent. `masks_to_grey`: what is painted is shown to it in the VAE's mean
    colour, not in black.
    """

    blocks: MiniMaxH3Config
    layers: tuple[int, ...]
    hint_channels: int
    masks_to_grey: bool = False


def fun_control_config(shapes: Shapes) -> FunControlConfig:
    """Return the configuration of the control with these tensors. Raises `NotRecognised` for one of no known depth."""
    block = "control_blocks.0"
    hidden_size, columns = shapes[f"{EMBEDDER}.weight"]
    (head_dim,) = shapes[f"{block}.attn.q_norm.weight"]
    num_blocks = count_children(shapes, "control_blocks")
    blocks = MiniMaxH3Config(
        hidden_size=hidden_size,
        num_heads=shapes[f"{block}.attn.qkv_proj.weight"][0] // (3 * head_dim),
        head_dim=head_dim,
        intermediate_size=shapes[f"{block}.mlp.fc1.weight"][0] // 2,
        time_embed_dim=shapes[f"{block}.adaln_proj.linear.weight"][1],
        num_layers=num_blocks,
    )
    return FunControlConfig(blocks, _spread(num_blocks), columns // CELLS**2)


def _spread(num_blocks: int) -> tuple[int, ...]:
    """Return the layers of so many blocks, evenly over the network. Raises `NotRecognised` for more than it has."""
    if num_blocks > NUM_LAYERS:
        raise NotRecognised(f"a control of {num_blocks} blocks")
    return tuple(range(0, NUM_LAYERS, NUM_LAYERS // num_blocks))


def as_described(config: FunControlConfig, metadata: Mapping[str, str]) -> FunControlConfig:
    """Return the configuration with what no shape shows. Raises `NotRecognised` for layers that there cannot be."""
    layers = config.layers
    if LAYERS in metadata:
        try:
            layers = tuple(int(layer) for layer in json.loads(metadata[LAYERS]))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise NotRecognised(f"a control with metadata that are no layers ({LAYERS})") from error
    if len(layers) != config.blocks.num_layers or layers[0] != 0 or list(layers) != sorted(set(layers)):
        raise NotRecognised(f"a control of {config.blocks.num_layers} blocks for the layers {list(layers)[:8]}")
    reads_curve = metadata.get(FORM) == CURVE_FORM
    return replace(
        config,
        blocks=replace(config.blocks, curve_points=int(reads_curve)),
        layers=layers,
        masks_to_grey=metadata.get(MASKED) == GREY_FORM,
    )


def float32_ends_of(config: FunControlConfig) -> tuple[str, ...]:
    """Return the ends of names of weights that stay float32: of a curve also those that read its coordinates."""
    return CURVE_FLOAT32_ENDS if config.blocks.curve_points else FLOAT32_ENDS


class ControlBlock(DitBlock):
    def __init__(self, config: MiniMaxH3Config, *, is_first: bool) -> None:
        super().__init__(config)
        if is_first:
            self.before_proj = Linear(config.hidden_size, config.hidden_size)
        self.after_proj = Linear(config.hidden_size, config.hidden_size)


class MiniMaxH3FunControl(nn.Module):
    """Blocks of a control, called one by one (`begin`, `step`) behind those of the network."""

    def __init__(self, config: FunControlConfig) -> None:
        super().__init__()
        self.config = config
        self.control_proj_in = Linear(config.hint_channels * CELLS**2, config.blocks.hidden_size)
        self.control_blocks = nn.ModuleList(
            ControlBlock(config.blocks, is_first=index == 0) for index in range(len(config.layers))
        )

    def begin(self, h: torch.Tensor, hint: torch.Tensor, layout: Sequencing) -> torch.Tensor:
        """Return the first block's input [B, S, D], from the network's tokens [B, S, D] before that of its own.

        `hint` [1, C, t, h, w] is the latent of what controls; the channels that it lacks are 0.
        """
        columns = self.control_proj_in.in_features
        rows = video_tokens(pad_to_patches(hint.float(), CELLS))
        shown = self.control_proj_in(pad(rows, (0, columns - rows.shape[-1]))).to(h)
        unseen = self.control_proj_in(rows.new_zeros(1, 1, columns)).to(h)
        parts = list(torch.split(h, [item.num_tokens for item in layout.stretches], dim=1))
        for number, item in enumerate(layout.stretches):
            if item.source == Source.VIDEO:
                seen = shown if number == len(parts) - 1 else unseen
                parts[number] = seen.expand(h.shape[0], item.num_tokens, -1)
        first: Any = self.control_blocks[0]
        begun: torch.Tensor = h + first.before_proj(torch.cat(parts, dim=1))
        return begun

    def step(
        self,
        index: int,
        stream: torch.Tensor,
        times: torch.Tensor,
        modulated: Sequence[Modulated],
        rotation: Rotation,
        layout: Sequencing,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next block's input, and the addition to the network's tokens: nothing to those of audio."""
        block: Any = self.control_blocks[index]
        after: torch.Tensor = block(stream, times, modulated, rotation, options)
        parts = list(torch.split(block.after_proj(after), [item.num_tokens for item in layout.stretches], dim=1))
        for number, item in enumerate(layout.stretches):
            if item.source == Source.AUDIO:
                parts[number] = torch.zeros_like(parts[number])
        return after, torch.cat(parts, dim=1)


FUN_CONTROL = Network(
    layouts=(behind_first(("",), MARK),),
    in_checkpoint=(),
    configure=fun_control_config,
    build=MiniMaxH3FunControl,
    float32_ends=FLOAT32_ENDS,
    float32_ends_of=float32_ends_of,
    as_described=as_described,
)
