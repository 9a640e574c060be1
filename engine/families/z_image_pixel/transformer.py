"""Z-Image's transformer on pixels, without a VAE (Zeta-Chroma, 2026): patches of 32 pixels a side are its tokens.

A decoder (`decoder.py`) takes the last layer's part. It predicts the image, from which the velocity follows. `B` batch,
`H W` pixels, `L` tokens of a text, `T` tokens, `D` hidden size. Module names are those of the published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.families.lumina2.transformer import Drawn
from darkroom.engine.families.z_image.transformer import ZImageConfig, ZImageTransformer, z_image_config
from darkroom.engine.families.z_image_pixel.decoder import PixelDecoder, PixelDecoderConfig
from darkroom.engine.layers.patches import image_channels_last, patches_channels_last
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options

CHANNELS = 3
DECODER = "dec_net.cond_embed.weight"
PREDICTS_IMAGE = "__x0__"  # an empty tensor of files, whose networks predict the image as all others do


@dataclass(frozen=True, slots=True)
class ZImagePixelConfig(ZImageConfig):
    """Configuration of the network.

    The decoder has `num_decoder_layers` of `decoder_size` channels, which read the products of `num_frequencies`
    cosines of rows and of columns. With `has_image_mark` the file has the mark of networks that predict the image.
    """

    in_channels: int = CHANNELS
    patch: int = 32
    decoder_size: int = 3840
    num_decoder_layers: int = 4
    num_frequencies: int = 8
    has_image_mark: bool = False


def z_image_pixel_config(shapes: Shapes) -> ZImagePixelConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    base = z_image_config(shapes)
    values = {name: getattr(base, name) for name in ZImageConfig.__dataclass_fields__}
    patch_dim = shapes["x_embedder.weight"][1]
    size, embedded_dim = shapes["dec_net.input_embedder.embedder.0.weight"]
    patch = math.isqrt(patch_dim // CHANNELS)
    if CHANNELS * patch**2 != patch_dim or embedded_dim <= patch_dim:
        raise KeyError("x_embedder.weight of square patches of pixels")
    pixels = {"in_channels": CHANNELS, "patch": patch}
    return ZImagePixelConfig(
        **{**values, **pixels},
        decoder_size=size,
        num_decoder_layers=count_children(shapes, "dec_net.res_blocks"),
        num_frequencies=math.isqrt(embedded_dim - patch_dim),
        has_image_mark=PREDICTS_IMAGE in shapes,
    )


class ZImagePixelTransformer(ZImageTransformer):
    """`forward(x [B, 3, H, W], timesteps [B], context [B, L, D])` -> velocity `[B, 3, H, W]`.

    References are images of -1..1 of any size, their inputs those of `ZImageTransformer`.
    """

    def __init__(self, config: ZImagePixelConfig) -> None:
        self.pixels = config
        super().__init__(config)
        if config.has_image_mark:
            self.register_buffer(PREDICTS_IMAGE, torch.empty(0, device="cpu"))

    def add_head(self) -> None:
        """Add the decoder of pixels in place of the last layer."""
        config = self.pixels
        self.dec_net = PixelDecoder(
            PixelDecoderConfig(
                patch_dim=CHANNELS * config.patch**2,
                hidden_size=config.decoder_size,
                context_dim=config.width,
                num_layers=config.num_decoder_layers,
                num_frequencies=config.num_frequencies,
            )
        )

    def forward(  # type: ignore[override]  # names of inputs that the network without references ignores
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        ref_contexts: Sequence[torch.Tensor] = (),
        siglip_feats: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> torch.Tensor:
        negative = super().forward(
            x, timesteps, context, y, control, transformer_options,
            ref_latents=ref_latents, ref_contexts=ref_contexts, siglip_feats=siglip_feats,
        )  # fmt: skip
        return (x - negative) / timesteps.view(-1, 1, 1, 1)

    def image_of(self, tokens: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """Return the generated image [B, 3, H, W], of whole patches, from its tokens and those that fill it up."""
        height, width = drawn.padded.shape[-2:]
        given = patches_channels_last(drawn.padded, self.patch_size)  # [B, N, P]
        kept = tokens[:, : given.shape[1]].flatten(0, 1)
        out = self.dec_net(given.flatten(0, 1), kept).view(given.shape)
        return image_channels_last(out, height, width, self.patch_size)
