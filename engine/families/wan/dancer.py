"""The transformer of WanDancer: Wan from images that dances to music, at 30 frames a second or as key frames of less.

Features of the music become tokens, eight for each latent frame, and a part of the frame's tokens attends to each of
them. `B` batch, `F` latent frames, `M` steps of music, 30 a second, `T` tokens, `D` hidden size, `A` that of the music.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.base import Layout, Shapes
from darkroom.engine.families.wan.blocks import Attention, Float32Conv3d, ImageProjection, WanHead
from darkroom.engine.families.wan.config import NORM_EPS, WanConfig, wan_config
from darkroom.engine.families.wan.transformer import Inputs, VideoTokens, WanTransformer
from darkroom.engine.formats.weight_file import Item, Names, Part
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, RotaryHeads

KEY_FRAMES = "patch_embedding_global.weight"
FULL_HZ = 30
MUSIC_BLOCKS = (0, 4, 8, 12, 16, 20, 24, 27)  # behind which the video attends to music
MUSIC_HEADS = 4
TOKENS_PER_FRAME = 8
MUSIC_EPS = 1e-5
JOINED = ".self_attn.in_proj_"  # queries, keys and values in one tensor
SINGLE = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class DancerConfig(WanConfig):
    """Configuration of WanDancer: features, hidden size, layers of the music's encoder, and blocks that read it."""

    num_features: int = 35
    music_width: int = 256
    music_inner: int = 1024
    num_music_layers: int = 2
    num_music_blocks: int = len(MUSIC_BLOCKS)


def dancer_config(shapes: Shapes) -> DancerConfig:
    """Return the configuration of WanDancer with these tensors (names without prefix)."""
    music_width, num_features = shapes["music_projection.weight"]
    return DancerConfig(
        **asdict(wan_config(shapes)),
        num_features=num_features,
        music_width=music_width,
        music_inner=shapes["music_encoder.0.linear1.weight"][0],
        num_music_layers=count_children(shapes, "music_encoder"),
        num_music_blocks=count_children(shapes, "music_injector.injector"),
    )


def with_single_layers(layout: Layout) -> Layout:
    """Return a layout that also finds the music's queries, keys and values in files that have them in one tensor."""

    def found(shapes: Shapes) -> Names | None:
        names = layout(shapes)
        if names is None or not any(name.startswith("music_encoder.") and JOINED in name for name in names):
            return names
        single: dict[str, Item] = {}
        for name, item in names.items():
            before, joined, end = name.partition(JOINED)
            if not joined or not name.startswith("music_encoder.") or not isinstance(item, str):
                single[name] = item
                continue
            for index, part in enumerate(SINGLE):
                single[f"{before}.self_attn.{part}.{end}"] = Part(item, index, len(SINGLE))
        return single

    return found


class MusicAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(width, width) for _ in range(4))
        self.rotary_heads = RotaryHeads(token_dim=1, num_heads=MUSIC_HEADS)

    def forward(self, x: torch.Tensor, pe: torch.Tensor) -> torch.Tensor:
        q, k = self.rotary_heads([(self.q_proj(x), None)], [(self.k_proj(x), None)], pe)
        attended = optimized_attention(q.flatten(2), k.flatten(2), self.v_proj(x), MUSIC_HEADS)
        out: torch.Tensor = self.out_proj(attended)
        return out


class MusicLayer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.self_attn = MusicAttention(width)
        self.linear1, self.linear2 = Linear(width, inner), Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=MUSIC_EPS), nn.LayerNorm(width, eps=MUSIC_EPS)
        self.gelu, self.residual = Gelu("none"), GatedResidual()

    def forward(self, x: torch.Tensor, pe: torch.Tensor) -> torch.Tensor:
        """Return [B, M, A]. `pe` are the rotations [1, M, 1, W / 2, 2, 2] of steps."""
        x = self.residual(x, self.self_attn(self.norm1(x), pe))
        out: torch.Tensor = self.residual(x, self.linear2(self.gelu(self.linear1(self.norm2(x)))))
        return out


class MusicInjector(nn.Module):
    """Attention of parts of the frames' tokens to the music, behind some blocks."""

    def __init__(self, config: DancerConfig) -> None:
        super().__init__()
        self.injector = nn.ModuleList(Attention(config.width) for _ in range(config.num_music_blocks))
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor, number: int, music: torch.Tensor) -> torch.Tensor:
        """Return the addition to the tokens [B, T, D]. `music` is [B, 8 F, D]."""
        parts = self.adaptive_norm(x).reshape(x.shape[0] * music.shape[1], -1, x.shape[-1])
        out: torch.Tensor = self.injector[number](parts, music.flatten(0, 1)[:, None], None, None)
        return out.reshape(x.shape)


