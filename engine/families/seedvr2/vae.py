"""The causal video autoencoder of SeedVR (Wang et al. 2025, arXiv 2501.01320, section 3.3), of any number of channels.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 4n frames, latents `[B, 16, 1 + n, H/8, W/8]` scaled to a deviation of about
one; an image is a video of one frame. Convolutions see no later frames, norms and attention one frame at a time, so
that a video passes in pieces with the same result. Module names are those of the published file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import GroupNorm, Linear
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.frame_norm import NUM_GROUPS, FrameNorm
from darkroom.engine.layers.shapes import Shapes, count_children

FRAMES_RATIO = 4
LATENT_CHANNELS = 16
SCALE = 0.9152  # of latents, that of the published configuration
NUM_TIME_LEVELS = 2  # that halve or double the number of frames
EPS = 1e-6
MARK = "decoder.up_blocks.2.upsamplers.0.upscale_conv.weight"

# Numbers of working memory by pixel of each frame of a piece, of the network of 128 channels, measured as the most that
# tensors hold at a time in the layers at full size: their input, its norm, its padding and the result.
DECODE_VALUES_PER_PIXEL, ENCODE_VALUES_PER_PIXEL = 1750, 1100
# Numbers by pixel of a frame that layers remember of the frames before, measured with the same network.
DECODE_REMEMBERED_PER_PIXEL, ENCODE_REMEMBERED_PER_PIXEL = 4350, 1400
MEASURED_CHANNELS = 128


@dataclass(frozen=True, slots=True)
class SeedVr2VaeConfig:
    """Configuration of the network. `level_channels`: largest image first; every level but the last halves it."""

    level_channels: tuple[int, ...] = (128, 256, 512, 512)
    blocks_per_level: int = 2
    latent_channels: int = LATENT_CHANNELS
    image_channels: int = 3

    @property
    def num_halvings(self) -> int:
        """Number of levels that halve the image."""
        return len(self.level_channels) - 1


def seedvr2_vae_config(shapes: Shapes) -> SeedVr2VaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    levels = range(count_children(shapes, "encoder.down_blocks"))
    return SeedVr2VaeConfig(
        level_channels=tuple(shapes[f"encoder.down_blocks.{level}.resnets.0.conv1.weight"][0] for level in levels),
        blocks_per_level=count_children(shapes, "encoder.down_blocks.0.resnets"),
        latent_channels=shapes["decoder.conv_in.weight"][1],
        image_channels=shapes["encoder.conv_in.weight"][1],
    )


# --- layers ----------------------------------------------------------------------------------------------------------


class CausalConv3d(nn.Conv3d):
    """A convolution of each frame with those before it; before the first frame that one is repeated.

    With a stride along time it continues where the piece before ended.
    """

    def forward(self, input: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        """Return frames [B, C, F, h, w]. Without `memory` the frames are a whole video."""
        kernel, step = self.kernel_size[0], self.stride[0]
        if kernel > 1:
            before = None if memory is None else memory.of(self)
            if before is None:
                before = input[:, :, :1].expand(-1, -1, kernel - 1, -1, -1)
            input = torch.cat([before, input], dim=2)
            if memory is not None:
                made = (input.shape[2] - kernel) // step + 1
                memory.keep(self, input[:, :, made * step :])
        return super().forward(input)


def _conv(in_channels: int, channels: int) -> CausalConv3d:
    return CausalConv3d(in_channels, channels, 3, padding=(0, 1, 1))


class ResnetBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = FrameNorm(in_channels, EPS), FrameNorm(channels, EPS)
        self.conv1, self.conv2 = _conv(in_channels, channels), _conv(channels, channels)
        changes = in_channels != channels
        self.conv_shortcut = CausalConv3d(in_channels, channels, 1) if changes else nn.Identity()

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)), memory)
        h = self.conv2(functional.silu(self.norm2(h)), memory)
        out: torch.Tensor = self.conv_shortcut(x) + h
        return out


class FrameAttention(nn.Module):
    """Attention of each cell of a frame over all cells of that frame, with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.group_norm = GroupNorm(NUM_GROUPS, channels, eps=EPS)
        self.to_q, self.to_k, self.to_v = (Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(channels, channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, frames, height, width = x.shape
        images = x.transpose(1, 2).flatten(0, 1)  # [B * F, C, h, w]
        cells = self.group_norm(images).flatten(2).transpose(1, 2)
        q, k, v = (layer(cells).unsqueeze(1) for layer in (self.to_q, self.to_k, self.to_v))
        attended = self.to_out[0](scaled_dot_product_attention(q, k, v).squeeze(1))
        out: torch.Tensor = images + attended.transpose(1, 2).reshape(images.shape)
        return out.view(batch, frames, -1, height, width).transpose(1, 2)


class MidBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([FrameAttention(channels)])
        self.resnets = nn.ModuleList(ResnetBlock(channels, channels) for _ in range(2))

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        out: torch.Tensor = self.resnets[1](self.attentions[0](self.resnets[0](x, memory)), memory)
        return out


class Downsample(nn.Module):
    def __init__(self, channels: int, *, halves_time: bool) -> None:
        super().__init__()
        kernel, step = (3, 2) if halves_time else (1, 1)
        self.conv = CausalConv3d(channels, channels, (kernel, 3, 3), stride=(step, 2, 2))

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.pad(x, (0, 1, 0, 1)), memory)
        return out


class Upsample(nn.Module):
    """Twice as many cells along each side, and with `doubles_time` twice as many frames behind a video's first one."""

    def __init__(self, channels: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.stride = (2 if doubles_time else 1, 2, 2)
        self.upscale_conv = nn.Conv3d(channels, channels * self.stride[0] * 4, 1)
        self.conv = _conv(channels, channels)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        frames, rows, columns = self.stride
        batch, channels, num_frames, height, width = x.shape
        cells = self.upscale_conv(x).view(batch, rows, columns, frames, channels, num_frames, height, width)
        x = cells.permute(0, 4, 5, 3, 6, 1, 7, 2).reshape(
            batch, channels, num_frames * frames, height * rows, width * columns
        )
        if frames > 1 and memory.of(self.conv) is None:  # the first frame of a video stays one
            x = torch.cat([x[:, :, :1], x[:, :, frames:]], dim=2)
        out: torch.Tensor = self.conv(x, memory)
        return out


class Level(nn.Module):
    """Blocks at one size, followed by the change of size that a subclass names."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        given = [in_channels, *[channels] * (num_blocks - 1)]
        self.resnets = nn.ModuleList(ResnetBlock(number, channels) for number in given)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        for block in (*self.resnets, *self.resizes()):
            x = block(x, memory)
        return x

    def resizes(self) -> Sequence[nn.Module]:
        return ()


class DownLevel(Level):
    def __init__(self, in_channels: int, channels: int, num_blocks: int, *, halves_time: bool) -> None:
        super().__init__(in_channels, channels, num_blocks)
        self.downsamplers = nn.ModuleList([Downsample(channels, halves_time=halves_time)])

    def resizes(self) -> Sequence[nn.Module]:
        return [*self.downsamplers]


class UpLevel(Level):
    def __init__(self, in_channels: int, channels: int, num_blocks: int, *, doubles_time: bool) -> None:
        super().__init__(in_channels, channels, num_blocks)
        self.upsamplers = nn.ModuleList([Upsample(channels, doubles_time=doubles_time)])

    def resizes(self) -> Sequence[nn.Module]:
        return [*self.upsamplers]


# --- network ---------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """`forward(frames [B, 3, F, H, W], memory)` -> moments [B, 32, f, h, w] of a piece of a video."""

    def __init__(self, config: SeedVr2VaeConfig) -> None:
        super().__init__()
        levels, halvings = config.level_channels, config.num_halvings
        self.conv_in = _conv(config.image_channels, levels[0])
        self.down_blocks = nn.ModuleList()
        for level, channels in enumerate(levels):
            given = levels[max(0, level - 1)]
            if level == halvings:
                self.down_blocks.append(Level(given, channels, config.blocks_per_level))
                continue
            halves_time = level >= halvings - NUM_TIME_LEVELS
            self.down_blocks.append(DownLevel(given, channels, config.blocks_per_level, halves_time=halves_time))
        self.mid_block = MidBlock(levels[-1])
        self.conv_norm_out = FrameNorm(levels[-1], EPS)
        self.conv_out = _conv(levels[-1], 2 * config.latent_channels)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv_in(x, memory)
        for layer in (*self.down_blocks, self.mid_block):
            x = layer(x, memory)
        out: torch.Tensor = self.conv_out(functional.silu(self.conv_norm_out(x)), memory)
        return out


class Decoder(nn.Module):
    """`forward(latents [B, 16, f, h, w], memory)` -> frames [B, 3, F, H, W] of a piece of a video."""

    def __init__(self, config: SeedVr2VaeConfig) -> None:
        super().__init__()
        levels = config.level_channels[::-1]
        self.conv_in = _conv(config.latent_channels, levels[0])
        self.mid_block = MidBlock(levels[0])
        self.up_blocks = nn.ModuleList()
        for level, channels in enumerate(levels):
            given, blocks = levels[max(0, level - 1)], config.blocks_per_level + 1
            if level == config.num_halvings:
                self.up_blocks.append(Level(given, channels, blocks))
                continue
            self.up_blocks.append(UpLevel(given, channels, blocks, doubles_time=level < NUM_TIME_LEVELS))
        self.conv_norm_out = FrameNorm(levels[-1], EPS)
        self.conv_out = _conv(levels[-1], config.image_channels)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv_in(x, memory)
        for layer in (self.mid_block, *self.up_blocks):
            x = layer(x, memory)
        out: torch.Tensor = self.conv_out(functional.silu(self.conv_norm_out(x)), memory)
        return out


class SeedVr2Vae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    frames_ratio = FRAMES_RATIO
    frames_decoded_at_once = FRAMES_RATIO
    frames_encoded_at_once = FRAMES_RATIO
    takes_any_size = True
    fades_tiles = True

    def __init__(self, config: SeedVr2VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2**config.num_halvings
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one video of the shape [B, 3, F, H, W], for a byte of the dtype."""
        *_, frames, height, width = shape
        return self._bytes(frames, height * width, ENCODE_VALUES_PER_PIXEL, ENCODE_REMEMBERED_PER_PIXEL)

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, 16, f, h, w], for a byte of the dtype."""
        *_, latent_frames, height, width = shape
        frames, frame_px = 1 + (latent_frames - 1) * FRAMES_RATIO, height * width * self.downscale_ratio**2
        return self._bytes(frames, frame_px, DECODE_VALUES_PER_PIXEL, DECODE_REMEMBERED_PER_PIXEL)

    @staticmethod
    def decoding_memory() -> FrameMemory:
        """Return the memory of layers for a video that is decoded in several calls."""
        return FrameMemory()

    @property
    def remembered_values_per_pixel(self) -> int:
        """Numbers that layers remember between pieces by pixel of a frame, for decoding."""
        return DECODE_REMEMBERED_PER_PIXEL * self.config.level_channels[0] // MEASURED_CHANNELS

    def _bytes(self, frames: int, frame_px: int, values_per_pixel: int, remembered_per_pixel: int) -> int:
        values = min(frames, FRAMES_RATIO) * values_per_pixel + (remembered_per_pixel if frames > 1 else 0)
        return frame_px * values * self.config.level_channels[0] // MEASURED_CHANNELS

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, 16, f, h, w] of videos [B, 3, F, H, W], scaled."""
        return self.encoded_from_pieces(torch.split(videos, FRAMES_RATIO, dim=2))

    def encoded_from_pieces(self, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the latents of videos that come in pieces of 4 frames [B, 3, f, H, W], the last one of fewer."""
        left = iter(pieces)
        first = next(left)
        memory = FrameMemory(is_whole=first.shape[2] < FRAMES_RATIO)
        moments = [self.encoder(piece, memory) for piece in itertools.chain((first,), left)]
        return torch.cat([item.chunk(2, dim=1)[0] for item in moments], dim=2) * SCALE

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 4n, H, W] of latents [B, 16, 1 + n, h, w]."""
        return torch.cat([*self.decoded_pieces(latents)], dim=2)

    def decoded_pieces(self, latents: torch.Tensor, memory: FrameMemory | None = None) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, 16, 1 + n, h, w] in order: [B, 3, 1, H, W], then [B, 3, 4, H, W] each.

        With a `memory` they go on where the latents before them ended.
        """
        memory = FrameMemory(is_whole=latents.shape[2] == 1) if memory is None else memory
        for piece in torch.split(latents, 1, dim=2):
            yield self.decoder(piece / SCALE, memory)
