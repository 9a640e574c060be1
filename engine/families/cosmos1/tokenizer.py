"""The continuous tokenizer of videos of Cosmos 1 (NVIDIA 2025, arXiv 2501.03575, section 4), of any width.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 8n frames, latents `[B, C, 1 + n, H/8, W/8]` standardised by statistics that
the file holds, at half deviation; an image is a video of one frame. Two Haar wavelet transforms make patches of four
frames, rows and columns; the network halves all three once more. No frame sees later ones: a video is encoded as a
whole, and can be decoded in pieces of one latent frame, each layer remembering what it has seen. Module names are those
of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.shapes import Shapes, count_children

PATCH, TRANSFORMS = 4, 2  # pixels and frames of a patch, each halved by so many transforms
RATIO = 8  # frames, rows and columns of a latent cell
PARTS = 8  # sums and differences of eight neighbours
DEVIATION = 0.5  # of latents
STATISTICS_FRAMES = 16  # latent frames that have statistics of their own, over and over
NORM_EPS = 1e-6
# Bytes of working memory and byte of the dtype, of the network of 128 channels: of a pixel and of a latent cell of each
# frame (ComfyUI's).
ENCODE_BYTES_PER_PIXEL, DECODE_BYTES_PER_CELL, MEASURED_CHANNELS = 50, 50 * 8 * 8 * 8, 128

Sizes = tuple[int, int, int]  # frames, rows, columns

MARK = "decoder.conv_in.0.conv3d.weight"


@dataclass(frozen=True, slots=True)
class CosmosTokenizerConfig:
    """Configuration of the network. `level_channels`: largest image first; the first level is halved."""

    channels: int = 128
    level_channels: tuple[int, ...] = (256, 512, 512)
    blocks_per_level: int = 2
    latent_channels: int = 16


def cosmos_tokenizer_config(shapes: Shapes) -> CosmosTokenizerConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    levels = count_children(shapes, "encoder.down")
    return CosmosTokenizerConfig(
        channels=shapes["encoder.conv_in.0.conv3d.weight"][0],
        level_channels=tuple(
            shapes[f"encoder.down.{level}.block.0.conv1.0.conv3d.weight"][0] for level in range(levels)
        ),
        blocks_per_level=count_children(shapes, "encoder.down.0.block"),
        latent_channels=shapes["quant_conv.conv3d.weight"][0],
    )


def _every_other(x: torch.Tensor, axis: int, first: int) -> torch.Tensor:
    """Return every second slice along an axis, from slice `first` on."""
    return x[(*(slice(None),) * axis, slice(first, None, 2))]


def transformed(x: torch.Tensor) -> torch.Tensor:
    """Return averages and differences of eight neighbours [B, 8 C, F/2, H/2, W/2] of [B, C, F, H, W].

    Parts are in the order of frames, rows, columns, averages first. An odd side is mirrored at its end.
    """
    odd_frames, odd_rows, odd_columns = (size % 2 for size in x.shape[2:])
    if odd_frames or odd_rows or odd_columns:
        x = functional.pad(x, (0, odd_columns, 0, odd_rows, 0, odd_frames), mode="reflect")
    parts = [x]
    for axis in (2, 3, 4):
        pairs = [(_every_other(part, axis, 0), _every_other(part, axis, 1)) for part in parts]
        parts = [combined for first, second in pairs for combined in (first + second, first - second)]
    return torch.cat(parts, dim=1) / PARTS


def restored(x: torch.Tensor) -> torch.Tensor:
    """Return the cells [B, C, 2 F, 2 H, 2 W] of averages and differences [B, 8 C, F, H, W]."""
    parts = list(x.chunk(PARTS, dim=1))
    for axis in (4, 3, 2):
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [torch.stack([mean + half, mean - half], dim=axis + 1).flatten(axis, axis + 1) for mean, half in pairs]
    return parts[0]


class PastConv3d(nn.Module):
    """A convolution of each frame with those before it. The first frame is repeated outside, edges are zeros."""

    def __init__(self, in_channels: int, out_channels: int, kernel: Sizes, *, stride: Sizes = (1, 1, 1)) -> None:
        super().__init__()
        self.frames_before = kernel[0] - stride[0]
        edge = kernel[1] // 2 if stride[1] == 1 else 0
        self.conv3d = nn.Conv3d(in_channels, out_channels, kernel, stride=stride, padding=(0, edge, edge))

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        """Return [B, C, F, h, w]. Without `memory` the frames are the start of a video."""
        if self.frames_before:
            before = None if memory is None else memory.of(self)
            if before is None:
                before = x[:, :, :1].expand(-1, -1, self.frames_before, -1, -1)
            x = torch.cat([before, x], dim=2)
            if memory is not None:
                memory.keep(self, x[:, :, -self.frames_before :])
        out: torch.Tensor = self.conv3d(x)
        return out


def _point(in_channels: int, out_channels: int) -> PastConv3d:
    return PastConv3d(in_channels, out_channels, (1, 1, 1))


class FactorisedConv(nn.Sequential):
    """A convolution within each frame, and one along time."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            PastConv3d(in_channels, out_channels, (1, 3, 3)), PastConv3d(out_channels, out_channels, (3, 1, 1))
        )

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        for layer in self:
            x = layer(x, memory)
        return x


