"""The transformer of Flux.1 (Black Forest Labs 2024), of any width and depth.

Blocks of two streams, one for the text and one for the image, are followed by blocks of one stream for both, whose
attention and feed-forward layers run in parallel (Dehghani et al. 2023, arXiv 2302.05442). Places are rotations (Su et
al. 2021, arXiv 2104.09864) on three axes: index of the image, row, column. `B` batch, `C` channels, `h w` latent
cells, `T` tokens of text and image, `D` width, `H` heads. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches["post_input"]` has
functions of the embedded inputs, `patches_replace["dit"]` functions by `("double_block", index)` or `("single_block",
index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.reference_keys import BLOCK_OPTION, OPTION, BlockKeys, ReferenceKeys
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction, Control
from darkroom.engine.layers.norms import ScaleRmsNorm
from darkroom.engine.layers.patches import PATCH, image_of, pad_to_patches, patches_of
from darkroom.engine.layers.rope_options import axis_positions
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Gelu,
    JoinedActivation,
    Modulator,
    ResidualNorm,
    RotaryHeads,
    Stretches,
    finite,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 128
TIME_WIDTH = 256  # of the sinusoids of time and guidance
TIME_FACTOR = 1000.0
VectorModulation = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # shift, scale, gate, each [B, 1, D]
Modulation = tuple[Modulator, Modulator, Modulator]  # the same, or of stretches of tokens
TIME_ZERO_METHOD = "index_timestep_zero"  # of reference images: they are seen as if their time was 0
MARK = "double_blocks.0.img_attn.norm.key_norm.scale"
GUIDANCE = "guidance_in.in_layer.weight"


class BlockConfig(Protocol):
    """Sizes and numbers of the blocks of two streams and of one."""

    @property
    def width(self) -> int: ...

    @property
    def num_double(self) -> int: ...

    @property
    def num_single(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def inner_factor(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FluxConfig:
    """Configuration of the network. `in_channels` counts those of further images beside the noisy latent."""

    width: int
    num_double: int
    num_single: int
    context_dim: int
    label_dim: int
    in_channels: int = 16
    out_channels: int = 16
    has_guidance: bool = True
    inner_factor: int = 4

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def trunk_config(shapes: Shapes) -> FluxConfig:
    """Return the configuration of all layers but the last with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return FluxConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        label_dim=shapes["vector_in.in_layer.weight"][1],
        in_channels=shapes["img_in.weight"][1] // PATCH**2,
        has_guidance=GUIDANCE in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )


def flux_config(shapes: Shapes) -> FluxConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return replace(trunk_config(shapes), out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2)


REFERENCE_TOKENS = "reference_image_num_tokens"  # transformer option: the tokens of each reference image
IMAGE_SPAN = "img_slice"  # transformer option: first token of the image and the one behind its last, among all

# --- places ----------------------------------------------------------------------------------------------------------


def places_of(
    latent: torch.Tensor, *, index: int = 0, row: int = 0, column: int = 0, options: Options | None = None
) -> torch.Tensor:
    """Return the places [B, rows * columns, 3] of a latent's patches, the first at this row and column, in patches.

    The transformer options may scale and shift them.
    """
    rows, columns = latent.shape[-2] // PATCH, latent.shape[-1] // PATCH
    places = torch.zeros(rows, columns, 3, device=latent.device)
    places[..., 0] = axis_positions(1, "t", options, latent.device, first=index)
    places[..., 1] = axis_positions(rows, "y", options, latent.device, first=row)[:, None]
    places[..., 2] = axis_positions(columns, "x", options, latent.device, first=column)[None, :]
    return places.flatten(0, 1).expand(latent.shape[0], -1, -1)


