"""The autoencoder of latent diffusion (Rombach et al. 2022, arXiv 2112.10752), of any width and depth.

Images `[B, 3, H, W]` in -1..1, latents `[B, C, H/8, W/8]` unscaled. Module names are those of the original
checkpoints (`encoder.down.0.block.0.conv1...`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import Conv2d, GroupNorm
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.vae_levels import vae_levels

# Bytes of working memory per pixel and byte of the dtype, of the 128-channel network.
ENCODE_BYTES_PER_PIXEL = 1767
DECODE_BYTES_PER_PIXEL = 2178
MEASURED_CHANNELS = 128
TEMPORAL_MARK = "decoder.mid.block_1.mix_factor"


@dataclass(frozen=True, slots=True)
class VaeConfig:
    """Configuration of a VAE. `level_channels`: channels per level, largest image first.

    Every level but the last halves the image. `embedding_channels` is the width behind the 1x1 convolutions between
    encoder and decoder, 0 for a network without them. `is_temporal`: the decoder also sees along the frames of a video
    (`engine/families/svd/vae.py`).
    """

    base_channels: int
    level_channels: tuple[int, ...]
    blocks_per_level: int
    latent_channels: int = 4
    embedding_channels: int = 4
    image_channels: int = 3
    is_temporal: bool = False


def vae_config(shapes: Shapes) -> VaeConfig:
    """Return the configuration of the autoencoder with these tensors (names without prefix)."""
    levels, is_temporal = vae_levels(shapes), TEMPORAL_MARK in shapes
    return VaeConfig(
        base_channels=shapes["encoder.conv_in.weight"][0],
        level_channels=levels.level_channels,
        blocks_per_level=levels.blocks_per_level,
        latent_channels=shapes["decoder.conv_in.weight"][1],
        embedding_channels=_embedding_channels(shapes, is_temporal=is_temporal),
        image_channels=levels.image_channels,
        is_temporal=is_temporal,
    )


def _embedding_channels(shapes: Shapes, *, is_temporal: bool) -> int:
    if is_temporal:
        return shapes["decoder.conv_in.weight"][1]
    return shapes["post_quant_conv.weight"][1] if "post_quant_conv.weight" in shapes else 0


class ResnetBlock(nn.Module):
    use_conv_shortcut = False  # of three cells' width, which packs that compute the layers themselves ask for

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.swish = nn.SiLU()
        self.norm1 = GroupNorm(32, in_channels, eps=1e-6)
        self.conv1 = Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = GroupNorm(32, out_channels, eps=1e-6)
        self.conv2 = Conv2d(out_channels, out_channels, 3, padding=1)
        self.nin_shortcut = Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(self.swish(self.norm1(x)))
        h = self.conv2(self.swish(self.norm2(h)))
        out: torch.Tensor = self.nin_shortcut(x) + h
        return out


def attention_of_cells(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the attention with one head of cells [B, C, h, w] to each other, of the same shape."""
    batch, channels = q.shape[:2]
    shape = q.shape
    q, k, v = (
        part.reshape(batch, 1, channels, -1).transpose(2, 3).contiguous() for part in (q, k, v)
    )  # [B, 1, h*w, C]
    return scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(shape)


class AttnBlock(nn.Module):
    """Self-attention of all cells with one head."""

    optimized_attention = staticmethod(
        attention_of_cells
    )  # by ComfyUI's name, for packs that run the layers themselves

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = GroupNorm(32, channels, eps=1e-6)
        self.q, self.k, self.v = (Conv2d(channels, channels, 1) for _ in range(3))
        self.proj_out = Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attended(self.norm(x))

    def attended(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the attention of the cells of images [B, C, h, w] to each other."""
        attended: torch.Tensor = self.proj_out(attention_of_cells(self.q(normed), self.k(normed), self.v(normed)))
        return attended


class Downsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.pad(x, (0, 1, 0, 1)))
        return out


class Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


class Middle(nn.Module):
    def __init__(self, channels: int, block: type[ResnetBlock] = ResnetBlock) -> None:
        super().__init__()
        self.block_1 = block(channels, channels)
        self.attn_1 = AttnBlock(channels)
        self.block_2 = block(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return out


class Level(nn.Module):
    """Blocks at one size, followed by an optional change of size."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        num_blocks: int,
        resize: str | None,
        block: type[ResnetBlock] = ResnetBlock,
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(block(in_channels if i == 0 else channels, channels) for i in range(num_blocks))
        if resize == "down":
            self.downsample = Downsample(channels)
        elif resize == "up":
            self.upsample = Upsample(channels)
        self.resize = resize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        if self.resize == "down":
            x = self.downsample(x)
        elif self.resize == "up":
            x = self.upsample(x)
        return x


class Encoder(nn.Module):
    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        levels = config.level_channels
        self.num_resolutions, self.num_res_blocks = len(levels), config.blocks_per_level
        self.conv_in = Conv2d(config.image_channels, config.base_channels, 3, padding=1)
        self.down = nn.ModuleList(
            Level(
                config.base_channels if i == 0 else levels[i - 1],
                channels,
                config.blocks_per_level,
                "down" if i < len(levels) - 1 else None,
            )
            for i, channels in enumerate(levels)
        )
        self.mid = Middle(levels[-1])
        self.norm_out = GroupNorm(32, levels[-1], eps=1e-6)
        self.swish = nn.SiLU()
        self.conv_out = Conv2d(levels[-1], config.latent_channels * 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        out: torch.Tensor = self.conv_out(self.swish(self.norm_out(self.mid(x))))
        return out


class Decoder(nn.Module):
    give_pre_end = tanh_out = False  # without its last layers, or with another one: packs ask for it

    def __init__(self, config: VaeConfig, block: type[ResnetBlock] = ResnetBlock) -> None:
        super().__init__()
        levels = config.level_channels
        self.num_resolutions, self.num_res_blocks = len(levels), config.blocks_per_level
        self.conv_in = Conv2d(config.latent_channels, levels[-1], 3, padding=1)
        self.mid = Middle(levels[-1], block)
        # Level 0 is the full image and comes last; the list keeps the checkpoint's numbers.
        self.up = nn.ModuleList(
            Level(
                levels[min(i + 1, len(levels) - 1)],
                channels,
                config.blocks_per_level + 1,
                "up" if i > 0 else None,
                block,
            )
            for i, channels in enumerate(levels)
        )
        self.norm_out = GroupNorm(32, levels[0], eps=1e-6)
        self.swish = nn.SiLU()
        self.conv_out = Conv2d(levels[0], config.image_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        out: torch.Tensor = self.conv_out(self.swish(self.norm_out(x)))
        return out


class Autoencoder(nn.Module):
    """Base of the autoencoders, whatever their decoder."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2 ** (len(config.level_channels) - 1)
        self.encoder = Encoder(config)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel and byte of the dtype, for encoding."""
        return ENCODE_BYTES_PER_PIXEL * self.config.base_channels // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return DECODE_BYTES_PER_PIXEL * cell_px * self.config.base_channels // MEASURED_CHANNELS


class AutoencoderKl(Autoencoder):
    def __init__(self, config: VaeConfig) -> None:
        super().__init__(config)
        self.decoder = Decoder(config)
        channels = config.embedding_channels
        self.quant_conv = Conv2d(config.latent_channels * 2, channels * 2, 1) if channels else nn.Identity()
        self.post_quant_conv = Conv2d(channels, config.latent_channels, 1) if channels else nn.Identity()

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior."""
        moments: torch.Tensor = self.quant_conv(self.encoder(images))
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.decoder(self.post_quant_conv(latents))
        return images
