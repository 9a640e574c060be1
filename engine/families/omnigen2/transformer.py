"""The transformer of OmniGen2 (Wu et al. 2025, arXiv 2506.18871): Next-DiT with reference images among its tokens.

Text, reference images and image are refined by blocks of their own, then pass the other blocks in one sequence.
Places are rotations (Su et al. 2021, arXiv 2104.09864) on three axes: the text counts on all of them, each image has
one number on the first, behind the longer side of that before it, and its rows and columns. `B` batch, `C` channels,
`h w` latent cells, `T` tokens, `D` width. Module names are those of the original checkpoints. The output is the noise
minus the image, as other flow networks give it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from darkroom.engine.families.lumina2.transformer import image_places
from darkroom.engine.families.omnigen2.layers import (
    LastLayer,
    OmniGen2Config,
    RefinerBlock,
    TimedBlock,
    TimeTextEmbedder,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.patches import PATCH, image_channels_last, pad_to_patches, patches_channels_last
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.unet_layers import Options


class OmniGen2Trunk(nn.Module, ABC):
    """Embeddings, refiners and the last layer, between which a network has its own blocks (`through`)."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        patch_width = PATCH * PATCH * config.in_channels
        self.x_embedder, self.ref_image_patch_embedder = (Linear(patch_width, config.width) for _ in range(2))
        self.time_caption_embed = TimeTextEmbedder(config)
        self.noise_refiner = nn.ModuleList(TimedBlock(config) for _ in range(config.num_refiners))
        self.ref_image_refiner = nn.ModuleList(TimedBlock(config) for _ in range(config.num_refiners))
        self.context_refiner = nn.ModuleList(RefinerBlock(config) for _ in range(config.num_refiners))
        self.norm_out = LastLayer(config)
        self.image_index_embedding = nn.Parameter(torch.empty(config.num_references, config.width))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.x_embedder.weight.dtype

    @abstractmethod
    def through(
        self, text: torch.Tensor, images: torch.Tensor, pe: torch.Tensor, time: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return text [B, L, D] and images [B, T, D] behind each other, after the network's blocks.

        `pe` [1, 1, L + T, P, 2, 2] rotates the tokens of both.
        """

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> torch.Tensor:
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, PATCH)
        time, text = self.time_caption_embed(1.0 - timesteps, context)
        references = [pad_to_patches(item, PATCH) for item in ref_latents]
        text_pe, *image_pes = self._places(text.shape[1], [*references, padded])
        for block in self.context_refiner:
            text = block(text, text_pe, transformer_options)
        image = self.x_embedder(patches_channels_last(padded))
        for block in self.noise_refiner:
            image = block(image, image_pes[-1], time, transformer_options)
        seen = self._references(references, image_pes[:-1], time, transformer_options)
        images, pe = torch.cat([*seen, image], dim=1), torch.cat([text_pe, *image_pes], dim=2)
        tokens = self.through(text, images, pe, time, transformer_options)
        drawn = self.norm_out(tokens[:, -image.shape[1] :], time)
        return -image_channels_last(drawn, *padded.shape[-2:])[..., :height, :width]

    def _references(
        self,
        references: Sequence[torch.Tensor],
        pes: Sequence[torch.Tensor],
        time: torch.Tensor,
        options: Options | None,
    ) -> list[torch.Tensor]:
        """Return the refined tokens [B, T, D] of all reference images, as one item, or none without images.

        Raises ValueError for more of them than the network counts.
        """
        if not references:
            return []
        if len(references) > self.config.num_references:
            raise ValueError(
                f"reference latents: too many; got {len(references)}, expected at most {self.config.num_references}"
            )
        parts = [
            self.ref_image_patch_embedder(patches_channels_last(item))
            + self.image_index_embedding[index].to(item.dtype)
            for index, item in enumerate(references)
        ]
        tokens, pe = torch.cat(parts, dim=1), torch.cat([*pes], dim=2)
        for block in self.ref_image_refiner:
            tokens = block(tokens, pe, time, options)
        return [tokens]

    def _places(self, num_tokens: int, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rotations of a text and of images behind it."""
        device = images[0].device
        counted = torch.arange(num_tokens, device=device).view(1, -1, 1).expand(1, -1, 3)
        found, index = [rotations(counted, self.config.axes)], num_tokens
        for item in images:
            rows, columns = item.shape[-2] // PATCH, item.shape[-1] // PATCH
            found.append(rotations(image_places(rows, columns, index, device), self.config.axes))
            index += max(rows, columns)
        return found


class OmniGen2Transformer(OmniGen2Trunk):
    """`forward(x [B, C, h, w], timesteps [B], context [B, T, D])` -> `[B, C, h, w]`.

    `ref_latents` are reference images [B, C, h, w] of any size. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(TimedBlock(config) for _ in range(config.num_layers))

    def through(
        self, text: torch.Tensor, images: torch.Tensor, pe: torch.Tensor, time: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return text and images behind each other, after blocks of one stream."""
        tokens = torch.cat([text, images], dim=1)
        for layer in self.layers:
            tokens = layer(tokens, pe, time, options)
        return tokens
