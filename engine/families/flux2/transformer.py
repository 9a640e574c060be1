"""The transformer of Flux.2 (Black Forest Labs 2025), of any width and depth.

Blocks of two streams and of one, as in Flux.1, but all blocks of a kind share one modulation, no layer has biases,
feed-forward layers are gated (Shazeer 2020, arXiv 2002.05202), a patch is one latent cell, and places are rotations on
four axes: index of the image, row, column, token of the text. `B` batch, `C` channels, `h w` latent
cells, `T` tokens of text and image, `D` width. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import (
    HEAD_WIDTH,
    REFERENCE_TOKENS,
    TIME_FACTOR,
    TIME_WIDTH,
    TIME_ZERO_METHOD,
    DoubleBlockLayers,
    Embedder,
    FinalLayer,
    ModulationLayer,
    SingleBlockLayers,
    TimedVectors,
    Vector,
    method_of,
    modulations_of,
    reference_corners,
    run_blocks,
    vectors_of,
    without_kept,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.rope_options import axis_positions
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import GatedActivation
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

AXES = (32, 32, 32, 32)  # channels of a head that rotate by image, row, column and token
THETA = 2000
INDEX_STEP = 10  # between the indices of the images
MARK = "double_stream_modulation_img.lin.weight"
GUIDANCE = "guidance_in.in_layer.weight"


@dataclass(frozen=True, slots=True)
class Flux2Config:
    """Configuration of the network. `has_guidance`: it was distilled with the scale of guidance as an input."""

    width: int
    num_double: int
    num_single: int
    context_dim: int
    in_channels: int = 128
    out_channels: int = 128
    has_guidance: bool = True
    inner_factor: int = 3

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def flux2_config(shapes: Shapes) -> Flux2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return Flux2Config(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        in_channels=shapes["img_in.weight"][1],
        out_channels=shapes["final_layer.linear.weight"][0],
        has_guidance=GUIDANCE in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.2.weight"][1] // width,
    )


# --- places ----------------------------------------------------------------------------------------------------------


def cells_of(latent: torch.Tensor) -> torch.Tensor:
    """Return the cells of a latent [B, C, h, w] as tokens [B, h * w, C]."""
    return latent.flatten(2).transpose(1, 2)


def cell_places(
    latent: torch.Tensor, *, index: int = 0, row: int = 0, column: int = 0, options: Options | None = None
) -> torch.Tensor:
    """Return the places [B, h * w, 4] of a latent's cells, the first at this row and column.

    The transformer options may scale and shift them.
    """
    height, width = latent.shape[-2:]
    places = torch.zeros(height, width, len(AXES), device=latent.device)
    places[..., 0] = axis_positions(1, "t", options, latent.device, first=index)
    places[..., 1] = axis_positions(height, "y", options, latent.device, first=row)[:, None]
    places[..., 2] = axis_positions(width, "x", options, latent.device, first=column)[None, :]
    return places.flatten(0, 1).expand(latent.shape[0], -1, -1)


def token_places(text: torch.Tensor) -> torch.Tensor:
    """Return the places [B, T, 4] of the tokens of a text [B, T, D]."""
    places = torch.zeros(*text.shape[:2], len(AXES), device=text.device)
    places[..., 3] = torch.arange(text.shape[1], device=text.device)
    return places


# --- layers ----------------------------------------------------------------------------------------------------------


def gated_layers(width: int, inner: int) -> nn.Sequential:
    """Make gated feed-forward layers."""
    return nn.Sequential(Linear(width, 2 * inner, bias=False), GatedActivation(), Linear(inner, width, bias=False))


class GatedSingleBlock(SingleBlockLayers):
    def __init__(self, config: Flux2Config) -> None:
        super().__init__(config, bias=False, num_parts=2, activation=GatedActivation)


# --- network ---------------------------------------------------------------------------------------------------------


class Flux2Transformer(nn.Module):
    """`forward(x [B, in, h, w], timesteps [B], context [B, T, D])` -> `[B, out, h, w]`.

    `guidance` [B] is embedded beside the time by networks that were distilled with it; None leaves it out.
    `attention_mask` [B, T, T] is added to the scores of attention, those of the text before those of the image.
    `ref_latents` are reference images [B, C, h, w], placed by `ref_latents_method` (`reference_corners`). `control`
    holds lists of additions to the image by block, `input` for those of two streams, `output` for those of one. Built
    without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: Flux2Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = 1
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.width
        self.img_in = Linear(config.in_channels, width, bias=False)
        self.time_in = Embedder(TIME_WIDTH, width, bias=False)
        if config.has_guidance:
            self.guidance_in = Embedder(TIME_WIDTH, width, bias=False)
        self.txt_in = Linear(config.context_dim, width, bias=False)
        self.double_stream_modulation_img = ModulationLayer(width, 2, bias=False)
        self.double_stream_modulation_txt = ModulationLayer(width, 2, bias=False)
        self.single_stream_modulation = ModulationLayer(width, 1, bias=False)
        self.double_blocks = nn.ModuleList(
            DoubleBlockLayers(config, bias=False, feed_forward=gated_layers) for _ in range(config.num_double)
        )
        self.single_blocks = nn.ModuleList(GatedSingleBlock(config) for _ in range(config.num_single))
        self.final_layer = FinalLayer(width, config.out_channels, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.txt_in.weight.dtype

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
        attention_mask: torch.Tensor | None = None,
        ref_latents: Sequence[torch.Tensor] = (),
        ref_latents_method: str | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        height, width = x.shape[-2:]
        method = method_of(ref_latents_method, "index", options)
        tokens, places = _with_references(x, ref_latents, method, options)
        num_references = tokens.shape[1] - height * width
        options = {**options, REFERENCE_TOKENS: [num_references]} if ref_latents else options
        vec = self._vector(timesteps, guidance, x.dtype)
        timed: Vector = vec
        if ref_latents and method == TIME_ZERO_METHOD:
            at_zero = self._vector(torch.zeros_like(timesteps), guidance, x.dtype)
            timed = TimedVectors(vec, at_zero, height * width, num_references)
        inputs = {
            "img": self.img_in(tokens), "txt": self.txt_in(context), "img_ids": places, "txt_ids": token_places(context)
        }  # fmt: skip
        for patch in options.get("patches", {}).get("post_input", ()):
            inputs = patch(inputs)
        pe = rotations(torch.cat([inputs["txt_ids"], inputs["img_ids"]], dim=1), AXES, THETA)
        streams = (without_kept(inputs["img"], options), inputs["txt"])
        modulations = self._modulations(timed, streams)
        out = run_blocks(
            self.double_blocks, self.single_blocks, streams, modulations, pe, control, options, attention_mask
        )
        drawn: torch.Tensor = self.final_layer(out[:, : height * width], vec)
        return drawn.transpose(1, 2).reshape(drawn.shape[0], -1, height, width)

    def _vector(self, timesteps: torch.Tensor, guidance: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the vector [B, D] that modulates the blocks, of time and guidance."""

        def embedded(numbers: torch.Tensor) -> torch.Tensor:
            return timestep_embedding(numbers * TIME_FACTOR, TIME_WIDTH).to(dtype)

        vec: torch.Tensor = self.time_in(embedded(timesteps))
        if self.config.has_guidance and guidance is not None:
            vec = vec + self.guidance_in(embedded(guidance))
        return vec

    def _modulations(
        self, vec: Vector, streams: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[Sequence[object], Sequence[object]]:
        """Return the modulations of the blocks of either kind: the same for all of a kind."""
        (for_two,), (for_one,) = vectors_of(vec, streams, 1, 1)
        text = self.double_stream_modulation_txt(for_two if isinstance(for_two, torch.Tensor) else for_two.now)
        double = (modulations_of(self.double_stream_modulation_img, for_two), text)
        (single,) = modulations_of(self.single_stream_modulation, for_one)
        return [double] * len(self.double_blocks), [single] * len(self.single_blocks)


def _with_references(
    x: torch.Tensor, references: Sequence[torch.Tensor], method: str, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cells of the image and of its references behind each other, and their places."""
    tokens, places = [cells_of(x)], [cell_places(x, options=options)]
    sizes = [(int(item.shape[-2]), int(item.shape[-1])) for item in references]
    target = (int(x.shape[-2]), int(x.shape[-1]))
    step = INDEX_STEP if method in ("index", TIME_ZERO_METHOD) else 1
    for item, (index, row, column) in zip(references, reference_corners(sizes, target, method), strict=True):
        tokens.append(cells_of(item))
        places.append(cell_places(item, index=index * step, row=row, column=column, options=options))
    return torch.cat(tokens, dim=1), torch.cat(places, dim=1)
