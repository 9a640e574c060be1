"""ControlNets of Stable Diffusion 3: InstantX's, a shorter copy of the transformer, and Stability AI's for 3.5 large.

Both read the image as a latent. `B` batch, `C` channels, `h w` latent cells, `T` tokens, `P` patches, `D` width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.sd3.transformer import (
    HEAD_WIDTH,
    TIME_WIDTH,
    Embedder,
    PatchEmbedder,
    Sd3Config,
    Sd3Trunk,
    StreamBlock,
    computed_places,
)
from darkroom.engine.layers.basic import Linear, linear
from darkroom.engine.layers.patches import pad_to_patches
from darkroom.engine.layers.unet_layers import timestep_embedding

Additions = dict[str, list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Sd3ControlNetConfig:
    """Configuration of a shorter copy of the transformer; `hint_channels` are those of a latent, with its mask's."""

    trunk: Sd3Config
    hint_channels: int = 16


class Sd3ControlNet(Sd3Trunk):
    """The copy. Each block steers the stretch of blocks in its place of a transformer of `width / 64` blocks."""

    def __init__(self, config: Sd3ControlNetConfig) -> None:
        super().__init__(config.trunk, ends=False)
        width = config.trunk.width
        self.controlnet_blocks = nn.ModuleList(Linear(width, width) for _ in range(config.trunk.num_blocks))
        self.pos_embed_input = PatchEmbedder(config.hint_channels, config.trunk)

    def forward(
        self,
        x: torch.Tensor,
        hint: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor,
        **kwargs: object,
    ) -> Additions:
        """Return additions [B, P, D] for `x` [B, C, h, w] by a `hint` [B, C, h, w].

        It was trained without labels: zeros stand for `y` [B, label_dim].
        """
        patch_size = self.config.patch_size
        latent, hint = pad_to_patches(x, patch_size), pad_to_patches(hint, patch_size)
        image = self.x_embedder(latent) + self.places(latent).to(x) + self.pos_embed_input(hint)
        c = self.vector(timesteps, torch.zeros_like(y), x.dtype)
        text = self.text(context)
        each = self.config.width // HEAD_WIDTH // self.config.num_blocks
        additions: list[torch.Tensor] = []
        for block, onward in zip(self.joint_blocks, self.controlnet_blocks, strict=True):
            text, image = block(text, image, c, {})
            additions += [onward(image)] * each
        return {"output": additions[:-1]}


@dataclass(frozen=True, slots=True)
class Sd35ControlNetConfig:
    """Configuration of a network that reads no text. `in_channels` are those of a latent and of the image's.

    With `embeds_twice` its embedding of labels follows that of the steered network, and its blocks stand beside each
    other. Else they follow one another, and the steered network's patches are its own.
    """

    num_blocks: int
    width: int
    embeds_twice: bool
    label_dim: int = 2048
    in_channels: int = 16
    patch_size: int = 2


class Sd35ControlNet(nn.Module):
    """Blocks of the image's stream alone, whose additions are spread over `width / 64` blocks."""

    def __init__(self, config: Sd35ControlNetConfig) -> None:
        super().__init__()
        self.control_config = config
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.width
        inner = Sd3Config(
            num_blocks=config.num_blocks, width=width, context_dim=0, label_dim=0, patch_size=config.patch_size
        )
        if config.embeds_twice:
            self.x_embedder = PatchEmbedder(config.in_channels, inner)
        self.t_embedder = Embedder(TIME_WIDTH, width)
        self.y_embedder = Embedder(width if config.embeds_twice else config.label_dim, width)
        self.transformer_blocks = nn.ModuleList(StreamBlock(inner) for _ in range(config.num_blocks))
        self.controlnet_blocks = nn.ModuleList(Linear(width, width) for _ in range(config.num_blocks))
        self.pos_embed_input = PatchEmbedder(config.in_channels, inner)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.controlnet_blocks.get_parameter("0.weight").dtype

    def forward(
        self,
        x: torch.Tensor,
        hint: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor,
        *,
        borrowed: Mapping[str, torch.Tensor],
        **kwargs: object,
    ) -> Additions:
        """Return additions [B, P, D] for `x` [B, C, h, w] by a `hint` [B, C, h, w].

        `borrowed` are weights of the steered network: of its embedding of labels, or of patches.
        """
        config = self.control_config
        latent, hint = pad_to_patches(x, config.patch_size), pad_to_patches(hint, config.patch_size)
        c: torch.Tensor = self.t_embedder(timestep_embedding(timesteps, TIME_WIDTH).to(x.dtype))
        if config.embeds_twice:
            image: torch.Tensor = self.x_embedder(latent)
            y = _embedded_by_the_steered(y, borrowed)
        else:
            image = _patches_of_the_steered(latent, borrowed, config.patch_size)
            rows, columns = (side // config.patch_size for side in latent.shape[-2:])
            image = image + computed_places(config.width, rows, columns, x.device)
        c = c + self.y_embedder(y)
        image = image + self.pos_embed_input(hint)
        each = math.ceil(config.width // HEAD_WIDTH / config.num_blocks)
        additions: list[torch.Tensor] = []
        for block, onward in zip(self.transformer_blocks, self.controlnet_blocks, strict=True):
            out = block(image, c)
            if not config.embeds_twice:
                image = out
            additions += [onward(out)] * each
        return {"output": additions}


def _embedded_by_the_steered(y: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return labels [B, label_dim] as the steered network embeds them [B, D]."""
    hidden = linear(y, weights["mlp.0.weight"], weights["mlp.0.bias"])
    return linear(functional.silu(hidden), weights["mlp.2.weight"], weights["mlp.2.bias"])


def _patches_of_the_steered(x: torch.Tensor, weights: Mapping[str, torch.Tensor], patch_size: int) -> torch.Tensor:
    """Return the patches [B, P, D] of a latent as the steered network embeds them."""
    patches = functional.conv2d(x, weights["proj.weight"], weights["proj.bias"], stride=patch_size)
    return patches.flatten(2).transpose(1, 2)
