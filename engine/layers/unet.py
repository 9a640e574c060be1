"""The UNet of latent diffusion (Rombach et al. 2022, arXiv 2112.10752), of any width and depth.

What the network consists of is data (`UnetConfig`, read from tensor shapes by `engine/models`); module names are
those of the original checkpoints. `B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` their width, `E` width
of the time embedding.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): they find `block`,
`block_index`, `transformer_index`, `original_shape`, `activations_shape` in it, and put functions under `patches`
(`attn1_patch`, `attn2_output_patch`, `input_block_patch`...) and `patches_replace` (`attn1`, `attn2` by block).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear
from darkroom.engine.layers.temporal_layers import TemporalTransformer, VideoResBlock
from darkroom.engine.layers.unet_layers import (
    BasicTransformerBlock,
    BlockSpec,
    ConvSpec,
    Downsample,
    DownSpec,
    LayerSpec,
    Options,
    ResBlock,
    ResSpec,
    SpatialTransformer,
    TransformerSpec,
    Upsample,
    UpSpec,
    timestep_embedding,
)
from darkroom.engine.log_context import report_warning

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnetConfig:
    """Configuration of every layer of every block. `head_channels` None means `num_heads` heads at every width.

    `label_dim` is the width of the label vector that is embedded beside the time, 0 for networks without labels.
    `num_labels` is the number of labels of a network that is given one of them by its number.
    """

    in_channels: int
    out_channels: int
    model_channels: int
    input_blocks: tuple[BlockSpec, ...]
    middle_block: BlockSpec
    output_blocks: tuple[BlockSpec, ...]
    num_heads: int = 8
    head_channels: int | None = None
    label_dim: int = 0
    num_labels: int = 0

    @property
    def context_dim(self) -> int:
        """Width of the context tokens; 0 without a transformer."""
        blocks = (*self.input_blocks, self.middle_block, *self.output_blocks)
        return next((spec.context_dim for block in blocks for spec in block if isinstance(spec, TransformerSpec)), 0)

    def heads(self, channels: int) -> int:
        return self.num_heads if self.head_channels is None else channels // self.head_channels


@dataclass(frozen=True, slots=True)
class Video:
    """Options of the layers of a video network: see `temporal_layers.py`."""

    num_frames: int | None = None
    time_context: torch.Tensor | None = None
    image_only_indicator: torch.Tensor | None = None


NO_VIDEO = Video()


class TimestepEmbedSequential(nn.Sequential):
    """Layers of one block, each called with the inputs it needs of time, context and size."""

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        emb: torch.Tensor,
        context: torch.Tensor | None = None,
        transformer_options: Options | None = None,
        output_shape: Sequence[int] | None = None,
        video: Video = NO_VIDEO,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        for layer in self:
            handler = _handler_of(layer, options)
            if handler is not None:
                told = (video.time_context, video.num_frames, video.image_only_indicator)
                x = handler(layer, x, emb, context, options, output_shape, *told)
            elif isinstance(layer, VideoResBlock):
                x = layer(x, emb, video.num_frames, video.image_only_indicator)
            elif isinstance(layer, ResBlock):
                x = layer(x, emb)
            elif isinstance(layer, SpatialTransformer):
                x = self._transform(layer, x, context, options, video)
            elif isinstance(layer, Upsample):
                x = layer(x, output_shape)
            else:
                x = layer(x)
        return x

    def _transform(
        self,
        layer: SpatialTransformer,
        x: torch.Tensor,
        context: torch.Tensor | None,
        options: Options,
        video: Video,
    ) -> torch.Tensor:
        if isinstance(layer, TemporalTransformer):
            x = layer(x, context, options, video.time_context, video.num_frames, video.image_only_indicator)
        else:
            x = layer(x, context, options)
        if "transformer_index" in options:
            options["transformer_index"] += 1
        return x


def _handler_of(layer: nn.Module, options: Options) -> Callable[..., torch.Tensor] | None:
    """Return the function that a node computes a layer of this kind by, None for a layer that is called itself."""
    handlers = options.get("patches", {}).get("forward_timestep_embed_patch", ())
    return next((handler for kind, handler in handlers if isinstance(layer, kind)), None)


class UnetModel(nn.Module):
    """`forward(x [B, in, h, w], timesteps [B], context [B, T, D], y [B, label_dim])` -> `[B, out, h, w]`.

    `y` is [B], numbers of labels, for a network with `num_labels`.
    `control` holds lists of additions by place (`input`, `middle`, `output`), taken from their ends. Built without
    weights being drawn when a `torch.device("meta")` context is open.
    """

    repeated_blocks = (BasicTransformerBlock, ResBlock)  # worth compiling by themselves

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        self.config = config
        self.model_channels = config.model_channels
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.model_channels * 4
        self.time_embed = nn.Sequential(Linear(config.model_channels, width), nn.SiLU(), Linear(width, width))
        if config.label_dim:
            self.label_emb: Any = label_embedding(config.label_dim, width)
        elif config.num_labels:
            self.label_emb = nn.Embedding(config.num_labels, width)
        self.input_blocks = nn.ModuleList(build_block(spec, config, width) for spec in config.input_blocks)
        self.middle_block = build_block(config.middle_block, config, width)
        self.output_blocks = nn.ModuleList(build_block(spec, config, width) for spec in config.output_blocks)
        self.out = nn.Sequential(
            GroupNorm(32, config.model_channels),
            nn.SiLU(),
            Conv2d(config.model_channels, config.out_channels, 3, padding=1),
        )

    @property
    def out_channels(self) -> int:
        return self.config.out_channels

    @property
    def num_heads(self) -> int:
        """Heads of attention at every width; -1 where each has so many channels."""
        return self.config.num_heads if self.config.head_channels is None else -1

    @property
    def num_head_channels(self) -> int:
        """Channels of a head of attention; -1 where there are as many heads at every width."""
        return -1 if self.config.head_channels is None else self.config.head_channels

    @property
    def num_classes(self) -> str | int | None:
        """`sequential` for a network with a label vector, the labels of one that is given a number, else None."""
        return "sequential" if self.config.label_dim else self.config.num_labels or None

    @property
    def num_res_blocks(self) -> list[int]:
        """Residual blocks of each level."""
        return [len(widths) for widths in self._levels()]

    @property
    def channel_mult(self) -> list[int]:
        """Width of each level in units of `model_channels`."""
        return [widths[-1] // self.config.model_channels for widths in self._levels()]

    @property
    def dropout(self) -> int:
        """Return 0: nothing is left out at random."""
        return 0

    def _levels(self) -> list[list[int]]:
        """Return the widths of the residual blocks of each level of the first half."""
        levels: list[list[int]] = [[]]
        for block in self.config.input_blocks[1:]:
            if any(isinstance(spec, DownSpec) for spec in block):
                levels.append([])
            levels[-1] += [spec.out_channels for spec in block if isinstance(spec, ResSpec)]
        return [widths for widths in levels if widths]

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.time_embed.get_parameter("0.weight").dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: dict[str, list[torch.Tensor | None]] | None = None,
        transformer_options: Options | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        options["original_shape"] = list(x.shape)
        options["transformer_index"] = 0
        patches = options.get("patches", {})

        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels).to(x.dtype))  # [B, E]
        for patch in patches.get("emb_patch", ()):
            emb = patch(emb, self.model_channels, options)
        if self.config.label_dim or self.config.num_labels:
            emb = emb + self.label_emb(y)
        video = Video(kwargs.get("num_video_frames"), kwargs.get("time_context"), kwargs.get("image_only_indicator"))

        h, skips = x, []
        for index, block in enumerate(self.input_blocks):
            options["block"] = ("input", index)
            h = add_control(block(h, emb, context, options, video=video), control, "input")
            for patch in patches.get("input_block_patch", ()):
                h = patch(h, options)
            skips.append(h)
            for patch in patches.get("input_block_patch_after_skip", ()):
                h = patch(h, options)

        options["block"] = ("middle", 0)
        h = add_control(self.middle_block(h, emb, context, options, video=video), control, "middle")
        for patch in patches.get("middle_block_after_patch", ()):
            inputs = {"x": x, "emb": emb, "context": context, "y": y, "timesteps": timesteps}
            h = patch({**inputs, "h": h, "transformer_options": options})["h"]

        for index, block in enumerate(self.output_blocks):
            options["block"] = ("output", index)
            skip = add_control(skips.pop(), control, "output")
            h = _joined(h, skip, patches.get("output_block_patch", ()), options)
            h = block(h, emb, context, options, skips[-1].shape if skips else None, video)
        out: torch.Tensor = self.out(h)
        return out


def label_embedding(label_dim: int, width: int) -> nn.Sequential:
    """Build the embedding of a label vector [B, label_dim] -> [B, width], under the names of the original files."""
    return nn.Sequential(nn.Sequential(Linear(label_dim, width), nn.SiLU(), Linear(width, width)))


def build_block(specs: BlockSpec, config: UnetConfig, embedding_width: int) -> TimestepEmbedSequential:
    """Build the layers of one block from its configuration."""
    return TimestepEmbedSequential(*(_layer(spec, config, embedding_width) for spec in specs))


def _layer(spec: LayerSpec, config: UnetConfig, embedding_width: int) -> nn.Module:
    match spec:
        case ConvSpec():
            return Conv2d(spec.in_channels, spec.out_channels, 3, padding=1)
        case ResSpec():
            return VideoResBlock(spec, embedding_width) if spec.is_temporal else ResBlock(spec, embedding_width)
        case TransformerSpec():
            kind = TemporalTransformer if spec.is_temporal else SpatialTransformer
            return kind(spec, config.heads(spec.channels))
        case DownSpec():
            return Downsample(spec)
        case UpSpec():
            return Upsample(spec)


def _joined(
    h: torch.Tensor, skip: torch.Tensor, patches: Sequence[Callable[..., Any]], options: Options
) -> torch.Tensor:
    """Return the input of an output block, joined with the skip connection. The last patch may join them itself.

    Raises ValueError for a patch behind one that does.
    """
    joins: torch.Tensor | None = skip
    for patch in patches:
        if joins is None:
            raise ValueError(
                "model: a patch of skip connections comes behind one that joins them; got the other order, expected "
                "SUPIRApply last"
            )
        h, joins = patch(h, joins, options)
    return h if joins is None else torch.cat([h, joins], dim=1)


def add_control(h: torch.Tensor, control: dict[str, list[torch.Tensor | None]] | None, place: str) -> torch.Tensor:
    """Add the last of the additions for a place, which is taken off its list."""
    additions = None if control is None else control.get(place)
    if not additions:
        return h
    addition = additions.pop()
    if addition is None:
        return h
    if not _fits(addition.shape, h.shape):  # one made for another network; ComfyUI draws without it, too
        message = f"a control of shape {list(addition.shape)} does not fit {list(h.shape)} and is left out"
        report_warning(log, "control_left_out", message)
        return h
    return h + addition.to(h.dtype)  # a T2I-Adapter is float32


def _fits(shape: torch.Size, target: torch.Size) -> bool:
    """Return True if a tensor can be added to one of the target's shape."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)
