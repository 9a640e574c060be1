"""The causal 3-D autoencoder of CogVideoX (Yang et al. 2024, arXiv 2408.06072, section 2.1), of any width.

Videos `[B, 3, F, H, W]` in -1..1, latents `[B, C, f, h, w]` of cells of 8 pixels, unscaled; an image is a video of one
frame. As in ComfyUI an odd number of latent frames becomes 4f - 3 frames, since the first one stays one, and an even
number 4f. Videos are encoded in pieces of 8 frames, of which the first is what is left over. Of the decoder the levels
of few cells have the whole video, those behind them pieces of 4 frames. Norms have the frames of a piece, convolutions
also those before it. Module names are those of the diffusers library, which the checkpoints have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, GroupNorm
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.shapes import Shapes, count_children

FRAMES_RATIO = 4
NUM_TIME_LEVELS = 2  # that halve or double the number of frames
ENCODED_AT_ONCE, DECODED_AT_ONCE = 8, 4  # frames of a piece
NUM_GROUPS, EPS = 32, 1e-6
MARK = "decoder.mid_block.resnets.0.norm1.norm_layer.weight"

# Numbers of working memory by pixel of a frame, measured as the most that tensors hold at a time in the network of 128
# channels: for one frame; for a piece of several and what layers remember; and by frame of the whole video, what waits
# to become pieces, or, of long ones, what is in work before.
DECODE_ONE, DECODE_PIECE, DECODE_WAITING, DECODE_WHOLE = 1490, 8520, 8, 57
ENCODE_BY_FRAME, ENCODE_REMEMBERED = 1000, 1400
MEASURED_CHANNELS = 128

Frames = torch.Tensor  # [B, C, F, h, w]


@dataclass(frozen=True, slots=True)
class CogVideoXVaeConfig:
    """Configuration of the network. `level_channels`: largest image first; every level but the last halves it."""

    level_channels: tuple[int, ...] = (128, 256, 256, 512)
    blocks_per_level: int = 3
    latent_channels: int = 16

    @property
    def num_halvings(self) -> int:
        """Number of levels that halve the image."""
        return len(self.level_channels) - 1


def cogvideox_vae_config(shapes: Shapes) -> CogVideoXVaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    levels = range(count_children(shapes, "encoder.down_blocks"))
    names = (f"encoder.down_blocks.{level}.resnets.0.conv1.conv.weight" for level in levels)
    return CogVideoXVaeConfig(
        level_channels=tuple(shapes[name][0] for name in names),
        blocks_per_level=count_children(shapes, "encoder.down_blocks.0.resnets"),
        latent_channels=shapes["encoder.conv_out.conv.weight"][0] // 2,
    )


def num_frames(latent_frames: int) -> int:
    """Return the number of frames that latent frames become."""
    return latent_frames * FRAMES_RATIO - (FRAMES_RATIO - 1 if latent_frames % 2 else 0)


def sources(num: int, ratio: int, device: torch.device) -> torch.Tensor:
    """Return for each frame of a video `ratio` times as long as one of `num` frames the frame that it is made from.

    The first one of an odd number stays one frame.
    """
    if num % 2 == 0:
        return torch.arange(num * ratio, device=device) // ratio
    return (torch.arange((num - 1) * ratio + 1, device=device) + ratio - 1) // ratio


# --- layers ----------------------------------------------------------------------------------------------------------


class CausalConv3d(nn.Module):
    """A convolution of each frame with those before it; before the first frame of a piece that one is repeated.

    It remembers the last frames of a piece for the next, but not a first piece of one frame (as ComfyUI does).
    """

    def __init__(self, in_channels: int, channels: int, kernel: int = 3) -> None:
        super().__init__()
        side = kernel // 2
        self.conv = nn.Conv3d(in_channels, channels, kernel, padding=(0, side, side))
        self.seen = kernel - 1

    def forward(self, x: Frames, memory: FrameMemory) -> Frames:
        before = memory.of(self)
        is_kept = before is not None or x.shape[2] > 1
        x = torch.cat([x[:, :, :1].expand(-1, -1, self.seen, -1, -1) if before is None else before, x], dim=2)
        if is_kept:
            memory.keep(self, x[:, :, -self.seen :])
        out: torch.Tensor = self.conv(x)
        return out


class PointConv3d(nn.Module):
    """A linear layer of the channels of every cell, with the name that a convolution has in the files."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, channels, 1)

    def forward(self, x: Frames) -> Frames:
        out: torch.Tensor = self.conv(x)
        return out


class LatentNorm(nn.Module):
    """A group norm whose result the latent scales and shifts (Zheng et al. 2022, arXiv 2209.09002)."""

    def __init__(self, channels: int, latent_channels: int) -> None:
        super().__init__()
        self.norm_layer = GroupNorm(NUM_GROUPS, channels, eps=EPS)
        self.conv_y, self.conv_b = (PointConv3d(latent_channels, channels) for _ in range(2))

    def forward(self, x: Frames, latent: Frames) -> Frames:
        """Return [B, C, F, h, w]. `latent` has as many frames; its cells are enlarged behind the layers."""
        out: torch.Tensor = self.norm_layer(x)
        out.mul_(functional.interpolate(self.conv_y(latent), size=x.shape[2:]))  # in place: each is as large as x
        return out.add_(functional.interpolate(self.conv_b(latent), size=x.shape[2:]))


