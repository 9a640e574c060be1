"""The transformer of Chroma (Lodestone Rock 2025), of any width and depth: Flux.1's blocks with distilled modulations.

The blocks are those of `engine/families/flux/transformer.py` without the layers that make their modulations: one small
network, the approximator, makes the modulations of all blocks from the time, the guidance and the number of each. `B`
batch, `T` tokens, `D` width. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import (
    HEAD_WIDTH,
    TIME_FACTOR,
    DoubleBlockLayers,
    Embedder,
    Modulation,
    SingleBlockLayers,
    places_of,
    run_blocks,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.norms import ScaleRmsNorm
from darkroom.engine.layers.patches import PATCH, image_of, pad_to_patches, patches_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

NUM_MODULATIONS = 344  # of 38 single blocks, 19 double ones and the last layer; always made, whatever the depth
TIME_WIDTH, NUMBER_WIDTH = 16, 32  # of the sinusoids of time and of guidance, of those of a modulation's number
APPROXIMATOR_IN = 2 * TIME_WIDTH + NUMBER_WIDTH
PER_SINGLE, PER_STREAM = 3, 6  # shift, scale and gate of one place, of two
MARK = "distilled_guidance_layer.norms.0.scale"


@dataclass(frozen=True, slots=True)
class ChromaConfig:
    """Configuration of the network; `approximator_*` are those of the network that makes the modulations."""

    width: int
    num_double: int
    num_single: int
    context_dim: int
    approximator_width: int
    approximator_layers: int
    in_channels: int = 16
    out_channels: int = 16
    inner_factor: int = 4

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def chroma_config(shapes: Shapes) -> ChromaConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return ChromaConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        approximator_width=shapes["distilled_guidance_layer.in_proj.weight"][0],
        approximator_layers=count_children(shapes, "distilled_guidance_layer.layers"),
        in_channels=shapes["img_in.weight"][1] // PATCH**2,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )


class Approximator(nn.Module):
    """`forward(x [B, N, 64])` -> the N modulation vectors [B, N, D]."""

    def __init__(self, config: ChromaConfig) -> None:
        super().__init__()
        width, num_layers = config.approximator_width, config.approximator_layers
        self.in_proj = Linear(APPROXIMATOR_IN, width)
        self.layers = nn.ModuleList(Embedder(width, width) for _ in range(num_layers))
        self.norms = nn.ModuleList(ScaleRmsNorm(width) for _ in range(num_layers))
        self.out_proj = Linear(width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.in_proj(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        out: torch.Tensor = self.out_proj(x)
        return out


class ChromaFinalLayer(nn.Module):
    def __init__(self, config: ChromaConfig) -> None:
        super().__init__()
        self.linear = Linear(config.width, PATCH * PATCH * config.out_channels)
        self.adaptive_norm = AdaptiveNorm(is_joined=True)

    def forward(self, x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


def modulations_at(vectors: torch.Tensor, first: int, count: int) -> list[Modulation]:
    """Return the modulations [B, 1, D] of some places, of which `first` is the number of the first vector."""
    parts = vectors[:, first : first + count].unbind(1)
    rows = [part[:, None] for part in parts]
    return [(rows[place], rows[place + 1], rows[place + 2]) for place in range(0, count, 3)]


class ChromaTrunk(nn.Module):
    """The approximator and the blocks of a network of this kind."""

    def __init__(self, config: ChromaConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.txt_in = Linear(config.context_dim, config.width)
        self.distilled_guidance_layer = Approximator(config)
        self.double_blocks = nn.ModuleList(DoubleBlockLayers(config) for _ in range(config.num_double))
        self.single_blocks = nn.ModuleList(SingleBlockLayers(config) for _ in range(config.num_single))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.txt_in.weight.dtype

    def modulation_vectors(self, timesteps: torch.Tensor, guidance: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return all modulation vectors [B, 344, D] at times and guidance [B]."""

        def embedded(numbers: torch.Tensor, width: int) -> torch.Tensor:
            return timestep_embedding(numbers * TIME_FACTOR, width).to(like.dtype)

        numbers = embedded(torch.arange(NUM_MODULATIONS, device=like.device).float(), NUMBER_WIDTH)
        when = torch.cat([embedded(timesteps, TIME_WIDTH), embedded(guidance, TIME_WIDTH)], dim=1)
        batch = like.shape[0]
        inputs = [
            when[:, None].expand(batch, NUM_MODULATIONS, -1),
            numbers[None].expand(batch, NUM_MODULATIONS, -1),
        ]
        vectors: torch.Tensor = self.distilled_guidance_layer(torch.cat(inputs, dim=-1))
        return vectors

    def block_modulations(self, vectors: torch.Tensor) -> tuple[list[Any], list[Any]]:
        """Return the modulations of the blocks of two streams and of those of one.

        The vectors of the latter come first, then those of the former's images, then those of their texts.
        """
        num_double, num_single = self.config.num_double, self.config.num_single
        images = PER_SINGLE * num_single
        texts = images + PER_STREAM * num_double
        double = [
            (
                modulations_at(vectors, images + PER_STREAM * index, PER_STREAM),
                modulations_at(vectors, texts + PER_STREAM * index, PER_STREAM),
            )
            for index in range(num_double)
        ]
        single = [modulations_at(vectors, PER_SINGLE * index, PER_SINGLE)[0] for index in range(num_single)]
        return double, single

    def run(
        self,
        image: torch.Tensor,
        places: torch.Tensor,
        context: torch.Tensor,
        vectors: torch.Tensor,
        control: Control | None,
        options: Options,
        *,
        numbers_text: bool = False,
    ) -> torch.Tensor:
        """Return the image's tokens [B, T, D] after all blocks.

        Text is at place 0, or its tokens are at places of their own on the first axis.
        """
        text_places = places.new_zeros(places.shape[0], context.shape[1], places.shape[-1])
        if numbers_text:
            text_places[..., 0] = torch.arange(context.shape[1], device=places.device)
        pe = rotations(torch.cat([text_places, places], dim=1))
        streams = (image, self.txt_in(context))
        blocks = self.block_modulations(vectors)
        return run_blocks(self.double_blocks, self.single_blocks, streams, blocks, pe, control, options)


class ChromaTransformer(ChromaTrunk):
    """`forward(x [B, C, h, w], timesteps [B], context [B, T, D])` -> `[B, C, h, w]`.

    `guidance` [B] is 0 where none is given. `control` holds lists of additions to the image by block, `input` for
    those of two streams, `output` for those of one. Built without weights being drawn when a `torch.device("meta")`
    context is open.
    """

    def __init__(self, config: ChromaConfig) -> None:
        super().__init__(config)
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.img_in = Linear(config.in_channels * PATCH * PATCH, config.width)
        self.final_layer = ChromaFinalLayer(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        *,
        guidance: torch.Tensor | None = None,
        ref_latents: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, PATCH)
        guidance = torch.zeros_like(timesteps) if guidance is None else guidance
        vectors = self.modulation_vectors(timesteps, guidance, x)
        out = self.run(self.img_in(patches_of(padded)), places_of(padded), context, vectors, control, options)
        shift, scale = vectors[:, -2:].chunk(2, dim=1)
        return image_of(self.final_layer(out, shift, scale), padded, self.config.out_channels)[..., :height, :width]
