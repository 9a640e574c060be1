"""Controls of Z-Image's transformer (alibaba-pai 2025, "Fun ControlNet"): blocks beside some of the network's.

Each reads the image that steers and, in the first block of a stack, the image's own tokens, and its output is added
behind one of the network's blocks. `B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` width. Module names
are those of the original checkpoints, with joined queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.lumina2.layers import FLOAT32_EPS, JointBlock, Lumina2Config
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.patches import PATCH, pad_to_patches, patches_channels_last
from darkroom.engine.layers.shapes import Shapes, count_children

EMBEDDER = "control_all_x_embedder.2-1"
MARK = f"{EMBEDDER}.weight"
REFINER_OUTPUT = "control_noise_refiner.0.after_proj.weight"
STEERED_LAYERS = 30  # of the network, over which the blocks are spread
BROKEN_DEPTH = 15  # of the only published control with refining blocks that were not trained


@dataclass(frozen=True, slots=True)
class ZImageFunControlConfig:
    """Configuration of a control. `blocks` is that of the network whose blocks it has.

    `hint_channels` are those of the image's latent, of a mask and of the latent of an image to paint into. With
    `steers_refiners` it adds to the image behind the refining blocks too.
    """

    blocks: Lumina2Config
    num_layers: int
    hint_channels: int
    steers_refiners: bool

    @property
    def step(self) -> int:
        """Blocks of the network from one that is steered to the next."""
        return round(STEERED_LAYERS / self.num_layers)


def z_image_fun_control_config(shapes: Shapes) -> ZImageFunControlConfig:
    """Return the configuration of the control with these tensors."""
    width, columns = shapes[MARK]
    (head_width,) = shapes["control_layers.0.attention.k_norm.weight"]
    heads = shapes["control_layers.0.attention.out.weight"][1] // head_width
    blocks = Lumina2Config(
        width=width,
        heads=heads,
        key_heads=(shapes["control_layers.0.attention.qkv.weight"][0] // head_width - heads) // 2,
        inner_width=shapes["control_layers.0.feed_forward.w1.weight"][0],
        num_layers=0,
        context_dim=0,
        time_width=shapes["control_layers.0.adaLN_modulation.0.weight"][1],
        time_inner=0,
        num_refiners=count_children(shapes, "control_noise_refiner"),
        activates_time=False,
        query_eps=FLOAT32_EPS,
    )
    return ZImageFunControlConfig(
        blocks, count_children(shapes, "control_layers"), columns // PATCH**2, REFINER_OUTPUT in shapes
    )


class ControlBlock(JointBlock):
    """`forward` gives what is added to the image, and what the next block of the stack reads, [B, T, D] each."""

    def __init__(self, config: Lumina2Config, *, is_first: bool) -> None:
        super().__init__(config)
        self.is_first = is_first
        if is_first:
            self.before_proj = Linear(config.width, config.width)
        self.after_proj = Linear(config.width, config.width)

    def steer(
        self, seen: torch.Tensor, image: torch.Tensor, pe: torch.Tensor, time: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the addition to the image, and the input of the next block of the stack, [B, T, D] each."""
        if self.is_first:
            seen = self.before_proj(seen) + image
        seen = self(seen, None, pe, time)
        return self.after_proj(seen), seen


class ZImageFunControl(nn.Module):
    """A control: `embedded` reads what steers, `refined` and `steered` go with the network's blocks."""

    def __init__(self, config: ZImageFunControlConfig) -> None:
        super().__init__()
        self.config = config
        blocks = config.blocks
        self.control_layers = nn.ModuleList(
            ControlBlock(blocks, is_first=index == 0) for index in range(config.num_layers)
        )
        self.control_all_x_embedder = nn.ModuleDict({"2-1": Linear(PATCH**2 * config.hint_channels, blocks.width)})
        self.control_noise_refiner = nn.ModuleList(
            ControlBlock(blocks, is_first=index == 0) if config.steers_refiners else JointBlock(blocks)
            for index in range(blocks.num_refiners)
        )

    def embedded(self, hint: torch.Tensor, pe: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, T, D] of a latent [B, C, h, w], scaled as the network sees it.

        `pe` [1, 1, T, pairs, 2, 2] rotates them as the image's are rotated, `time` [B, time width] modulates.
        """
        tokens: torch.Tensor = self.control_all_x_embedder["2-1"](patches_channels_last(pad_to_patches(hint, PATCH)))
        if not self.config.steers_refiners:
            for block in self.control_noise_refiner:
                tokens = block(tokens, None, pe, time)
        return tokens

    def has_untrained_refiners(self) -> bool:
        """Return True for the published control whose refining blocks add nothing, so that others took their place."""
        if not self.config.steers_refiners or self.config.num_layers < BROKEN_DEPTH:
            return False
        return not bool(torch.count_nonzero(self.get_parameter(REFINER_OUTPUT)))

    def refined(
        self,
        index: int,
        seen: torch.Tensor,
        image: torch.Tensor,
        pe: torch.Tensor,
        time: torch.Tensor,
        *,
        is_untrained: bool,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the addition after a refining block (None: nothing), and the input of the next block, [B, T, D].

        `is_untrained` is `has_untrained_refiners()`.
        """
        if not self.config.steers_refiners:
            return None, seen
        if not is_untrained:
            refining: Any = self.control_noise_refiner[index]
            pair: tuple[torch.Tensor, torch.Tensor] = refining.steer(seen, image, pe, time)
            return pair
        layers: Sequence[Any] = list(self.control_layers)
        first, *others = layers if index == 0 else layers[1:]
        added, seen = first.steer(seen, image, pe, time)
        for block in others if index else ():
            _, seen = block.steer(seen, image, pe, time)
        return added, seen