def reference_corners(
    sizes: Sequence[tuple[int, int]], target: tuple[int, int], method: str
) -> list[tuple[int, int, int]]:
    """Return index, row and column (in cells) at which reference images of these heights and widths are placed.

    `target` is the size of the image that is drawn. Methods: `offset` puts them beside each other at index 1, along
    the shorter side of what is there, `index` and `index_timestep_zero` at indices of their own, `uxo` diagonally
    behind the image (UNO: Wu et al. 2025, arXiv 2504.02160). Other methods count as `offset`.
    """
    corners = []
    height = width = 0
    for number, (rows, columns) in enumerate(sizes, start=1):
        if method in ("index", TIME_ZERO_METHOD):
            corners.append((number, 0, 0))
        elif method == "uxo":
            corners.append((0, target[0] + height, target[1] + width))
            height, width = height + rows, width + columns
        else:
            is_beside = rows + height > columns + width
            row, column = (0, width) if is_beside else (height, 0)
            corners.append((1, row, column))
            height, width = max(height, rows + row), max(width, columns + column)
    return corners


def with_references(
    padded: torch.Tensor,
    target: tuple[int, int],
    references: Sequence[torch.Tensor],
    method: str,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches of an image and of its references behind each other, and their places.

    `target` is the size of the image before it was padded.
    """
    tokens, places = [patches_of(padded)], [places_of(padded, options=options)]
    whole = (-(-target[0] // PATCH) * PATCH, -(-target[1] // PATCH) * PATCH)
    sizes = [(int(item.shape[-2]), int(item.shape[-1])) for item in references]
    for item, (index, row, column) in zip(references, reference_corners(sizes, whole, method), strict=True):
        latent = pad_to_patches(item, PATCH)
        tokens.append(patches_of(latent))
        corner = {"row": (row + 1) // PATCH, "column": (column + 1) // PATCH}
        places.append(places_of(latent, index=index, options=options, **corner))
    return torch.cat(tokens, dim=1), torch.cat(places, dim=1)


# --- layers ----------------------------------------------------------------------------------------------------------


class Embedder(nn.Module):
    def __init__(self, in_width: int, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.in_layer, self.out_layer = Linear(in_width, width, bias=bias), Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out_layer(functional.silu(self.in_layer(x)))
        return out


class ModulationLayer(nn.Module):
    """Shift, scale and gate of one or two places in a block, from the vector [B, D] or several of them [B, N, D]."""

    def __init__(self, width: int, num_places: int, *, bias: bool = True) -> None:
        super().__init__()
        self.num_places = num_places
        self.lin = Linear(width, 3 * num_places * width, bias=bias)

    def forward(self, vec: torch.Tensor) -> list[VectorModulation]:
        vec = vec[:, None] if vec.ndim == 2 else vec
        parts = self.lin(functional.silu(vec)).chunk(3 * self.num_places, dim=-1)
        return [(parts[place], parts[place + 1], parts[place + 2]) for place in range(0, len(parts), 3)]


@dataclass(frozen=True, slots=True)
class TimedVectors:
    """Vectors [B, D] of two stretches of tokens: of the first `num_now` at the time, of those behind it at time 0."""

    now: torch.Tensor
    at_zero: torch.Tensor
    num_now: int
    num_references: int

    def behind(self, num_text: int) -> TimedVectors:
        """Return the vectors of a stream that begins with so many tokens of text."""
        return replace(self, num_now=self.num_now + num_text)

    def joined(self, now: Sequence[Modulation], at_zero: Sequence[Modulation]) -> list[Modulation]:
        """Return modulations whose stretches have those of the one and of the other."""
        lengths = (self.num_now, self.num_references)

        def both(first: Modulator, second: Modulator) -> Stretches:
            assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
            return Stretches(lengths, (first, second))

        pairs = zip(now, at_zero, strict=True)
        return [(both(one[0], other[0]), both(one[1], other[1]), both(one[2], other[2])) for one, other in pairs]


Vector = torch.Tensor | TimedVectors
"""Modulation of a stream of tokens before its layers: a vector [B, D] for all, or for each of two stretches."""


def modulations_of(layer: ModulationLayer, vec: Vector) -> list[Modulation]:
    """Return the modulations that a layer makes of the vectors of a stream."""
    if isinstance(vec, torch.Tensor):
        made: list[Modulation] = layer(vec)
        return made
    return vec.joined(layer(vec.now), layer(vec.at_zero))


def kept_joined(k: torch.Tensor, v: torch.Tensor, options: Options | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values with those of reference images that are kept for the block, where a run keeps some."""
    kept: BlockKeys | None = None if options is None else options.get(BLOCK_OPTION)
    return (k, v) if kept is None else kept.joined(k, v)


class QueryNorm(nn.Module):
    """Norms of queries and keys, which `RotaryHeads` calls."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.query_norm, self.key_norm = ScaleRmsNorm(head_width), ScaleRmsNorm(head_width)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries and keys normalised, as custom nodes ask for them."""
        return self.query_norm(q).to(v), self.key_norm(k).to(v), v


def heads_of(qkv: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Split joined queries, keys and values [B, T, 3 * D] into heads [B, H, T, D / H] each."""
    q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    return q, k, v


class StreamAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, width * 3, bias=bias)
        self.norm = QueryNorm(width // heads)
        self.proj = Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values [B, H, T, D / H], the first two before their norms."""
        return heads_of(self.qkv(x), self.heads)


def output_patched(
    attended: torch.Tensor, image_tokens: tuple[int, int] | None, options: Options | None
) -> torch.Tensor:
    """Return the result of an attention [B, T, D] as patches of `attn1_output_patch` change it.

    They find the span of the image's tokens under `img_slice`; None is what the options have already.
    """
    known = {} if options is None else dict(options)
    if image_tokens is not None:
        known[IMAGE_SPAN] = image_tokens
    for patch in known.get("patches", {}).get("attn1_output_patch", ()):
        attended = patch(attended, known)
    return attended


def plain_layers(width: int, inner: int) -> nn.Sequential:
    """Make feed-forward layers."""
    return nn.Sequential(Linear(width, inner), Gelu("tanh"), Linear(inner, width))


class DoubleBlockLayers(nn.Module):
    """A block of two streams without the layers that make its modulations.

    `feed_forward` makes the feed-forward layers of a stream from its width and theirs. The tokens of the text come
    before those of the image, in the places and the mask too.
    """

    def __init__(
        self, config: BlockConfig, *, bias: bool = True, feed_forward: Callable[[int, int], nn.Module] = plain_layers
    ) -> None:
        super().__init__()
        width, inner = config.width, config.width * config.inner_factor
        self.img_attn, self.txt_attn = (StreamAttention(width, config.heads, bias=bias) for _ in range(2))
        self.img_mlp, self.txt_mlp = feed_forward(width, inner), feed_forward(width, inner)
        self.adaptive_norm = AdaptiveNorm(is_joined=True)
        self.rotary_heads = RotaryHeads()
        self.residual, self.finite_residual = GatedResidual(), GatedResidual(clamps_sum=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def modulations(self, vec: Any) -> tuple[Sequence[Modulation], Sequence[Modulation]]:
        """Return the modulations of both places in the image's stream, and of both in the text's."""
        pair: tuple[Sequence[Modulation], Sequence[Modulation]] = vec
        return pair

    def forward(
        self,
        img: torch.Tensor,
        txt: torch.Tensor,
        vec: Any,
        pe: torch.Tensor | None,
        attn_mask: torch.Tensor | None = None,
        transformer_options: Options | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return image and text [B, T, D] each. `vec` is what `modulations` takes."""
        (img_first, img_second), (txt_first, txt_second) = self.modulations(vec)
        image = self.img_attn, self.img_attn(self.adaptive_norm(img, img_first[1], img_first[0]))
        text = self.txt_attn, self.txt_attn(self.adaptive_norm(txt, txt_first[1], txt_first[0]))
        streams = (text, image)
        q, k = self.rotary_heads(
            [(heads[0], layers.norm.query_norm) for layers, heads in streams],
            [(heads[1], layers.norm.key_norm) for layers, heads in streams],
            pe,
        )
        v = torch.cat([heads[2] for _, heads in streams], dim=2)
        k, v = kept_joined(k, v, transformer_options)
        attended = optimized_attention(
            q, k, v, q.shape[1], skip_reshape=True, mask=attn_mask, transformer_options=transformer_options
        )
        num_text = txt.shape[1]
        attended = output_patched(attended, (num_text, attended.shape[1]), transformer_options)
        to_txt, to_img = attended[:, :num_text], attended[:, num_text:]
        img, normed = self.residual_norm(img, self.img_attn.proj(to_img), img_first[2], img_second[1], img_second[0])
        img = self.residual(img, self.img_mlp(normed), img_second[2])
        txt, normed = self.residual_norm(txt, self.txt_attn.proj(to_txt), txt_first[2], txt_second[1], txt_second[0])
        return img, self.finite_residual(txt, self.txt_mlp(normed), txt_second[2])


class DoubleBlock(DoubleBlockLayers):
    """A block of two streams, modulated by a vector [B, D]."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.img_mod, self.txt_mod = ModulationLayer(config.width, 2), ModulationLayer(config.width, 2)

    def modulations(self, vec: Vector) -> tuple[Sequence[Modulation], Sequence[Modulation]]:
        return modulations_of(self.img_mod, vec), self.txt_mod(vec if isinstance(vec, torch.Tensor) else vec.now)


class SingleBlockLayers(nn.Module):
    """A block of one stream without the layer that makes its modulation.

    Its first layer makes `num_parts` tensors of the feed-forward width, of which `activation` makes one.
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        bias: bool = True,
        num_parts: int = 1,
        activation: Callable[[], Gelu | GatedActivation] = Gelu,
    ) -> None:
        super().__init__()
        width, inner = config.width, config.width * config.inner_factor
        self.widths, self.heads = (3 * width, inner * num_parts), config.heads
        self.linear1 = Linear(width, sum(self.widths), bias=bias)
        self.linear2 = Linear(width + inner, width, bias=bias)
        self.norm = QueryNorm(width // config.heads)
        self.adaptive_norm, self.rotary_heads = AdaptiveNorm(is_joined=True), RotaryHeads()
        self.joined_activation = JoinedActivation(activation())
        self.residual = GatedResidual(clamps_sum=True)

    def modulated_by(self, vec: Any) -> Modulation:
        """Return the modulation of the block."""
        modulation: Modulation = vec
        return modulation

    def forward(
        self,
        x: torch.Tensor,
        vec: Any,
        pe: torch.Tensor | None,
        attn_mask: torch.Tensor | None = None,
        transformer_options: Options | None = None,
    ) -> torch.Tensor:
        """Return text and image behind each other [B, T, D]. `vec` is what `modulated_by` takes."""
        shift, scale, gate = self.modulated_by(vec)
        qkv, inner = self.linear1(self.adaptive_norm(x, scale, shift)).split(self.widths, dim=-1)
        q, k, v = heads_of(qkv, self.heads)
        q, k = self.rotary_heads([(q, self.norm.query_norm)], [(k, self.norm.key_norm)], pe)
        k, v = kept_joined(k, v, transformer_options)
        attended = optimized_attention(
            q, k, v, q.shape[1], skip_reshape=True, mask=attn_mask, transformer_options=transformer_options
        )
        attended = output_patched(attended, None, transformer_options)
        out: torch.Tensor = self.residual(x, self.linear2(self.joined_activation(attended, inner)), gate)
        return out


class SingleBlock(SingleBlockLayers):
    """A block of one stream, modulated by a vector [B, D]."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.modulation = ModulationLayer(config.width, 1)

    def modulated_by(self, vec: Vector) -> Modulation:
        return modulations_of(self.modulation, vec)[0]


class FinalLayer(nn.Module):
    def __init__(self, width: int, out_width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.linear = Linear(width, out_width, bias=bias)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 2 * width, bias=bias))
        self.adaptive_norm = AdaptiveNorm(is_joined=True)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        shift, scale = self.adaLN_modulation(vec)[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


# --- network ---------------------------------------------------------------------------------------------------------


class FluxTrunk(nn.Module):
    """The layers before the last one, which networks that steer such a transformer have as well."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.img_in = Linear(config.in_channels * PATCH * PATCH, config.width)
        self.time_in = Embedder(TIME_WIDTH, config.width)
        self.vector_in = Embedder(config.label_dim, config.width)
        if config.has_guidance:
            self.guidance_in = Embedder(TIME_WIDTH, config.width)
        self.txt_in = Linear(config.context_dim, config.width)
        self.double_blocks = nn.ModuleList(DoubleBlock(config) for _ in range(config.num_double))
        self.single_blocks = nn.ModuleList(SingleBlock(config) for _ in range(config.num_single))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.txt_in.weight.dtype

    def vector(
        self, timesteps: torch.Tensor, y: torch.Tensor, guidance: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the vector [B, D] that modulates the blocks, of time, guidance and labels."""

        def embedded(numbers: torch.Tensor) -> torch.Tensor:
            return timestep_embedding(numbers * TIME_FACTOR, TIME_WIDTH).to(dtype)

        vec: torch.Tensor = self.time_in(embedded(timesteps))
        if self.config.has_guidance and guidance is not None:
            vec = vec + self.guidance_in(embedded(guidance))
        labels: torch.Tensor = self.vector_in(y[:, : self.config.label_dim])
        return vec + labels


class FluxTransformer(FluxTrunk):
    """`forward(x [B, in, h, w], timesteps [B], context [B, T, D], y [B, label_dim])` -> `[B, out, h, w]`.

    `guidance` [B] is embedded beside the time by networks that were distilled with it; None leaves it out.
    `attention_mask` [B, T, T] is added to the scores of attention, those of the text before those of the image.
    `ref_latents` are reference images [B, C, h, w], placed by `ref_latents_method` (`reference_corners`). `control`
    holds lists of additions to the image by block, `input` for those of two streams, `output` for those of one. Built
    without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: FluxConfig) -> None:
        super().__init__(config)
        self.final_layer = FinalLayer(config.width, PATCH * PATCH * config.out_channels)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor,
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
        padded = pad_to_patches(x, PATCH)
        method = method_of(ref_latents_method, "offset", options)
        tokens, places = with_references(padded, (height, width), ref_latents, method, options)
        num_drawn = patches_of(padded).shape[1]
        options = {**options, REFERENCE_TOKENS: [tokens.shape[1] - num_drawn]} if ref_latents else options
        vec = self.vector(timesteps, y, guidance, x.dtype)  # [B, D]
        timed: Vector = vec
        if ref_latents and method == TIME_ZERO_METHOD:
            at_zero = self.vector(torch.zeros_like(timesteps), y, guidance, x.dtype)
            timed = TimedVectors(vec, at_zero, num_drawn, tokens.shape[1] - num_drawn)
        out = self._blocks(tokens, places, context, timed, control, options, attention_mask)
        drawn = self.final_layer(out[:, :num_drawn], vec)
        return image_of(drawn, padded, self.config.out_channels)[..., :height, :width]

    def _blocks(
        self,
        tokens: torch.Tensor,
        places: torch.Tensor,
        context: torch.Tensor,
        vec: Vector,
        control: Control | None,
        options: Options,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the image's tokens [B, T, D] after all blocks."""
        inputs = {
            "img": self.img_in(tokens), "txt": self.txt_in(context), "img_ids": places,
            "txt_ids": places.new_zeros(places.shape[0], context.shape[1], places.shape[-1]),
        }  # fmt: skip
        for patch in options.get("patches", {}).get("post_input", ()):
            inputs = patch(inputs)
        pe = rotations(torch.cat([inputs["txt_ids"], inputs["img_ids"]], dim=1))
        streams = (without_kept(inputs["img"], options), inputs["txt"])
        vectors = vectors_of(vec, streams, len(self.double_blocks), len(self.single_blocks))
        return run_blocks(self.double_blocks, self.single_blocks, streams, vectors, pe, control, options, mask)


def vectors_of(
    vec: Vector, streams: tuple[torch.Tensor, torch.Tensor], num_double: int, num_single: int
) -> tuple[list[Vector], list[Vector]]:
    """Return the modulations of the blocks of two streams, image and text, and of those of one.

    References that are left out have no vector of their own.
    """
    img, txt = streams
    if isinstance(vec, TimedVectors) and img.shape[1] == vec.num_now:
        vec = vec.now
    single = vec if isinstance(vec, torch.Tensor) else vec.behind(txt.shape[1])
    return [vec] * num_double, [single] * num_single


def run_blocks(
    double_blocks: Iterable[nn.Module],
    single_blocks: Iterable[nn.Module],
    streams: tuple[torch.Tensor, torch.Tensor],
    vectors: tuple[Sequence[Any], Sequence[Any]],
    pe: torch.Tensor | None,
    control: Control | None,
    options: Options,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the image's tokens [B, T, D] after all blocks, or after what custom nodes have put in their places.

    `streams` are the tokens of image and text, `vectors` what the blocks of either kind are modulated by, `mask` is
    added to the scores of attention.
    """
    img, txt = streams
    # References that are kept are in the positions alone.
    shared = {"pe": None if pe is None else pe[:, :, : txt.shape[1] + img.shape[1]], "attn_mask": mask}
    replaced = options.get("patches_replace", {}).get("dit", {})
    for index, (block, vec) in enumerate(zip(double_blocks, vectors[0], strict=True)):
        replacement = replaced.get(("double_block", index))
        own = options_of_block(options, "double", index)
        inputs = {"img": img, "txt": txt, "vec": vec, **shared, "transformer_options": own}
        if replacement is None:
            img, txt = block(**inputs)
        else:
            out = replacement(inputs, {"original_block": _double_function(block)})
            img, txt = out["img"], out["txt"]
        img = _with_control(img, control, "input", index)
    num_tokens = txt.shape[1]
    x = torch.cat([txt, finite(img)], dim=1)
    options = {**options, IMAGE_SPAN: (num_tokens, x.shape[1])}
    for index, (block, vec) in enumerate(zip(single_blocks, vectors[1], strict=True)):
        replacement = replaced.get(("single_block", index))
        inputs = {"vec": vec, **shared, "transformer_options": options_of_block(options, "single", index)}
        if replacement is None:
            x = block(x, **inputs)
        else:
            x = replacement({"img": x, **inputs}, {"original_block": _single_function(block)})["img"]
        x = _with_control(x, control, "output", index, first=num_tokens)
    return x[:, num_tokens:]


def options_of_block(options: Options, kind: str, index: int) -> Options:
    """Return the options of a block, with what it keeps of reference images where the run keeps some."""
    keys: ReferenceKeys | None = options.get(OPTION)
    num_references = sum(options.get(REFERENCE_TOKENS, ()))
    if keys is None or not num_references:
        return options
    return {**options, BLOCK_OPTION: keys.of_block(kind, index, num_references)}


def without_kept(img: torch.Tensor, options: Options) -> torch.Tensor:
    """Return the tokens of an image [B, T, D] without its references where a run has kept what blocks read of them."""
    keys: ReferenceKeys | None = options.get(OPTION)
    num_references = sum(options.get(REFERENCE_TOKENS, ()))
    return img[:, : img.shape[1] - num_references] if keys is not None and keys.is_filled else img


def method_of(asked: str | None, own: str, options: Options) -> str:
    """Return the way in which references are seen: the one asked for, at time 0 where a run keeps them, else `own`."""
    return asked or (TIME_ZERO_METHOD if OPTION in options else own)


def _with_control(x: torch.Tensor, control: Control | None, place: str, index: int, *, first: int = 0) -> torch.Tensor:
    """Add a control's tokens, where it has some for this block, to those of `x` [B, T, D] from `first` on."""
    additions = [] if control is None else control.get(place, [])
    addition = additions[index] if index < len(additions) else None
    if addition is None:
        return x
    return x + functional.pad(addition.to(x.dtype), (0, 0, first, x.shape[1] - first - addition.shape[1]))


def _double_function(block: nn.Module) -> BlockFunction:
    """Return a block of two streams in the form in which custom nodes call it."""

    def original(args: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        img, txt = block(**args)
        return {"img": img, "txt": txt}

    return original


def _single_function(block: nn.Module) -> BlockFunction:
    """Return a block of one stream in the form in which custom nodes call it."""

    def original(args: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = args["img"]
        return {"img": block(x, **{name: item for name, item in args.items() if name != "img"})}

    return original