class FrameNorm(nn.Module):
    """A norm over all channels and cells of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels, eps=NORM_EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = self.norm(x.transpose(1, 2).flatten(0, 1))
        out: torch.Tensor = each.unflatten(0, (x.shape[0], -1)).transpose(1, 2)
        return out


class FactorisedBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = FrameNorm(in_channels), FrameNorm(channels)
        self.conv1, self.conv2 = FactorisedConv(in_channels, channels), FactorisedConv(channels, channels)
        self.nin_shortcut = _point(in_channels, channels) if in_channels != channels else nn.Identity()

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)), memory)
        h = self.conv2(functional.silu(self.norm2(h)), memory)
        out: torch.Tensor = self.nin_shortcut(x) + h
        return out


class CellsAttention(nn.Module):
    """Self-attention with one head: of the cells of each frame, or along time of each cell with those before it.

    Along time, `memory` holds keys and values of the frames before; a piece of a video then has one frame.
    """

    def __init__(self, channels: int, *, along_time: bool) -> None:
        super().__init__()
        self.along_time = along_time
        self.norm = FrameNorm(channels)
        self.q, self.k, self.v, self.proj_out = (_point(channels, channels) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        normed = self.norm(x)
        batch, _, frames, height, width = x.shape
        order = (0, 3, 4, 2, 1) if self.along_time else (0, 2, 3, 4, 1)
        tokens = frames if self.along_time else height * width
        q, k, v = (
            layer(normed).permute(order).reshape(-1, 1, tokens, x.shape[1]) for layer in (self.q, self.k, self.v)
        )
        is_causal = self.along_time
        if memory is not None and self.along_time:
            k, v = (_with_those_before(memory, layer, new) for layer, new in ((self.k, k), (self.v, v)))
            is_causal = False  # one frame, the last, sees all that there are
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        if self.along_time:
            out = out.view(batch, height, width, frames, -1).permute(0, 4, 3, 1, 2)
        else:
            out = out.view(batch, frames, height, width, -1).permute(0, 4, 1, 2, 3)
        attended: torch.Tensor = self.proj_out(out)
        return x + attended


def _with_those_before(memory: FrameMemory, layer: nn.Module, new: torch.Tensor) -> torch.Tensor:
    """Return a layer's results [cells, 1, f, C] of all frames so far, and remember them."""
    before = memory.of(layer)
    every = new if before is None else torch.cat([before, new], dim=2)
    memory.hold(layer, every)
    return every


class Middle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = FactorisedBlock(channels, channels), FactorisedBlock(channels, channels)
        self.attn_1 = nn.Sequential(*(CellsAttention(channels, along_time=along_time) for along_time in (False, True)))

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        x = self.block_1(x, memory)
        for attention in self.attn_1:
            x = attention(x, memory)
        out: torch.Tensor = self.block_2(x, memory)
        return out


class Halved(nn.Module):
    """Half as many frames, rows and columns: convolutions beside averages."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = PastConv3d(channels, channels, (1, 3, 3), stride=(1, 2, 2))
        self.conv2 = PastConv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1))
        self.conv3 = _point(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, (0, 1, 0, 1))
        x = self.conv1(x) + functional.avg_pool3d(x, (1, 2, 2))
        x = torch.cat([x[:, :, :1], x], dim=2)
        x = self.conv2(x) + functional.avg_pool3d(x, (2, 1, 1))
        out: torch.Tensor = self.conv3(x)
        return out


class Doubled(nn.Module):
    """Twice as many rows and columns, and frames behind the first one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = PastConv3d(channels, channels, (3, 1, 1))
        self.conv2 = PastConv3d(channels, channels, (1, 3, 3))
        self.conv3 = _point(channels, channels)

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        x = x.repeat_interleave(2, dim=2)
        if _is_start(self, memory):
            x = x[:, :, 1:]
        x = self.conv1(x, memory) + x
        x = x.repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
        x = self.conv2(x) + x
        out: torch.Tensor = self.conv3(x)
        return out


def _is_start(layer: nn.Module, memory: FrameMemory | None) -> bool:
    """Return True if a layer receives the first piece of a video, and record that it has received it."""
    if memory is None:
        return True
    is_start = memory.of(layer) is None
    memory.keep(layer, torch.empty(0))
    return is_start


