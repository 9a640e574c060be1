"""Mage-VAE (Microsoft 2026): one step of diffusion from an image to its latent, and one back, both at time 0.

Images `[B, 3, H, W]` in -1..1, latents `[B, 128, H/16, W/16]`, `D` hidden size, `E` channels of a pixel, `N` patches.
The decoder reads the latent through convolutions, changes the result by blocks, and a small network then draws the
pixels of each patch, which it knows by products of cosines. The noisy image of that step is zero everywhere. Module
names are those of the checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.mage_flow.vae_layers import CellBlock, ChannelsNorm, TimeZeroEmbedder, WindowAttention
from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.pixel_positions import position_cosines
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.vae_kl import ResnetBlock

CHANNELS = 128
PATCH_PX = 16
NUM_FREQUENCIES = 8
ENCODER, DECODER = "dconv_encoder", "decoder_model"
MARK = f"{ENCODER}.proj_out.weight"
# Values of working memory per pixel, and per latent cell, of the published network, as ComfyUI estimates them.
ENCODE_VALUES, DECODE_VALUES, MEASURED_SIZE = 400, 1000 * PATCH_PX**2, 384


@dataclass(frozen=True, slots=True)
class MageVaeConfig:
    """Configuration of the autoencoder."""

    hidden_size: int = 384
    head_size: int = 768
    pixel_size: int = 32
    intermediate_factor: int = 4
    num_head_blocks: int = 2
    num_encoder_blocks: int = 21
    num_decoder_blocks: int = 21
    num_pixel_blocks: int = 3
    latent_channels: int = CHANNELS
    """Channels of the latent, and of the patches that the decoder embeds."""


def mage_vae_config(shapes: Shapes) -> MageVaeConfig:
    """Return the configuration of the autoencoder with these tensors (names without prefix). Raises LookupError."""
    hidden_size, head_size = shapes[f"{ENCODER}.proj_down.weight"][:2]
    return MageVaeConfig(
        hidden_size=hidden_size,
        head_size=head_size,
        pixel_size=shapes[f"{DECODER}.final_layer.linear.weight"][1],
        intermediate_factor=shapes[f"{DECODER}.blocks.0.conv4.weight"][0] // hidden_size,
        num_head_blocks=count_children(shapes, f"{ENCODER}.head_blocks"),
        num_encoder_blocks=count_children(shapes, f"{ENCODER}.blocks"),
        num_decoder_blocks=count_children(shapes, f"{DECODER}.blocks"),
        num_pixel_blocks=count_children(shapes, f"{DECODER}.dec_net.res_blocks"),
        latent_channels=shapes[f"{ENCODER}.z_proj.weight"][1],
    )


class MageEncoder(nn.Module):
    """`forward(images [B, 3, H, W])` -> the posterior's mean [B, C, h, w]."""

    def __init__(self, config: MageVaeConfig) -> None:
        super().__init__()
        size, head, channels, factor = (
            config.hidden_size, config.head_size, config.latent_channels, config.intermediate_factor,
        )  # fmt: skip
        self.latent_channels = channels
        self.patch_cond_embed = Conv2d(3, head, PATCH_PX, stride=PATCH_PX)
        self.head_blocks = nn.ModuleList(CellBlock(head, factor, is_timed=False) for _ in range(config.num_head_blocks))
        self.proj_down = Conv2d(head, size, 1)
        self.z_proj = Conv2d(channels, size, 1)
        self.fuse_proj = Conv2d(2 * size, size, 1)
        self.t_embedder = TimeZeroEmbedder(size)
        self.blocks = nn.ModuleList(CellBlock(size, factor) for _ in range(config.num_encoder_blocks))
        self.norm_out = ChannelsNorm(size)
        self.proj_out = Conv2d(size, 2 * channels, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        cells = self.patch_cond_embed(images)
        for block in self.head_blocks:
            cells = block(cells)
        noisy = self.z_proj(cells.new_zeros(cells.shape[0], self.latent_channels, *cells.shape[2:]))
        cells = self.fuse_proj(torch.cat([self.proj_down(cells), noisy], dim=1))
        time = self.t_embedder(cells)
        for block in self.blocks:
            cells = block(cells, time)
        moments: torch.Tensor = self.proj_out(self.norm_out(cells))
        return moments[:, : self.latent_channels]


class LatentReader(nn.Module):
    """`forward(latents [B, C, h, w])` -> what the decoder is conditioned on [B, D, h, w]."""

    def __init__(self, config: MageVaeConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.conv_in = Conv2d(config.latent_channels, size, 3, padding=1)
        self.block = nn.Sequential(
            ResnetBlock(size, size), WindowAttention(size), ResnetBlock(size, size), WindowAttention(size),
            ResnetBlock(size, size),
        )  # fmt: skip
        self.norm_out = GroupNorm(32, size, eps=1e-6)
        self.conv_out = Conv2d(size, size, 3, padding=1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        read = self.block(self.conv_in(latents))
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(read)))
        return out


class PixelBlock(nn.Module):
    """`forward(pixels, conditions)`, both [B * N, P, E] -> the pixels changed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(size, eps=1e-6)
        self.mlp = nn.Sequential(Linear(size, size), nn.SiLU(), Linear(size, size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(size, 3 * size))

    def forward(self, pixels: torch.Tensor, conditions: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.adaLN_modulation(conditions).chunk(3, dim=-1)
        out: torch.Tensor = pixels + gate * self.mlp(self.in_ln(pixels) * (1 + scale) + shift)
        return out


class PixelNetwork(nn.Module):
    """`forward(pixels [B * N, P, E], patches [B * N, D])` -> `[B * N, P, E]`."""

    def __init__(self, config: MageVaeConfig) -> None:
        super().__init__()
        size = config.pixel_size
        self.cond_embed = Linear(config.hidden_size, PATCH_PX**2 * size)
        self.input_proj = Linear(size, size)
        self.res_blocks = nn.ModuleList(PixelBlock(size) for _ in range(config.num_pixel_blocks))

    def forward(self, pixels: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        drawn: torch.Tensor = self.input_proj(pixels)
        conditions = self.cond_embed(patches).view(patches.shape[0], PATCH_PX**2, -1)
        for block in self.res_blocks:
            drawn = block(drawn, conditions)
        return drawn


class MageDecoder(nn.Module):
    """`forward(latents [B, C, h, w])` -> images [B, 3, H, W]."""

    def __init__(self, config: MageVaeConfig) -> None:
        super().__init__()
        size, pixel_size = config.hidden_size, config.pixel_size
        self.bottleneck_size, self.pixel_size = config.latent_channels, pixel_size
        self.t_embedder = TimeZeroEmbedder(size)
        self.y_embedder_x = Conv2d(size, pixel_size * PATCH_PX**2, 1)
        self.x_embedder = nn.ModuleDict(
            {"embedder": nn.Sequential(Linear(3 + pixel_size + NUM_FREQUENCIES**2, pixel_size))}
        )
        self.s_embedder = nn.ModuleDict(
            {
                "proj1": Conv2d(3, config.latent_channels, PATCH_PX, stride=PATCH_PX, bias=False),
                "proj2": Conv2d(config.latent_channels + size, size, 1),
            }
        )
        self.blocks = nn.ModuleList(
            CellBlock(size, config.intermediate_factor) for _ in range(config.num_decoder_blocks)
        )
        self.dec_net = PixelNetwork(config)
        self.final_layer = nn.ModuleDict({"norm": RmsNorm(pixel_size), "linear": Linear(pixel_size, 3)})
        self.y_embedder = nn.ModuleDict({"decoder": LatentReader(config)})

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        batch, _, rows, columns = latents.shape
        read = self.y_embedder["decoder"](latents)
        # `proj1` embeds the noisy image, which is zero, and has no bias.
        blank = read.new_zeros(batch, self.bottleneck_size, rows, columns)
        cells = self.s_embedder["proj2"](torch.cat([blank, read], dim=1))
        time = self.t_embedder(cells)
        for block in self.blocks:
            cells = block(cells, time)
        patches = cells.permute(0, 2, 3, 1).flatten(0, 2)  # [B * N, D]
        pixels = self.dec_net(self._pixels(read), patches)
        colours: torch.Tensor = self.final_layer["linear"](self.final_layer["norm"](pixels))  # [B * N, P, 3]
        image = colours.view(batch, rows, columns, PATCH_PX, PATCH_PX, 3).permute(0, 5, 1, 3, 2, 4)
        return image.reshape(batch, 3, rows * PATCH_PX, columns * PATCH_PX)

    def _pixels(self, read: torch.Tensor) -> torch.Tensor:
        """Return the embedded pixels [B * N, P, E] of all patches, with their positions."""
        maps = self.y_embedder_x(read).flatten(2)  # [B, E * P, N]
        pixels = maps.view(maps.shape[0], self.pixel_size, PATCH_PX**2, -1).permute(0, 3, 2, 1).flatten(0, 1)
        frequencies = torch.linspace(
            0, NUM_FREQUENCIES, NUM_FREQUENCIES, dtype=read.dtype, device=read.device
        )  # not whole: eight from 0 to 8
        positions = position_cosines(PATCH_PX, frequencies).expand(pixels.shape[0], -1, -1)
        embedded: torch.Tensor = self.x_embedder["embedder"](
            torch.cat([pixels.new_zeros(*pixels.shape[:2], 3), pixels, positions], dim=-1)
        )
        return embedded


class MageVae(nn.Module):
    """The autoencoder of images."""

    downscale_ratio = PATCH_PX

    def __init__(self, config: MageVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.dconv_encoder = MageEncoder(config)
        self.decoder_model = MageDecoder(config)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel and byte of the dtype, for encoding."""
        return max(1, ENCODE_VALUES * self.config.hidden_size // MEASURED_SIZE)

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell and byte of the dtype, for decoding."""
        return DECODE_VALUES * self.config.hidden_size // MEASURED_SIZE

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior."""
        mean: torch.Tensor = self.dconv_encoder(images)
        return mean

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the images of latents."""
        images: torch.Tensor = self.decoder_model(latents)
        return images
