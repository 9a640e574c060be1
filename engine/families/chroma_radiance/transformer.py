"""The transformer of Chroma Radiance (Lodestone Rock 2025), of any width and depth: Chroma's blocks, drawing in pixels.

The blocks read and change patches of 16 pixels a side. A small network then draws the pixels of each patch: it embeds
each pixel with its place in the patch, as products of cosines, and passes it through layers whose weights are made from
the patch's token. `B` batch, `C` channels, `H W` pixels, `N` patches, `P` pixels of a patch, `D` width of tokens, `E`
width of pixels. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.chroma.transformer import ChromaConfig, ChromaTrunk
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.norms import ScaleRmsNorm
from darkroom.engine.layers.patches import pad_to_patches, tokens_of
from darkroom.engine.layers.pixel_positions import position_cosines
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import GatedActivation, GatedResidual
from darkroom.engine.layers.unet_layers import Options

PATCH_PX = 16
COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
TILE_PATCHES = 32  # of one image whose pixels are drawn at once
OPTIONS = "chroma_radiance_options"  # in `transformer_options`
TILE_OPTION = "nerf_tile_size"
NUMBERING_OPTION = "use_sequential_txt_ids"
PREDICTS_IMAGE, NUMBERS_TEXT = "__x0__", "__sequential__"  # empty tensors of files, marks of their networks
MARK = "nerf_blocks.0.norm.scale"
CONV_HEAD = "nerf_final_layer_conv.norm.scale"


@dataclass(frozen=True, slots=True)
class ChromaRadianceConfig(ChromaConfig):
    """Configuration of the network.

    `pixel_width`, `num_pixel_layers` and `pixel_factor` are those of the network that draws pixels. With
    `has_conv_head` its last layer sees neighbouring pixels. `predicts_image`: the output is the image, not the
    velocity. `numbers_text`: the tokens of the text have places.
    """

    in_channels: int = 3
    out_channels: int = 3
    pixel_width: int = 64
    num_pixel_layers: int = 4
    pixel_factor: int = 4
    num_frequencies: int = 8
    has_conv_head: bool = True
    predicts_image: bool = False
    numbers_text: bool = False


def chroma_radiance_config(shapes: Shapes) -> ChromaRadianceConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, context_dim = shapes["txt_in.weight"]
    pixel_width, embedded_width = shapes["nerf_image_embedder.embedder.0.weight"]
    channels = shapes["img_in_patch.weight"][1]
    return ChromaRadianceConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        approximator_width=shapes["distilled_guidance_layer.in_proj.weight"][0],
        approximator_layers=count_children(shapes, "distilled_guidance_layer.layers"),
        in_channels=channels,
        out_channels=channels,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
        pixel_width=pixel_width,
        num_pixel_layers=count_children(shapes, "nerf_blocks"),
        pixel_factor=shapes["nerf_blocks.0.param_generator.weight"][0] // (3 * pixel_width**2),
        num_frequencies=math.isqrt(embedded_width - channels),
        has_conv_head=CONV_HEAD in shapes,
        predicts_image=PREDICTS_IMAGE in shapes,
        numbers_text=NUMBERS_TEXT in shapes,
    )


class PixelEmbedder(nn.Module):
    """`forward(pixels [N, P, C])` -> `[N, P, E]`. It computes in the type of its weights, float32 for packed ones."""

    def __init__(self, config: ChromaRadianceConfig) -> None:
        super().__init__()
        self.num_frequencies = config.num_frequencies
        self.embedder = nn.Sequential(Linear(config.in_channels + config.num_frequencies**2, config.pixel_width))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        kept = next(self.embedder.parameters()).dtype
        own = pixels.to(kept if kept in COMPUTED else torch.float32)
        frequencies = torch.arange(self.num_frequencies, device=own.device, dtype=own.dtype)
        positions = position_cosines(math.isqrt(own.shape[1]), frequencies)
        embedded: torch.Tensor = self.embedder(torch.cat([own, positions.expand(own.shape[0], -1, -1)], dim=-1))
        return embedded.to(pixels.dtype)


class GeneratedLayers(nn.Module):
    """Gated feed-forward layers whose weights are made from the patch's token."""

    def __init__(self, config: ChromaRadianceConfig) -> None:
        super().__init__()
        self.inner_width = config.pixel_width * config.pixel_factor
        self.param_generator = Linear(config.width, 3 * config.pixel_width * self.inner_width)
        self.norm = ScaleRmsNorm(config.pixel_width)
        self.activation, self.residual = GatedActivation(), GatedResidual()

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the pixels [N, P, E] of patches with these tokens [N, D]."""
        width, inner = pixels.shape[-1], self.inner_width
        made = self.param_generator(tokens).chunk(3, dim=-1)
        shapes = ((width, inner), (width, inner), (inner, width))
        gate, value, out = (
            functional.normalize(part.view(-1, *shape), dim=-2) for part, shape in zip(made, shapes, strict=True)
        )
        normed = self.norm(pixels)
        change = torch.bmm(self.activation(torch.bmm(normed, gate), torch.bmm(normed, value)), out)
        drawn: torch.Tensor = self.residual(pixels, change)
        return drawn


class PixelHead(nn.Module):
    """The last layer, of each pixel alone: `forward([B, E, H, W])` -> `[B, C, H, W]`."""

    def __init__(self, config: ChromaRadianceConfig) -> None:
        super().__init__()
        self.norm = ScaleRmsNorm(config.pixel_width)
        self.linear = Linear(config.pixel_width, config.out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.norm(x.movedim(1, -1)))
        return out.movedim(-1, 1)


class ConvPixelHead(nn.Module):
    """The last layer, of each pixel with its neighbours: `forward([B, E, H, W])` -> `[B, C, H, W]`."""

    def __init__(self, config: ChromaRadianceConfig) -> None:
        super().__init__()
        self.norm = ScaleRmsNorm(config.pixel_width)
        self.conv = Conv2d(config.pixel_width, config.out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(self.norm(x.movedim(1, -1)).movedim(-1, 1))
        return out


class ChromaRadianceTransformer(ChromaTrunk):
    """`forward(x [B, C, H, W], timesteps [B], context [B, T, D])` -> `[B, C, H, W]`.

    `guidance` [B] is 0 where none is given. `control` holds lists of additions to the patches by block. Of
    `transformer_options` the entry `chroma_radiance_options` may set `nerf_tile_size`, the number of patches whose
    pixels are drawn at once, 0 for all, and `use_sequential_txt_ids`, True for positions that number the text. Built
    without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: ChromaRadianceConfig) -> None:
        super().__init__(config)
        self.pixels = config
        self.in_channels, self.patch_size = config.in_channels, PATCH_PX
        self.img_in_patch = Conv2d(config.in_channels, config.width, PATCH_PX, stride=PATCH_PX)
        self.nerf_image_embedder = PixelEmbedder(config)
        self.nerf_blocks = nn.ModuleList(GeneratedLayers(config) for _ in range(config.num_pixel_layers))
        if config.has_conv_head:
            self.nerf_final_layer_conv = ConvPixelHead(config)
        else:
            self.nerf_final_layer = PixelHead(config)
        marks = ((PREDICTS_IMAGE, config.predicts_image), (NUMBERS_TEXT, config.numbers_text))
        for name, is_marked in marks:
            if is_marked:
                self.register_buffer(name, torch.empty(0, device="cpu"))

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        *,
        guidance: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        tile, numbers_text = chosen_options(options.get(OPTIONS, {}), self.pixels)
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, PATCH_PX)
        guidance = torch.zeros_like(timesteps) if guidance is None else guidance
        vectors = self.modulation_vectors(timesteps, guidance, x)
        tokens = self.img_in_patch(padded)  # [B, D, rows, columns]
        places = patch_places(padded)
        out = self.run(
            tokens_of(tokens), places, context, vectors, control, options,
            numbers_text=numbers_text,
        )  # fmt: skip
        drawn = self._head(self._pixels(padded, out, tile))[..., :height, :width]
        if not self.pixels.predicts_image:
            return drawn
        return (x - drawn) / timesteps.view(-1, 1, 1, 1)

    def _pixels(self, padded: torch.Tensor, tokens: torch.Tensor, tile: int) -> torch.Tensor:
        """Return the pixels [B, E, H, W] of an image whose patches have these tokens [B, N, D].

        So many patches of each image are drawn at once; 0: all.
        """
        batch, channels, height, width = padded.shape
        given = functional.unfold(padded, PATCH_PX, stride=PATCH_PX)  # [B, C * P, N]
        given = given.transpose(1, 2).reshape(-1, channels, PATCH_PX**2).transpose(1, 2)  # [B * N, P, C]
        flat = tokens.reshape(-1, tokens.shape[-1])
        size = tile * batch if tile else flat.shape[0]
        drawn = torch.cat(
            [self._drawn(*part) for part in zip(torch.split(given, size), torch.split(flat, size), strict=True)]
        )  # [B * N, P, E]
        columns = drawn.transpose(1, 2).reshape(batch, tokens.shape[1], -1).transpose(1, 2)
        return functional.fold(columns, (height, width), PATCH_PX, stride=PATCH_PX)

    def _drawn(self, given: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.nerf_image_embedder(given)
        for block in self.nerf_blocks:
            x = block(x, tokens)
        return x

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        head = self.nerf_final_layer_conv if self.pixels.has_conv_head else self.nerf_final_layer
        out: torch.Tensor = head(x)
        return out


def patch_places(image: torch.Tensor) -> torch.Tensor:
    """Return the places [B, rows * columns, 3] of an image's patches: 0, row, column."""
    rows, columns = image.shape[-2] // PATCH_PX, image.shape[-1] // PATCH_PX
    places = torch.zeros(rows, columns, 3, device=image.device)
    places[..., 1] = torch.arange(rows, device=image.device)[:, None]
    places[..., 2] = torch.arange(columns, device=image.device)[None, :]
    return places.flatten(0, 1).expand(image.shape[0], -1, -1)


def chosen_options(options: Mapping[str, object], config: ChromaRadianceConfig) -> tuple[int, bool]:
    """Return the number of patches that are drawn at once (0: all), and True if the text's positions are numbered.

    Raises ValueError for options that are none.
    """
    unknown = options.keys() - {TILE_OPTION, NUMBERING_OPTION}
    if unknown:
        expected = f"{TILE_OPTION} or {NUMBERING_OPTION}"
        raise ValueError(f"{OPTIONS}: unknown option; got {', '.join(sorted(unknown))}, expected {expected}")
    tile = options.get(TILE_OPTION, TILE_PATCHES)
    if not isinstance(tile, int) or isinstance(tile, bool) or tile < 0:
        raise ValueError(f"{OPTIONS}: {TILE_OPTION} is no number of patches; got {tile!r}, expected 0 or more")
    return tile, bool(options.get(NUMBERING_OPTION, config.numbers_text))