class ResnetBlock(nn.Module):
    """Two convolutions beside their input. With `latent_channels` its norms are those of the decoder."""

    def __init__(self, in_channels: int, channels: int, latent_channels: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(in_channels, latent_channels), _norm(channels, latent_channels)
        self.conv1, self.conv2 = CausalConv3d(in_channels, channels), CausalConv3d(channels, channels)
        changes = in_channels != channels
        self.conv_shortcut = nn.Conv3d(in_channels, channels, 1) if changes else nn.Identity()

    def forward(self, x: Frames, memory: FrameMemory, latent: Frames | None = None) -> Frames:
        given = () if latent is None else (latent,)
        h = self.conv1(functional.silu(self.norm1(x, *given), inplace=True), memory)
        h = self.conv2(functional.silu(self.norm2(h, *given), inplace=True), memory)
        out: torch.Tensor = self.conv_shortcut(x) + h
        return out


def _norm(channels: int, latent_channels: int) -> nn.Module:
    return LatentNorm(channels, latent_channels) if latent_channels else GroupNorm(NUM_GROUPS, channels, eps=EPS)


def _by_frame(layer: nn.Module, x: Frames) -> Frames:
    """Return the result of a layer of images for each frame."""
    images: torch.Tensor = layer(x.transpose(1, 2).flatten(0, 1))
    return images.view(x.shape[0], x.shape[2], *images.shape[1:]).transpose(1, 2)


class Downsample(nn.Module):
    """Half as many cells along each side, and with `halves_time` half as many frames."""

    def __init__(self, channels: int, *, halves_time: bool) -> None:
        super().__init__()
        self.halves_time = halves_time
        self.conv = Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Frames) -> Frames:
        if self.halves_time:
            odd = x.shape[2] % 2  # the first frame of an odd number stays as it is
            pairs = x[:, :, odd:].reshape(*x.shape[:2], -1, 2, *x.shape[3:]).mean(dim=3)
            x = torch.cat([x[:, :, :odd], pairs], dim=2)
        return _by_frame(self.conv, functional.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Twice as many cells along each side of every frame. Whoever calls it repeats the frames."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Frames) -> Frames:
        large = functional.interpolate(x, scale_factor=(1, 2, 2))
        return _by_frame(self.conv, large)


class Level(nn.Module):
    """Blocks at one size."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int, latent_channels: int = 0) -> None:
        super().__init__()
        given = [in_channels, *[channels] * (num_blocks - 1)]
        self.resnets = nn.ModuleList(ResnetBlock(number, channels, latent_channels) for number in given)

    def forward(self, x: Frames, memory: FrameMemory, latent: Frames | None = None) -> Frames:
        for block in self.resnets:
            x = block(x, memory, latent)
        return x


# --- network ---------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """`forward(frames [B, 3, F, H, W], memory)` -> moments [B, 2 * C, f, h, w] of a piece of a video."""

    def __init__(self, config: CogVideoXVaeConfig) -> None:
        super().__init__()
        levels = config.level_channels
        self.conv_in = CausalConv3d(3, levels[0])
        self.down_blocks = nn.ModuleList()
        for index, channels in enumerate(levels):
            level = Level(levels[max(0, index - 1)], channels, config.blocks_per_level)
            if index < config.num_halvings:
                change = Downsample(channels, halves_time=index < NUM_TIME_LEVELS)
                level.add_module("downsamplers", nn.ModuleList([change]))
            self.down_blocks.append(level)
        self.mid_block = Level(levels[-1], levels[-1], 2)
        self.norm_out = GroupNorm(NUM_GROUPS, levels[-1], eps=EPS)
        self.conv_out = CausalConv3d(levels[-1], 2 * config.latent_channels)

    def forward(self, x: Frames, memory: FrameMemory) -> Frames:
        x = self.conv_in(x, memory)
        for level in self.down_blocks:
            x = level(x, memory)
            for change in getattr(level, "downsamplers", ()):
                x = change(x)
        x = self.mid_block(x, memory)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x), inplace=True), memory)
        return out


class Decoder(nn.Module):
    """Latents to frames: the levels of few cells with the whole video, then pieces of it through the others."""

    def __init__(self, config: CogVideoXVaeConfig) -> None:
        super().__init__()
        levels, latent_channels = config.level_channels[::-1], config.latent_channels
        self.conv_in = CausalConv3d(latent_channels, levels[0])
        self.mid_block = Level(levels[0], levels[0], 2, latent_channels)
        self.up_blocks = nn.ModuleList()
        for index, channels in enumerate(levels):
            level = Level(levels[max(0, index - 1)], channels, config.blocks_per_level + 1, latent_channels)
            if index < config.num_halvings:
                level.add_module("upsamplers", nn.ModuleList([Upsample(channels)]))
            self.up_blocks.append(level)
        self.norm_out = LatentNorm(levels[-1], latent_channels)
        self.conv_out = CausalConv3d(levels[-1], 3)

    def pieces(self, latents: Frames) -> Iterator[Frames]:
        """Yield the frames [B, 3, f, H, W] of latents [B, C, f, h, w] in order, at most 4 at a time."""
        memory = FrameMemory(is_whole=True)  # each of these layers has the whole video
        x = self.mid_block(self.conv_in(latents, memory), memory, latents)
        for index in range(NUM_TIME_LEVELS):
            ratio = 2**index
            x = self.up_blocks[index](x, memory, latents[:, :, sources(latents.shape[2], ratio, x.device)])
            if index < NUM_TIME_LEVELS - 1:
                x = self._enlarged(index, x[:, :, sources(x.shape[2], 2, x.device)])
        # What enlarges these frames sees them one by one: they are repeated and enlarged piece by piece.
        repeated = sources(x.shape[2], 2, x.device)
        shown = latents[:, :, sources(latents.shape[2], FRAMES_RATIO, x.device)]
        memory = FrameMemory(is_whole=len(repeated) <= DECODED_AT_ONCE)
        for first in range(0, len(repeated), DECODED_AT_ONCE):
            piece = slice(first, first + DECODED_AT_ONCE)
            large = self._enlarged(NUM_TIME_LEVELS - 1, x[:, :, repeated[piece]])
            yield self._drawn(large, shown[:, :, piece], memory)

    def _enlarged(self, index: int, x: Frames) -> Frames:
        change: Sequence[nn.Module] = getattr(self.up_blocks[index], "upsamplers", ())
        for layer in change:
            x = layer(x)
        return x

    def _drawn(self, x: Frames, latent: Frames, memory: FrameMemory) -> Frames:
        """Return the frames of a piece from those that enter the levels of many cells."""
        for index in range(NUM_TIME_LEVELS, len(self.up_blocks)):
            x = self._enlarged(index, self.up_blocks[index](x, memory, latent))
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x, latent), inplace=True), memory)
        return out


class CogVideoXVae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video become one latent frame."""

    latent_dim = 3
    frames_ratio = FRAMES_RATIO
    frames_decoded_at_once = DECODED_AT_ONCE
    works_on_whole_videos = True  # in the levels of few cells

    def __init__(self, config: CogVideoXVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2**config.num_halvings
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    @staticmethod
    def frames_at_once(latent_frames: int) -> int:
        """Return the number of frames that latent frames become which are decoded as one video."""
        return num_frames(latent_frames)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one video of the shape [B, 3, F, H, W], for a byte of the dtype."""
        *_, frames, height, width = shape
        remembered = ENCODE_REMEMBERED if frames > ENCODED_AT_ONCE else 0
        return self._bytes(height * width, min(frames, ENCODED_AT_ONCE) * ENCODE_BY_FRAME + remembered)

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, C, f, h, w], for a byte of the dtype."""
        *_, latent_frames, height, width = shape
        frames = num_frames(latent_frames)
        values = max(DECODE_PIECE + DECODE_WAITING * frames, DECODE_WHOLE * frames) if frames > 1 else DECODE_ONE
        return self._bytes(height * width * self.downscale_ratio**2, values)

    def _bytes(self, frame_px: int, values_per_pixel: int) -> int:
        return frame_px * values_per_pixel * self.config.level_channels[0] // MEASURED_CHANNELS

    def encode(self, videos: Frames) -> Frames:
        """Return the mean of the posterior [B, C, f, h, w] of videos [B, 3, F, H, W]."""
        return self.encoded_from_pieces(torch.split(videos, self.encoded_pieces(videos.shape[2]), dim=2))

    @staticmethod
    def encoded_pieces(frames: int) -> list[int]:
        """Return the numbers of frames of the pieces in which a video is encoded: what is left over comes first."""
        left = frames % ENCODED_AT_ONCE
        return [*[left] * bool(left), *[ENCODED_AT_ONCE] * (frames // ENCODED_AT_ONCE)]

    def encoded_from_pieces(self, pieces: Iterable[Frames]) -> Frames:
        """Return the mean of the posterior of videos that come in such pieces [B, 3, f, H, W]."""
        memory = FrameMemory()
        moments = [self.encoder(piece, memory) for piece in pieces]
        return torch.cat([item.chunk(2, dim=1)[0] for item in moments], dim=2)

    def decode(self, latents: Frames) -> Frames:
        """Return the frames [B, 3, F, H, W] of latents [B, C, f, h, w]."""
        return torch.cat([*self.decoded_pieces(latents)], dim=2)

    def decoded_pieces(self, latents: Frames) -> Iterator[Frames]:
        """Yield the frames of latents [B, C, f, h, w] in order: [B, 3, f, H, W] of at most 4 frames each."""
        yield from self.decoder.pieces(latents)
