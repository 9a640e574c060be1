"""The transformer of HunyuanVideo (Kong et al. 2024, arXiv 2412.03603) and HunyuanImage 2.1, of any width and depth.

Flux.1's blocks, with the tokens of the image or video before those of the text, which a small transformer refines
first (`token_refiner.py`). `B` batch, `C` channels, `F` latent frames, `h w` latent cells, `T` tokens, `D` width.
Module names are those that ComfyUI gives the checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.transformer import (
    HEAD_WIDTH,
    IMAGE_SPAN,
    TIME_FACTOR,
    TIME_WIDTH,
    Embedder,
    FinalLayer,
)
from darkroom.engine.families.hunyuan_video.blocks import (
    HunyuanVideoDoubleBlock,
    HunyuanVideoSingleBlock,
    Spans,
    double_function,
    single_function,
    spread,
)
from darkroom.engine.families.hunyuan_video.token_refiner import GlyphMapper, TokenRefiner
from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.patches import tokens_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import finite
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

IMAGE_AXES, VIDEO_AXES = (64, 64), (16, 56, 56)  # channels of a head that rotate by (frame,) row and column
THETA = 256
REFERENCE_FRAME = -1  # the place in time of a reference image
MARK = "txt_in.individual_token_refiner.blocks.0.norm1.weight"
FIRST = "img_in.proj.weight"
LABELS = "vector_in.in_layer.weight"
GUIDANCE = "guidance_in.in_layer.weight"
END_TIME = "time_r_in.in_layer.weight"
GLYPHS = "byt5_in.fc1.weight"


@dataclass(frozen=True, slots=True)
class HunyuanVideoConfig:
    """Configuration of the network. `patch` has the cells of a patch along (frames,) rows and columns.

    `in_channels` counts those of further images beside the noisy latent. `label_dim` is the width of the text's
    pooled output, 0 for a network without it. `glyph_width` is that of the text to draw, 0 for a network without it,
    and `glyph_inner` that of the layers behind. With `has_end_time` the network knows the time that a step ends at
    (Geng et al. 2025, arXiv 2505.13447); with `sums_times` its vector is added to that of the time, not averaged with
    it. `image_dim` is the width of an image encoder's tokens, 0 for a network without them; with `has_kinds` there is a
    vector for each kind of token of the condition.
    """

    width: int
    num_double: int
    num_single: int
    context_dim: int
    patch: tuple[int, ...] = (1, 1)
    in_channels: int = 64
    out_channels: int = 64
    label_dim: int = 0
    has_guidance: bool = False
    glyph_width: int = 0
    glyph_inner: int = 0
    num_refiners: int = 2
    has_end_time: bool = False
    inner_factor: int = 4
    sums_times: bool = False
    image_dim: int = 0
    has_kinds: bool = False

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH

    @property
    def axes(self) -> tuple[int, ...]:
        """The channels of a head that rotate along each axis."""
        return IMAGE_AXES if len(self.patch) == len(IMAGE_AXES) else VIDEO_AXES


def hunyuan_video_config(shapes: Shapes) -> HunyuanVideoConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, in_channels, *patch = shapes[FIRST]
    glyph_inner, glyph_width = shapes.get(GLYPHS, (0, 0))
    return HunyuanVideoConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=shapes["txt_in.input_embedder.weight"][1],
        patch=tuple(patch),
        in_channels=in_channels,
        out_channels=shapes["final_layer.linear.weight"][0] // math.prod(patch),
        label_dim=shapes[LABELS][1] if LABELS in shapes else 0,
        has_guidance=GUIDANCE in shapes,
        glyph_width=glyph_width,
        glyph_inner=glyph_inner,
        num_refiners=count_children(shapes, "txt_in.individual_token_refiner.blocks"),
        has_end_time=END_TIME in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )


class EndTime(NamedTuple):
    """The noise level [1] that a step ends at, and whether it is known (a tensor: asking would wait for the device)."""

    level: torch.Tensor
    is_known: torch.Tensor


class PatchEmbedder(nn.Module):
    """Patches of a latent as tokens: `forward([B, C, (F,) h, w])` -> `[B, T, D]`."""

    def __init__(self, config: HunyuanVideoConfig) -> None:
        super().__init__()
        kind: type[nn.Conv2d] | type[nn.Conv3d] = Conv2d if len(config.patch) == len(IMAGE_AXES) else nn.Conv3d
        self.proj = kind(config.in_channels, config.width, config.patch, stride=config.patch)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(x)
        return tokens_of(out)


class HunyuanVideoFinalLayer(FinalLayer):
    """The last layer, modulated by a vector [B, D], or by one for each part of the stream [B, N, D]."""

    def __init__(self, config: HunyuanVideoConfig) -> None:
        super().__init__(config.width, config.out_channels * math.prod(config.patch))

    def forward(self, x: torch.Tensor, vec: torch.Tensor, spans: Spans | None = None) -> torch.Tensor:
        vec = vec[:, None] if vec.ndim == 2 else vec
        shift, scale = self.adaLN_modulation(vec).chunk(2, dim=-1)
        ((shift, scale, _),) = spread([(shift, scale, shift)], spans, x.shape[1])
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


class HunyuanVideoTransformer(nn.Module):
    """`forward(x [B, in, (F,) h, w], timesteps [B], context [B, T, D])` -> `[B, out, (F,) h, w]`.

    `y` [B, label_dim] is the text's pooled output, `guidance` [B] the scale of guidance, `attention_mask` [B, T] 0 for
    tokens of the text that are not read, `txt_byt5` [B, T, D] the text to draw. `guiding_frame_index` [B] is the time
    of the first frame where it is given, `ref_latent` a reference image. Without `disable_time_r` a network that
    knows the time that a step ends at takes it from the noise levels in `transformer_options`. `control` holds lists of
    additions to the image by block. Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: HunyuanVideoConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = list(config.patch)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.img_in = PatchEmbedder(config)
        self.time_in = Embedder(TIME_WIDTH, config.width)
        if config.label_dim:
            self.vector_in = Embedder(config.label_dim, config.width)
        if config.has_guidance:
            self.guidance_in = Embedder(TIME_WIDTH, config.width)
        if config.has_end_time:
            self.time_r_in = Embedder(TIME_WIDTH, config.width)
        if config.glyph_width:
            self.byt5_in = GlyphMapper(config.glyph_width, config.glyph_inner, config.width)
        self.txt_in = TokenRefiner(config.context_dim, config.width, config.heads, config.num_refiners)
        self.double_blocks = nn.ModuleList(HunyuanVideoDoubleBlock(config) for _ in range(config.num_double))
        self.single_blocks = nn.ModuleList(HunyuanVideoSingleBlock(config) for _ in range(config.num_single))
        self.final_layer = HunyuanVideoFinalLayer(config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.img_in.proj.weight.dtype

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
        txt_byt5: torch.Tensor | None = None,
        clip_fea: torch.Tensor | None = None,
        guiding_frame_index: torch.Tensor | None = None,
        ref_latent: torch.Tensor | None = None,
        disable_time_r: bool = False,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        padded = whole_patches(x, self.config.patch)
        tokens, places = self.img_in(padded), self.places_of(padded)
        num_own = tokens.shape[1]
        if ref_latent is not None:
            tokens, places = self._with_reference(whole_patches(ref_latent, self.config.patch), padded, tokens, places)
        end_time = None if disable_time_r else self._end_time(options)
        vec = self._time(timesteps, end_time, x.dtype)
        vec, spans = self._labelled(vec, y, guiding_frame_index, num_own // padded.shape[2])
        if self.config.has_guidance and guidance is not None:
            vec = vec + _beside(self.guidance_in(_embedded(guidance * TIME_FACTOR, x.dtype)), vec)
        mask = additive_mask(attention_mask, x.dtype)
        text = self.txt_in(context, timesteps, mask, options)
        text, mask = self.joined_text(text, mask, txt_byt5, clip_fea)
        out = self._blocks(tokens, text, vec, spans, places, _mask_of_all(mask, tokens), control, options)
        drawn = self.final_layer(out[:, out.shape[1] - num_own :], vec, spans)
        latent = self._latent_of(drawn, padded)
        for axis, size in enumerate(x.shape[2:], start=2):
            latent = latent.narrow(axis, 0, size)
        return latent

    def joined_text(
        self,
        text: torch.Tensor,
        mask: torch.Tensor | None,
        txt_byt5: torch.Tensor | None,
        clip_fea: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the tokens of the refined text [B, T, D] with those of the text to draw behind them, and their mask.

        This network has no tokens of an image encoder, `clip_fea`.
        """
        if not self.config.glyph_width or txt_byt5 is None:
            return text, mask
        glyphs = self.byt5_in(txt_byt5)
        masks = None if mask is None else functional.pad(mask, (0, glyphs.shape[1]))
        return torch.cat([text, glyphs], dim=1), masks

    def _latent_of(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the patches [B, T, C * cells] as a latent of the size of `like`."""
        patch = self.config.patch
        counts = [size // cells for size, cells in zip(like.shape[2:], patch, strict=True)]
        split = tokens.view(tokens.shape[0], *counts, self.config.out_channels, *patch)
        axes = len(patch)
        order = [0, axes + 1]
        for axis in range(axes):
            order += [1 + axis, axes + 2 + axis]
        return split.permute(order).reshape(tokens.shape[0], self.config.out_channels, *like.shape[2:])

    @property
    def depends_on_schedule(self) -> bool:
        """True where a step depends on the run's next noise level, which rows of other runs do not share."""
        return self.config.has_end_time

    # --- what modulates the blocks -----------------------------------------------------------------------------------

    def _time(self, timesteps: torch.Tensor, end: EndTime | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the vector [B, D] of the time, joined with that of the time that the step ends at."""
        vec: torch.Tensor = self.time_in(_embedded(timesteps, dtype))
        if end is None:
            return vec
        end_vec: torch.Tensor = self.time_r_in(_embedded(end.level.to(timesteps) * TIME_FACTOR, dtype))
        joined = vec + end_vec if self.config.sums_times else (vec + end_vec) / 2
        return torch.where(end.is_known, joined, vec)

    def _end_time(self, options: Options) -> EndTime | None:
        """Return the noise level that this step ends at, None for a network or a call that does not read it."""
        now, levels = options.get("sigmas"), options.get("sample_sigmas")
        if not self.config.has_end_time or now is None or levels is None or len(levels) < 2:
            return None
        found = levels[:-1] == now[0].to(levels)
        steps = torch.arange(len(found), device=levels.device)
        first = torch.where(found, steps, len(found) - 1).min()
        return EndTime(levels[1:].gather(0, first[None]), found.any().to(now.device))

    def _labelled(
        self, vec: torch.Tensor, y: torch.Tensor | None, first_time: torch.Tensor | None, tokens_a_frame: int
    ) -> tuple[torch.Tensor, Spans | None]:
        """Return the vector with that of the labels, or two of them [B, 2, D] where the first frame has its own time.

        The second item says which tokens of the image have which.
        """
        labels = None
        if self.config.label_dim and y is not None:
            labels = self.vector_in(y[:, : self.config.label_dim])
        own = vec if labels is None else vec + labels
        if first_time is None:
            return own, None
        first: torch.Tensor = self.time_in(_embedded(first_time, vec.dtype))
        first = first if labels is None else labels + first
        spans = [(0, tokens_a_frame, 0), (tokens_a_frame, None, 1)]
        return torch.stack([first.expand_as(own), own], dim=1), spans

    # --- places ------------------------------------------------------------------------------------------------------

    def places_of(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the places [B, T, axes] of a latent's patches: (frame,) row, column."""
        counts = [size // cells for size, cells in zip(latent.shape[2:], self.config.patch, strict=True)]
        along = [torch.arange(count, device=latent.device, dtype=torch.float32) for count in counts]
        places = torch.stack(torch.meshgrid(*along, indexing="ij"), dim=-1)
        return places.flatten(0, -2).expand(latent.shape[0], -1, -1)

    def _with_reference(
        self, reference: torch.Tensor, drawn: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and places with those of a reference image before them, beside the drawn one."""
        beside = self.places_of(reference).clone()
        beside[..., 0] = REFERENCE_FRAME
        beside[..., -1] += drawn.shape[-1] // self.config.patch[-1]
        own = self.img_in(reference)
        size = tokens.shape[0]
        pairs = ((own, tokens), (beside, places))
        tokens, places = (torch.cat([first.expand(size, -1, -1), second], dim=1) for first, second in pairs)
        return tokens, places

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(
        self,
        img: torch.Tensor,
        txt: torch.Tensor,
        vec: torch.Tensor,
        spans: Spans | None,
        places: torch.Tensor,
        mask: torch.Tensor | None,
        control: Control | None,
        options: Options,
    ) -> torch.Tensor:
        """Return all tokens after all blocks, or after what custom nodes have put in their places."""
        nowhere = places.new_zeros(txt.shape[0], txt.shape[1], places.shape[-1])
        pe = rotations(torch.cat([nowhere, places], dim=1), self.config.axes, THETA)
        shared = {"vec": vec, "pe": pe, "attention_mask": mask, "transformer_options": options}
        spans_of_text = None if spans is None else [(0, None, 1)]
        replaced = options.get("patches_replace", {}).get("dit", {})
        num_text = txt.shape[1]
        for index, block in enumerate(self.double_blocks):
            run = double_function(block)
            args = {
                "img": img,
                "txt": txt,
                "modulation_dims_img": spans,
                "modulation_dims_txt": spans_of_text,
                **shared,
            }
            replacement = replaced.get(("double_block", index))
            out = run(args) if replacement is None else replacement(args, {"original_block": run})
            img, txt = _added(out["img"], control, "input", index), out["txt"]
        x = torch.cat([txt, finite(img)], dim=1)
        shared["transformer_options"] = {**options, IMAGE_SPAN: (num_text, x.shape[1])}
        for index, block in enumerate(self.single_blocks):
            run = single_function(block)
            # The first frame's part begins with the text's tokens here, as in ComfyUI since 2026: a workflow draws the
            # same, though the networks were trained with it at the image's.
            args = {"img": x, "modulation_dims": spans, **shared}
            replacement = replaced.get(("single_block", index))
            out = run(args) if replacement is None else replacement(args, {"original_block": run})
            x = torch.cat([out["img"][:, :num_text], _added(out["img"][:, num_text:], control, "output", index)], 1)
        return x


def _embedded(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return timestep_embedding(numbers, TIME_WIDTH).to(dtype)


def _beside(vector: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
    return vector if vec.ndim == vector.ndim else vector[:, None]


def whole_patches(x: torch.Tensor, patch: Sequence[int]) -> torch.Tensor:
    """Pad a latent [B, C, (F,) h, w] to whole patches by wrapping around."""
    missing = [-size % cells for size, cells in zip(x.shape[2:], patch, strict=True)]
    if not any(missing):
        return x
    sides = [amount for count in reversed(missing) for amount in (0, count)]
    return functional.pad(x, sides, mode="circular")


def additive_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a mask [B, T] of ones and zeros as numbers to add to the scores; one of fractions as it is."""
    if mask is None or torch.is_floating_point(mask):
        return mask
    return (mask - 1).to(dtype) * torch.finfo(dtype).max


def _mask_of_all(mask: torch.Tensor | None, img: torch.Tensor) -> torch.Tensor | None:
    """Return the mask [B, 1, tokens] of the text's tokens and the image's."""
    return None if mask is None else functional.pad(mask, (0, img.shape[1]))[:, None]


def _added(img: torch.Tensor, control: Control | None, place: str, index: int) -> torch.Tensor:
    """Return the image's tokens with a control's, where it has some for this block."""
    additions = [] if control is None else control.get(place, [])
    addition = additions[index] if index < len(additions) else None
    return img if addition is None else img + addition.to(img.dtype)
