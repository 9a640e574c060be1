"""The autoencoder of Mochi (Genmo 2024, Mochi 1 preview), of any width: norms see one frame at a time.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 6n frames, latents `[B, C, 1 + n, H/8, W/8]` unscaled; an image is a video of
one frame. Convolutions see no later frames; attention along time, in the encoder alone, sees all. Sines and cosines of
the pixels are channels beside them. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.frame_norm import FrameNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.video_cells import unfolded

# Bytes of working memory per latent cell of each frame, and pixel of each frame, and byte of the dtype (ComfyUI's).
DECODE_BYTES_PER_CELL, ENCODE_BYTES_PER_PIXEL = 64000, 576
MEASURED_CHANNELS, MEASURED_ENCODER_CHANNELS = 128, 64
HEAD_WIDTH = 32
WAVES = (6, 7)  # powers of two of the frequencies beside the pixels
SIDES = 2  # that a level halves

MARK = "decoder.blocks.0.0.weight"
ENCODER_MARK = "encoder.layers.0.weight"


@dataclass(frozen=True, slots=True)
class MochiVaeConfig:
    """Configuration of the network. Channels are by level, largest image first; every level but the last halves it.

    `num_blocks` are those before the first change of size, behind each, and at the end; `frame_strides` the frames
    that become one at each change.
    """

    encoder_channels: tuple[int, ...] = (64, 128, 256, 384)
    decoder_channels: tuple[int, ...] = (128, 256, 512, 768)
    num_blocks: tuple[int, ...] = (3, 3, 4, 6, 3)
    frame_strides: tuple[int, ...] = (1, 2, 3)
    latent_channels: int = 12
    has_encoder: bool = True


def mochi_vae_config(shapes: Shapes) -> MochiVaeConfig:
    """Return the configuration of the network with these tensors. Raises KeyError where the decoder lacks a weight."""
    num_levels = count_children(shapes, "decoder.blocks") - 2
    ups = range(num_levels, 0, -1)  # smallest image last
    inner = [shapes[f"decoder.blocks.{index}.blocks.0.stack.2.weight"][0] for index in ups]
    channels = (shapes["decoder.output_proj.weight"][1], *inner)
    strides = tuple(
        shapes[f"decoder.blocks.{index}.proj.weight"][0] // (given * SIDES**2)
        for index, given in zip(ups, channels, strict=False)
    )
    return MochiVaeConfig(
        encoder_channels=_encoder_channels(shapes) if ENCODER_MARK in shapes else (),
        decoder_channels=channels,
        num_blocks=(
            count_children(shapes, f"decoder.blocks.{num_levels + 1}"),
            *(count_children(shapes, f"decoder.blocks.{index}.blocks") for index in ups),
            count_children(shapes, "decoder.blocks.0") - 1,
        ),
        frame_strides=strides,
        latent_channels=shapes[MARK][1],
        has_encoder=ENCODER_MARK in shapes,
    )


def _encoder_channels(shapes: Shapes) -> tuple[int, ...]:
    layers = range(count_children(shapes, "encoder.layers"))
    changes = (f"encoder.layers.{index}.layers.0.weight" for index in layers)
    return (shapes[ENCODER_MARK][0], *(shapes[name][0] for name in changes if name in shapes))


class PointLayer(Linear):
    """A linear layer of the channels [B, C, ...] of every cell."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class PastConv3d(nn.Conv3d):
    """A convolution of each frame with those before it; edges and the first frame are repeated outside."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 3, *, stride: int | None = None) -> None:
        sizes = (kernel, kernel, kernel) if stride is None else (stride, SIDES, SIDES)
        super().__init__(
            in_channels, out_channels, sizes, stride=1 if stride is None else sizes,
            padding=(0, kernel // 2, kernel // 2) if stride is None else 0, padding_mode="replicate",
        )  # fmt: skip

    def forward(self, input: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        """Return [B, C, F, h, w]. Without `memory` the frames are the start of a video."""
        seen = self.kernel_size[0] - 1
        before = None if memory is None else memory.of(self)
        if before is None:
            before = input[:, :, :1].expand(-1, -1, seen, -1, -1)
        frames = torch.cat([before, input], dim=2)
        if memory is not None:
            memory.keep(self, frames[:, :, -seen:])
        return super().forward(frames)


class TimeAttention(nn.Module):
    """Attention of each cell of a video over the same cell of all frames."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv, self.out = Linear(channels, 3 * channels, bias=False), Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, frames, height, width = x.shape
        cells = self.qkv(x.permute(0, 3, 4, 2, 1).reshape(-1, frames, channels)).unflatten(2, (3, -1, HEAD_WIDTH))
        q, k, v = cells.transpose(1, 3).unbind(2)  # [B * h * w, heads, F, D]
        if frames > 1:  # else there is nothing to choose from
            q, k = (functional.normalize(item, p=2, dim=-1) for item in (q, k))
            v = scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = self.out(v.transpose(1, 2).flatten(2))
        return out.view(batch, height, width, frames, channels).permute(0, 4, 3, 1, 2)


class AttentionBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.attn = FrameNorm(channels), TimeAttention(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.attn(self.norm(x))
        return out


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, *, has_attention: bool = False) -> None:
        super().__init__()
        norms = {name: FrameNorm(channels) for name in ("0", "3")}
        convolutions = {name: PastConv3d(channels, channels) for name in ("2", "5")}
        self.stack = nn.ModuleDict({**norms, **convolutions})
        self.attn_block = AttentionBlock(channels) if has_attention else nn.Identity()

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        h = self.stack["2"](functional.silu(self.stack["0"](x)), memory)
        h = self.stack["5"](functional.silu(self.stack["3"](h)), memory)
        out: torch.Tensor = self.attn_block(h + x)
        return out