class DancerTransformer(WanTransformer):
    """WanDancer. All further inputs may be missing.

    `audio_embed` [B, M, 35] are features of music, weighed by `audio_inject_scale`, `clip_fea_ref` [B, P, image_dim]
    what an image encoder saw of the dancer. At another `fps` than 30 the frames are key frames, so far apart.
    """

    def __init__(self, config: DancerConfig) -> None:
        super().__init__(config)
        width = config.width
        self.patch_embedding_global = Float32Conv3d(config.in_channels, width, self.patch_size, stride=self.patch_size)
        self.img_emb_refimage = ImageProjection(config)
        self.head_global = WanHead(config)
        self.music_injector = MusicInjector(config)
        self.music_projection = Linear(config.num_features, config.music_width)
        self.music_encoder = nn.ModuleList(
            MusicLayer(config.music_width, config.music_inner) for _ in range(config.num_music_layers)
        )

    def embedded(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        cells: torch.Tensor = (self.patch_embedding_global if _are_key_frames(inputs) else self.patch_embedding)(x)
        return cells

    def head_of(self, inputs: Inputs) -> nn.Module:
        return self.head_global if _are_key_frames(inputs) else self.head

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        return super().tokens_of(x, timesteps, {**inputs, "context_latents": None})

    def places_of(self, grid: tuple[int, int, int], device: torch.device, inputs: Inputs) -> torch.Tensor:
        places = super().places_of(grid, device, inputs)
        if _are_key_frames(inputs):
            frames, rows, columns = grid
            places[..., 0] = _key_places(frames, device, inputs).repeat_interleave(rows * columns)
        return places

    def read(
        self, context: torch.Tensor, clip_fea: torch.Tensor | None, inputs: Inputs
    ) -> tuple[torch.Tensor, int | None]:
        text, count = super().read(context, clip_fea, inputs)
        seen: torch.Tensor | None = inputs.get("clip_fea_ref")
        if seen is None:
            return text, count or 0
        return torch.cat([self.img_emb_refimage(seen), text], dim=1), (count or 0) + seen.shape[-2]

    def beside_blocks(self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs) -> tuple[Any, float] | None:
        features: torch.Tensor | None = inputs.get("audio_embed")
        if features is None:
            return None
        music = self.music_projection(features)
        steps = torch.arange(music.shape[1], dtype=torch.float32, device=music.device)[None, :, None]
        pe = rotations(steps, (music.shape[-1] // MUSIC_HEADS,)).transpose(1, 2)
        for layer in self.music_encoder:
            music = layer(music, pe)
        size = (tokens.grid[0] * TOKENS_PER_FRAME, self.config.width)
        spread = functional.interpolate(music[:, None], size=size, mode="bilinear")[:, 0]  # [B, 8 F, D]
        return spread, inputs.get("audio_inject_scale", 1.0)

    def after_block(
        self, index: int, img: torch.Tensor, tokens: VideoTokens, memory: tuple[torch.Tensor, float] | None
    ) -> torch.Tensor:
        blocks = MUSIC_BLOCKS[: self.config.num_music_blocks]  # type: ignore[attr-defined]
        if memory is None or index not in blocks:
            return img
        count = math.prod(tokens.grid)
        added = self.music_injector(img[:, :count], blocks.index(index), memory[0])
        return torch.cat([img[:, :count] + added * memory[1], img[:, count:]], dim=1)


def _are_key_frames(inputs: Inputs) -> bool:
    return int(inputs.get("fps", FULL_HZ) + 0.5) != FULL_HZ


def _key_places(frames: int, device: torch.device, inputs: Inputs) -> torch.Tensor:
    """Return the places [F] of key frames, in frames of 30 a second; the last one ends where its time does."""
    apart = FULL_HZ / inputs["fps"]
    options: Mapping[str, float] = inputs.get(ROPE_OPTIONS) or {}
    first = options.get("shift_t", 0.0)
    places: torch.Tensor = torch.arange(frames, dtype=torch.float32, device=device) * apart + first
    places[-1] = first + int(apart * frames + 0.5) - 1
    return places
