"""A low-rank transformer of videos whose patches gain learned embeddings of their places before every block.

That of Cosmos 1 (NVIDIA 2025, arXiv 2501.03575, section 5.1). `B` batch, `C` channels, `F` frames, `h w` latent cells,
`T` tokens, `D` width. Module names are those of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.cosmos_predict2.transformer import (
    HEAD_WIDTH,
    NORM_EPS,
    PATCH,
    CosmosAttention,
    CosmosBlock,
    CosmosPredict2Config,
    FeedForward,
    FinalLayer,
    TimeLayers,
    modulation,
    patched,
    place_turns,
    time_waves,
    unpatched,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes

TRAINED_RATE = 24.0  # frames a second that lie one place apart
PLACE_EPS = 1e-6
SMALL_WIDTH = 4096  # of the network trained at smaller sizes

MARK = "blocks.block0.blocks.0.block.attn.to_q.0.weight"
PATCHES = "x_embedder.proj.1.weight"


@dataclass(frozen=True, slots=True)
class Cosmos1Config(CosmosPredict2Config):
    """Configuration of the network. `places` are the frames, rows and columns of patches that have an embedding."""

    places: tuple[int, int, int] = (128, 120, 120)


def cosmos1_config(shapes: Shapes) -> Cosmos1Config:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    width, patch_width = shapes[PATCHES]
    frames, rows, columns = (shapes[f"extra_pos_embedder.pos_emb_{axis}"][0] for axis in "thw")
    return Cosmos1Config(
        width=width,
        num_blocks=len({name.split(".")[1] for name in shapes if name.startswith("blocks.")}),
        context_dim=shapes["blocks.block0.blocks.1.block.attn.to_k.0.weight"][1],
        inner_width=shapes["blocks.block0.blocks.2.block.layer1.weight"][0],
        rank=shapes["blocks.block0.blocks.2.adaLN_modulation.1.weight"][0],
        in_channels=patch_width // PATCH**2 - 1,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        stretch=(2.0, 1.0, 1.0) if width <= SMALL_WIDTH else (2.0, 2.0, 2.0),
        places=(frames, rows, columns),
    )


class LearnedPlaces(nn.Module):
    """Embeddings of frames, rows and columns, added and brought to a root mean square of 1."""

    def __init__(self, config: Cosmos1Config) -> None:
        super().__init__()
        frames, rows, columns = config.places
        self.pos_emb_h = nn.Parameter(torch.empty(rows, config.width))
        self.pos_emb_w = nn.Parameter(torch.empty(columns, config.width))
        self.pos_emb_t = nn.Parameter(torch.empty(frames, config.width))

    def forward(self, sizes: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [F, h/2, w/2, D] of the patches of a video. Raises ValueError where it is too large."""
        tables = (self.pos_emb_t, self.pos_emb_h, self.pos_emb_w)
        known = [table.shape[0] for table in tables]
        if any(size > most for size, most in zip(sizes, known, strict=True)):
            found, limits = (
                f"{frames} latent frames of {columns * PATCH} x {rows * PATCH} cells"
                for frames, rows, columns in (sizes, known)
            )
            raise ValueError(f"latent: larger than the network's places; got {found}, expected at most {limits}")
        frames, rows, columns = (table[:size].to(like) for table, size in zip(tables, sizes, strict=True))
        places = frames[:, None, None] + rows[:, None] + columns
        length = torch.linalg.vector_norm(places, dim=-1, keepdim=True, dtype=torch.float32)
        normed_places: torch.Tensor = places / (length / places.shape[-1] ** 0.5 + PLACE_EPS).to(places.dtype)
        return normed_places


class PlacedAttention(CosmosAttention):
    def __init__(self, config: Cosmos1Config, context_dim: int) -> None:
        super().__init__(config)
        width = config.width
        self.to_q = nn.Sequential(Linear(width, width, bias=False), RmsNorm(HEAD_WIDTH, NORM_EPS))
        self.to_k = nn.Sequential(Linear(context_dim, width, bias=False), RmsNorm(HEAD_WIDTH, NORM_EPS))
        self.to_v = nn.Sequential(Linear(context_dim, width, bias=False))
        self.to_out = nn.Sequential(Linear(width, width, bias=False))

    def projections(self) -> tuple[tuple[nn.Module, nn.Module], tuple[nn.Module, nn.Module], nn.Module, nn.Module]:
        return (self.to_q[0], self.to_q[1]), (self.to_k[0], self.to_k[1]), self.to_v, self.to_out


class VideoAttention(nn.Module):
    def __init__(self, config: Cosmos1Config, context_dim: int) -> None:
        super().__init__()
        self.attn = PlacedAttention(config, context_dim)


class ModulatedLayer(nn.Module):
    """A layer that is modulated and gated by time."""

    def __init__(self, config: Cosmos1Config, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.adaLN_modulation = modulation(config, 3)


class PlacedBlock(CosmosBlock):
    def __init__(self, config: Cosmos1Config) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([
            ModulatedLayer(config, VideoAttention(config, config.width)),
            ModulatedLayer(config, VideoAttention(config, config.context_dim)),
            ModulatedLayer(config, FeedForward(config)),
        ])  # fmt: skip

    def layers(self) -> tuple[tuple[nn.Module, nn.Module], ...]:
        blocks: Any = self.blocks
        own, text, inner = blocks
        return (
            (own.block.attn, own.adaLN_modulation),
            (text.block.attn, text.adaLN_modulation),
            (inner.block, inner.adaLN_modulation),
        )


class PlacedFinalLayer(FinalLayer):
    MODULATION = "adaLN_modulation"


class Cosmos1Transformer(nn.Module):
    """The network: a noisy video [B, C, F, h, w], times, text [B, T, D'] -> its prediction [B, C, F, h, w]."""

    def __init__(self, config: Cosmos1Config) -> None:
        super().__init__()
        self.config = config
        channels = (config.in_channels + 1) * PATCH * PATCH
        self.x_embedder = nn.ModuleDict({"proj": nn.ModuleDict({"1": Linear(channels, config.width, bias=False)})})
        self.extra_pos_embedder = LearnedPlaces(config)
        self.t_embedder = nn.ModuleDict({"1": TimeLayers(config)})
        self.blocks = nn.ModuleDict({f"block{index}": PlacedBlock(config) for index in range(config.num_blocks)})
        self.affline_norm = RmsNorm(config.width, NORM_EPS)
        self.final_layer = PlacedFinalLayer(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: CallOptions | None = None,
        fps: float | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it. `fps` are frames a second, None for 24.

        Raises ValueError for a latent that is not of whole patches, and for one larger than the network's places.
        """
        options: CallOptions = {} if transformer_options is None else transformer_options
        patches: torch.Tensor = self.x_embedder["proj"]["1"](patched(x))  # type: ignore[index]
        sizes = patches.shape[1:4]
        places = self.extra_pos_embedder(sizes, patches)
        step = 1.0 if fps is None else TRAINED_RATE / fps
        turns = place_turns(sizes, self.config.stretch, x.device, frame_step=step)
        waves = time_waves(timesteps[:, None], self.config.width).to(x.dtype)
        shared = self.t_embedder["1"](waves)
        time = self.affline_norm(waves)
        for block in self.blocks.values():
            patches = block(patches + places, time, shared, context, turns, options)
        return unpatched(self.final_layer(patches, time, shared), self.config.out_channels)