class Level(nn.Module):
    """Blocks at one size, and the change of size behind them under the name that files have for it."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int, **resize: nn.Module) -> None:
        super().__init__()
        widths = [in_channels, *[channels] * (num_blocks - 1)]
        self.block = nn.ModuleList(FactorisedBlock(width, channels) for width in widths)
        self.resized_by = next(iter(resize), None)
        for name, layer in resize.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        for block in self.block:
            x = block(x, memory)
        if self.resized_by is None:
            return x
        resize = self.get_submodule(self.resized_by)
        resized: torch.Tensor = resize(x, memory) if isinstance(resize, Doubled) else resize(x)
        return resized


class Encoder(nn.Module):
    def __init__(self, config: CosmosTokenizerConfig) -> None:
        super().__init__()
        widths, last = config.level_channels, config.level_channels[-1]
        self.conv_in = FactorisedConv(3 * PATCH**3, config.channels)
        first = Level(config.channels, widths[0], config.blocks_per_level, downsample=Halved(widths[0]))
        others = (
            Level(before, width, config.blocks_per_level) for before, width in zip(widths, widths[1:], strict=False)
        )
        self.down = nn.ModuleList([first, *others])
        self.mid = Middle(last)
        self.norm_out = FrameNorm(last)
        self.conv_out = FactorisedConv(last, config.latent_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x[:, :, :1].expand(-1, -1, PATCH - 1, -1, -1), x], dim=2)
        for _ in range(TRANSFORMS):
            x = transformed(x)
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(self.mid(x))))
        return out


class Decoder(nn.Module):
    def __init__(self, config: CosmosTokenizerConfig) -> None:
        super().__init__()
        widths, last = config.level_channels, config.level_channels[-1]
        number = config.blocks_per_level + 1
        self.conv_in = FactorisedConv(config.latent_channels, last)
        self.mid = Middle(last)
        before = [*widths[1:], last]  # the channels that enter each level
        self.up = nn.ModuleList(
            Level(before[index], width, number, **({"upsample": Doubled(width)} if index == 1 else {}))
            for index, width in enumerate(widths)
        )
        self.norm_out = FrameNorm(widths[0])
        self.conv_out = FactorisedConv(widths[0], 3 * PATCH**3)

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        is_start = _is_start(self, memory)
        x = self.mid(self.conv_in(x, memory), memory)
        for level in reversed([*self.up]):
            x = level(x, memory)
        x = self.conv_out(functional.silu(self.norm_out(x)), memory)
        for _ in range(TRANSFORMS):
            x = restored(x)
        return x[:, :, PATCH - 1 :] if is_start else x


class CosmosTokenizer(nn.Module):
    """The autoencoder. Eight frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    downscale_ratio, frames_ratio = RATIO, RATIO
    encodes_whole_videos = True

    def __init__(self, config: CosmosTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quant_conv = _point(config.latent_channels, config.latent_channels)
        self.post_quant_conv = _point(config.latent_channels, config.latent_channels)
        self.latent_mean = nn.Parameter(torch.empty(config.latent_channels * STATISTICS_FRAMES))
        self.latent_std = nn.Parameter(torch.empty(config.latent_channels * STATISTICS_FRAMES))

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of each frame and byte of the dtype, for encoding."""
        return ENCODE_BYTES_PER_PIXEL * self.config.channels // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of each frame and byte of the dtype, for decoding."""
        return DECODE_BYTES_PER_CELL * self.config.channels // MEASURED_CHANNELS

    def _statistics(self, latents: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return mean and deviation [1, C, f, 1, 1] of latents [B, C, f, h, w]."""
        frames = latents.shape[2]
        times = -(-frames // STATISTICS_FRAMES)
        tables = (table.view(-1, STATISTICS_FRAMES).repeat(1, times) for table in (self.latent_mean, self.latent_std))
        return [table[None, :, :frames, None, None].to(latents) for table in tables]

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the latents [B, C, 1 + n, h, w]."""
        latents: torch.Tensor = self.quant_conv(self.encoder(videos))
        mean, deviation = self._statistics(latents)
        return (latents - mean) / deviation * DEVIATION

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 8n, H, W] of latents [B, C, 1 + n, h, w]."""
        videos: torch.Tensor = self.decoder(self._restored(latents))
        return videos

    def decoded_pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, 1 + n, h, w] in order: [B, 3, 1, H, W], then [B, 3, 8, H, W] each.

        They are those of `decode` but for the last bits, which convolutions of fewer frames may round otherwise.
        """
        memory = FrameMemory()
        for frame in torch.split(self._restored(latents), 1, dim=2):
            yield self.decoder(frame, memory)

    def _restored(self, latents: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._statistics(latents)
        restored: torch.Tensor = self.post_quant_conv(latents / DEVIATION * deviation + mean)
        return restored