class DownLevel(nn.Module):
    """A change of size, and blocks with attention behind it."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int, frames: int) -> None:
        super().__init__()
        change = PastConv3d(in_channels, channels, stride=frames)
        blocks = (ResidualBlock(channels, has_attention=True) for _ in range(num_blocks))
        self.layers = nn.ModuleList([change, *blocks])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class UpLevel(nn.Module):
    """Blocks, and a change of size behind them."""

    def __init__(self, channels: int, out_channels: int, num_blocks: int, frames: int) -> None:
        super().__init__()
        self.stride = (frames, SIDES, SIDES)
        self.blocks = nn.ModuleList(ResidualBlock(channels) for _ in range(num_blocks))
        self.proj = PointLayer(channels, out_channels * math.prod(self.stride))

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        is_start = memory.of(self) is None
        memory.keep(self, x[:, :, :0])
        for block in self.blocks:
            x = block(x, memory)
        out = unfolded(self.proj(x), self.stride)
        return out[:, :, self.stride[0] - 1 :] if is_start else out  # the first frame stays one


class Encoder(nn.Module):
    """`forward([B, 3, F, H, W])` -> moments `[B, 2 * C, f, h, w]`."""

    def __init__(self, config: MochiVaeConfig) -> None:
        super().__init__()
        channels, blocks = config.encoder_channels, config.num_blocks
        levels = zip(pairwise(channels), blocks[1:-1], config.frame_strides, strict=True)
        self.layers = nn.ModuleList(
            [
                PointLayer(3 * (1 + 2 * len(WAVES)), channels[0]),
                *(ResidualBlock(channels[0]) for _ in range(blocks[0])),
                *(DownLevel(before, after, number, frames) for (before, after), number, frames in levels),
                *(ResidualBlock(channels[-1], has_attention=True) for _ in range(blocks[-1])),
            ]
        )
        self.output_norm = FrameNorm(channels[-1])
        self.output_proj = PointLayer(channels[-1], 2 * config.latent_channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = with_waves(x)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.output_proj(functional.silu(self.output_norm(x)))
        return out


class Decoder(nn.Module):
    """`forward([B, C, f, h, w], memory)` -> frames `[B, 3, F, H, W]` of a piece of a video."""

    def __init__(self, config: MochiVaeConfig) -> None:
        super().__init__()
        channels, blocks = config.decoder_channels, config.num_blocks
        strides = config.frame_strides
        first = [nn.Conv3d(config.latent_channels, channels[-1], 1), *_blocks(channels[-1], blocks[-1])]
        ups = (
            UpLevel(channels[level + 1], channels[level], blocks[level + 1], strides[level])
            for level in reversed(range(len(strides)))
        )
        self.blocks = nn.ModuleList([nn.ModuleList(first), *ups, nn.ModuleList(_blocks(channels[0], blocks[0]))])
        self.output_proj = PointLayer(channels[0], 3)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        layers = [*self.blocks]
        start, end = layers[0], layers[-1]
        assert isinstance(start, nn.ModuleList) and isinstance(end, nn.ModuleList)
        x = start[0](x)
        for layer in (*[*start][1:], *layers[1:-1], *end):
            x = layer(x, memory)
        out: torch.Tensor = self.output_proj(functional.silu(x))
        return out


def _blocks(channels: int, number: int) -> list[nn.Module]:
    return [ResidualBlock(channels) for _ in range(number)]


def with_waves(videos: torch.Tensor) -> torch.Tensor:
    """Return pixels [B, C, ...] with their sines and cosines of two frequencies as channels behind them."""
    powers = torch.tensor(WAVES, dtype=videos.dtype, device=videos.device)
    factors = (torch.pow(2.0, powers) * (2 * torch.pi)).repeat(videos.shape[1])
    angles = factors[None, :, None, None, None] * videos.repeat_interleave(len(WAVES), dim=1)
    return torch.cat([videos, angles.sin(), angles.cos()], dim=1)


class MochiVae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    works_on_whole_videos = True  # unless they are decoded in pieces

    def __init__(self, config: MochiVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = SIDES ** len(config.frame_strides)
        self.frames_ratio = math.prod(config.frame_strides)
        self.frames_decoded_at_once = self.frames_ratio
        self.decoder = Decoder(config)
        self.encoder = Encoder(config) if config.has_encoder else None

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of each frame and byte of the dtype, for encoding."""
        channels = self.config.encoder_channels[0] if self.config.has_encoder else 0
        return ENCODE_BYTES_PER_PIXEL * channels // MEASURED_ENCODER_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of each frame and byte of the dtype, for decoding."""
        return DECODE_BYTES_PER_CELL * self.config.decoder_channels[0] // MEASURED_CHANNELS

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, 1 + n, h, w]. Raises ValueError for a file without encoder."""
        if self.encoder is None:
            raise ValueError(
                "vae: its file has no encoder; got the decoder alone, expected a VAE of Mochi with its encoder"
            )
        moments: torch.Tensor = self.encoder(videos)
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 6n, H, W] of latents [B, C, 1 + n, h, w]."""
        videos: torch.Tensor = self.decoder(latents, FrameMemory())
        return videos

    def decoded_pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, 1 + n, h, w] in order: [B, 3, 1, H, W], then [B, 3, 6, H, W] each.

        They are those of `decode` but for the last bits, which convolutions of fewer frames may round otherwise.
        """
        memory = FrameMemory()
        for frame in torch.split(latents, 1, dim=2):
            yield self.decoder(frame, memory)
