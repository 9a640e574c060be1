"""Transformers of Wan that move a figure after audio: Wan 2.2 S2V (Gao et al. 2025, arXiv 2508.18621).

What an audio encoder's layers heard becomes tokens of every latent frame, which some blocks attend to. A reference
image and earlier frames, the farther the coarser, are tokens behind those of the video. `B` batch, `C` channels, `F`
latent frames, `h w` latent cells, `T` tokens, `D` width, `L` layers and `A` width of the audio encoder, `S` steps of
audio, four for each latent frame.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.wan.blocks import Attention
from darkroom.engine.families.wan.config import WanConfig, wan_config
from darkroom.engine.families.wan.motion_encoder import PastConv1d, settled
from darkroom.engine.families.wan.transformer import Inputs, VideoTokens, WanTransformer, rotations_at, video_places
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm

AUDIO = "casual_audio_encoder.encoder.final_linear.weight"
NUM_AUDIO_TOKENS = 4  # of a latent frame, beside one that is the same everywhere
STEPS_PER_FRAME = 4
ADAPTED_EPS = 1e-5
LEAST_REFERENCE_PLACE, PLACES_BEHIND = 30, 9  # of the reference image, in latent frames
# Earlier frames, nearest first: how many, how many become one patch along time and along each side, first place.
EARLIER = ((1, 1, 1, -1), (2, 2, 2, -3), (16, 4, 4, -19))
# Numbers of blocks by the layers that attend to audio in the published network of 40 blocks.
AUDIO_BLOCKS = (0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39)


@dataclass(frozen=True, slots=True)
class WanS2vConfig(WanConfig):
    """Configuration of S2V. `audio_layers` of the audio encoder of width `audio_dim` are read."""

    audio_layers: int = 25
    audio_dim: int = 1024
    num_audio_blocks: int = len(AUDIO_BLOCKS)
    control_channels: int = 16


def wan_s2v_config(shapes: Shapes) -> WanS2vConfig:
    """Return the configuration of S2V with these tensors (names without prefix)."""
    return WanS2vConfig(
        **asdict(wan_config(shapes)),
        audio_layers=shapes["casual_audio_encoder.weights"][1],
        audio_dim=shapes["casual_audio_encoder.encoder.conv1_global.conv.weight"][1],
        num_audio_blocks=count_children(shapes, "audio_injector.injector"),
        control_channels=shapes["cond_encoder.weight"][1],
    )


class AudioTokens(nn.Module):
    """Steps of audio [B, S, A] -> one vector [B, F, 1, D] and the tokens [B, F, 5, D] of each latent frame."""

    def __init__(self, config: WanS2vConfig) -> None:
        super().__init__()
        width = config.width
        self.conv1_local = PastConv1d(config.audio_dim, width // 4 * NUM_AUDIO_TOKENS)
        self.conv1_global = PastConv1d(config.audio_dim, width // 4)
        self.conv2 = PastConv1d(width // 4, width // 2, stride=2)
        self.conv3 = PastConv1d(width // 2, width, stride=2)
        self.final_linear = Linear(width, width)
        self.padding_tokens = nn.Parameter(torch.empty(1, 1, 1, width))

    def forward(self, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = steps.shape[0]
        local: torch.Tensor = self.conv1_local(steps)
        local = local.view(batch, local.shape[1], NUM_AUDIO_TOKENS, -1).transpose(1, 2).flatten(0, 1)
        local = self._compressed(local)
        local = local.view(batch, NUM_AUDIO_TOKENS, *local.shape[1:]).transpose(1, 2)
        padding = self.padding_tokens.to(local).expand(batch, local.shape[1], -1, -1)
        whole = self.final_linear(self._compressed(self.conv1_global(steps)))
        return whole[:, :, None], torch.cat([local, padding], dim=2)

    def _compressed(self, x: torch.Tensor) -> torch.Tensor:
        halved: torch.Tensor = self.conv3(settled(self.conv2(settled(x))))
        return settled(halved)


class AudioReader(nn.Module):
    """Layers of an audio encoder [B, L, A, S], weighed and made tokens of."""

    def __init__(self, config: WanS2vConfig) -> None:
        super().__init__()
        self.encoder = AudioTokens(config)
        self.weights = nn.Parameter(torch.empty(1, config.audio_layers, 1, 1))

    def forward(self, heard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = functional.silu(self.weights.to(heard))
        weighed = (heard * weights / weights.sum(dim=1, keepdim=True)).sum(dim=1)  # [B, A, S]
        out: tuple[torch.Tensor, torch.Tensor] = self.encoder(weighed.transpose(1, 2))
        return out


class AdaptedNorm(nn.Module):
    """A norm whose shift and scale a vector of audio makes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = Linear(width, 2 * width)
        self.adaptive_norm = AdaptiveNorm(eps=ADAPTED_EPS)

    def forward(self, x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(functional.silu(vector))
        shift, scale = made[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.adaptive_norm(x, scale, shift)
        return out


class AudioInjector(nn.Module):
    """Attention of each frame's tokens to those of its audio, behind some blocks."""

    def __init__(self, config: WanS2vConfig) -> None:
        super().__init__()
        count = config.num_audio_blocks
        self.injector = nn.ModuleList(Attention(config.width) for _ in range(count))
        self.injector_adain_layers = nn.ModuleList(AdaptedNorm(config.width) for _ in range(count))

    def forward(self, x: torch.Tensor, number: int, whole: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the addition to the video's tokens [B, F * n, D]. `whole` is [B, F, 1, D], `tokens` [B, F, 5, D]."""
        batch, frames = tokens.shape[:2]
        each = x.reshape(batch * frames, -1, x.shape[-1])
        adapted = self.injector_adain_layers[number](each, whole.flatten(0, 1)[:, 0])
        out: torch.Tensor = self.injector[number](adapted, tokens.flatten(0, 1), None, None)
        return out.reshape(x.shape)


class EarlierFrames(nn.Module):
    """The latent of earlier frames -> tokens, the farther the coarser, and their places."""

    def __init__(self, config: WanS2vConfig) -> None:
        super().__init__()
        for name, (_, frames, factor, _) in zip(("proj", "proj_2x", "proj_4x"), EARLIER, strict=True):
            kernel = (frames, PATCH * factor, PATCH * factor)
            self.add_module(name, nn.Conv3d(config.control_channels, config.width, kernel, stride=kernel))

    def forward(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens [B, T, D] and places [1, T, 3] for a latent [B, C, f, h, w], its last frame the nearest."""
        missing = sum(count for count, *_ in EARLIER) - latent.shape[2]
        latent = functional.pad(latent, (0, 0, 0, 0, missing, 0))  # cut where there are more
        rows, columns = (-(-side // PATCH) for side in latent.shape[-2:])
        tokens, places, end = [], [], latent.shape[2]
        for name, (count, frames, factor, first) in zip(("proj", "proj_2x", "proj_4x"), EARLIER, strict=True):
            cells: torch.Tensor = self.get_submodule(name)(latent[:, :, end - count : end])
            tokens.append(cells.flatten(2).transpose(1, 2))
            length = 1 if factor < 4 else frames
            places.append(_spaced(length, cells.shape[3:], first, (rows, columns), latent.device))
            end -= count
        return torch.cat(tokens, dim=1), torch.cat(places, dim=1)


def _spaced(
    frames: int, cells: tuple[int, ...], first: int, fine: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """Return places [1, T, 3] of coarse patches, evenly over those of as many rows and columns of `fine` ones."""
    axes = torch.meshgrid(
        torch.linspace(first, first + frames - 1, frames, device=device),
        torch.linspace(0, fine[0] - 1, cells[0], device=device),
        torch.linspace(0, fine[1] - 1, cells[1], device=device),
        indexing="ij",
    )
    return torch.stack(axes, dim=-1).flatten(0, 2)[None]


class WanS2vTransformer(WanTransformer):
    """S2V. All further inputs may be missing.

    `audio_embed` [B, L, A, S] is the audio, `reference_latent` [B, C, 1, h, w] an image of the figure, `control_video`
    [B, C, F, h, w] a latent of poses, `reference_motion` [B, C, f, h, w] that of earlier frames.
    """

    def __init__(self, config: WanS2vConfig) -> None:
        super().__init__(config)
        self.trainable_cond_mask = nn.Embedding(3, config.width)  # of the video, the reference, earlier frames
        self.casual_audio_encoder = AudioReader(config)
        self.cond_encoder = nn.Conv3d(config.control_channels, config.width, self.patch_size, stride=self.patch_size)
        self.audio_injector = AudioInjector(config)
        self.frame_packer = EarlierFrames(config)

    def embedded(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        cells = super().embedded(x, inputs)
        control: torch.Tensor | None = inputs.get("control_video")
        return cells if control is None else cells + self.cond_encoder(control)

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        cells = self.embedded(x, inputs)
        frames, rows, columns = cells.shape[2:]
        kinds = self.trainable_cond_mask.weight.to(cells)
        tokens = [cells.flatten(2).transpose(1, 2) + kinds[0]]
        places = [video_places(frames, rows, columns, device=x.device, options=inputs)]
        levels = timesteps.view(x.shape[0], -1).expand(-1, frames)
        reference: torch.Tensor | None = inputs.get("reference_latent")
        if reference is not None:
            patches: torch.Tensor = self.patch_embedding(reference)
            tokens.append(patches.flatten(2).transpose(1, 2) + kinds[1])
            first = max(LEAST_REFERENCE_PLACE, x.shape[2] + PLACES_BEHIND)
            places.append(video_places(*patches.shape[2:], device=x.device, first_frame=first))
            levels = functional.pad(levels, (0, reference.shape[2]))
        earlier: torch.Tensor | None = inputs.get("reference_motion")
        if earlier is not None:
            packed, packed_places = self.frame_packer(earlier)
            tokens.append(packed + kinds[2])
            places.append(packed_places)
            levels = functional.pad(levels.repeat_interleave(2, dim=1), (0, 3))
        pe = rotations_at(torch.cat(places, dim=1))
        return VideoTokens(torch.cat(tokens, dim=1), levels, pe, (frames, rows, columns))

    def beside_blocks(
        self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        heard: torch.Tensor | None = inputs.get("audio_embed")
        if heard is None:
            return None
        out: tuple[torch.Tensor, torch.Tensor] = self.casual_audio_encoder(
            heard[..., : tokens.grid[0] * STEPS_PER_FRAME]
        )
        return out

    def after_block(
        self, index: int, img: torch.Tensor, tokens: VideoTokens, memory: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        audio_blocks = AUDIO_BLOCKS[: self.config.num_audio_blocks]  # type: ignore[attr-defined]
        if memory is None or index not in audio_blocks:
            return img
        count = tokens.grid[0] * tokens.grid[1] * tokens.grid[2]
        video = img[:, :count]
        added = self.audio_injector(video, audio_blocks.index(index), *memory)
        return torch.cat([video + added, img[:, count:]], dim=1)
