"""The transformer of Stable Diffusion 3 (Esser et al. 2024, arXiv 2403.03206, section 4), of any width and depth.

Text and image are two streams with weights of their own that attend to each other. `B` batch, `C` channels, `h w`
latent cells, `T` tokens, `P` patches of the image, `D` width. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.block_calls import two_stream_call
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import image_channels_last, pad_to_patches, tokens_of
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, Part, ResidualNorm, RotaryHeads
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 64
TIME_WIDTH = 256  # of the sinusoids of the time
NORM_EPS = 1e-6
TEXT_HEADS = 8  # of the layers of the text alone
PLACES_MIDDLE = 7.5  # of computed places
PLACES_THETA = 10000
Parts = tuple[torch.Tensor, ...]
MARK = "joint_blocks.0.context_block.attn.qkv.weight"
LAST = "final_layer.linear.weight"  # a network that steers another has none
QUERY_NORM = "joint_blocks.0.context_block.attn.ln_q.weight"


@dataclass(frozen=True, slots=True)
class Sd3Config:
    """Configuration of the network.

    `position_side` is the side of the square of learned places, in patches; 0 for places that are computed.
    `dual_blocks` are the blocks in which the image attends to itself once more (SD 3.5 medium), `num_text_layers`
    those of the text alone before them.
    """

    num_blocks: int
    width: int
    context_dim: int
    label_dim: int
    in_channels: int = 16
    out_channels: int = 16
    patch_size: int = 2
    position_side: int = 192
    norms_queries: bool = False
    dual_blocks: frozenset[int] = frozenset()
    num_text_layers: int = 0

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def sd3_config(shapes: Shapes) -> Sd3Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_channels, patch_size, _ = shapes["x_embedder.proj.weight"]
    num_blocks = count_children(shapes, "joint_blocks")
    return Sd3Config(
        num_blocks=num_blocks,
        width=width,
        context_dim=shapes["context_embedder.weight"][1],
        label_dim=shapes["y_embedder.mlp.0.weight"][1],
        in_channels=in_channels,
        out_channels=shapes.get(LAST, (in_channels * patch_size**2,))[0] // patch_size**2,
        patch_size=patch_size,
        position_side=math.isqrt(shapes["pos_embed"][1]) if "pos_embed" in shapes else 0,
        norms_queries=QUERY_NORM in shapes,
        dual_blocks=frozenset(
            index for index in range(num_blocks) if f"joint_blocks.{index}.x_block.attn2.qkv.weight" in shapes
        ),
        num_text_layers=count_children(shapes, "context_processor.layers"),
    )


class Embedder(nn.Module):
    """Two layers that embed a vector [B, in] -> [B, D]."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(in_width, width), nn.SiLU(), Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(x)
        return out


def computed_places(width: int, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return sinusoids of columns and rows [P, D], float32, for a grid whose shorter side runs from 0 to 15."""
    sides = []
    for number in (rows, columns):
        reach = number / min(rows, columns) * PLACES_MIDDLE
        sides.append(torch.linspace(PLACES_MIDDLE - reach, PLACES_MIDDLE + reach, number, device=device))
    row, column = torch.meshgrid(*sides, indexing="ij")
    steps = torch.arange(width // 4, device=device, dtype=torch.float32) / (width // 4)
    parts = []
    for places in (column, row):
        angles = places.reshape(-1)[:, None] * (1.0 / PLACES_THETA**steps)[None]
        parts += [angles.sin(), angles.cos()]
    return torch.cat(parts, dim=1)


class PatchEmbedder(nn.Module):
    def __init__(self, in_channels: int, config: Sd3Config) -> None:
        super().__init__()
        self.proj = Conv2d(in_channels, config.width, config.patch_size, stride=config.patch_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches: torch.Tensor = self.proj(x)  # [B, D, h / patch, w / patch]
        return tokens_of(patches)


class StreamAttention(nn.Module):
    """Queries, keys and values of a stream, and the projection of what it attended to."""

    def __init__(self, config: Sd3Config, *, has_output: bool = True) -> None:
        super().__init__()
        self.qkv = Linear(config.width, config.width * 3)
        if has_output:
            self.proj = Linear(config.width, config.width)
        self.norms_queries = config.norms_queries
        if config.norms_queries:
            self.ln_q, self.ln_k = RmsNorm(HEAD_WIDTH), RmsNorm(HEAD_WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[Part, Part, torch.Tensor]:
        """Return the heads [B, T, H, 64] of queries and keys, each with its norm, and values [B, T, D]."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        heads = (*q.shape[:2], -1, HEAD_WIDTH)
        norms = (self.ln_q, self.ln_k) if self.norms_queries else (None, None)
        return (q.view(heads), norms[0]), (k.view(heads), norms[1]), v


class JoinedAttention(nn.Module):
    """Attention of the tokens of all streams, whose queries, keys and values `StreamAttention` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(
        self, streams: Sequence[tuple[Part, Part, torch.Tensor]], options: Options | None = None
    ) -> torch.Tensor:
        """Return [B, T, D], the streams behind each other."""
        q, k = self.rotary_heads([stream[0] for stream in streams], [stream[1] for stream in streams], None)
        values = [stream[2] for stream in streams]
        v = values[0] if len(values) == 1 else torch.cat(values, dim=1)
        return optimized_attention(q.flatten(2), k.flatten(2), v, q.shape[2], transformer_options=options)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, width * 4), Linear(width * 4, width)
        self.activation = Gelu("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class StreamBlock(nn.Module):
    """The layers of one stream in a block. The last block of the text has no output: nothing reads it."""

    def __init__(self, config: Sd3Config, *, is_dual: bool = False, has_output: bool = True) -> None:
        super().__init__()
        self.has_output, self.is_dual = has_output, is_dual
        self.attn = StreamAttention(config, has_output=has_output)
        if is_dual:
            self.attn2 = StreamAttention(config)
        if has_output:
            self.mlp = FeedForward(config.width)
        num_vectors = 9 if is_dual else 6 if has_output else 2
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.width, num_vectors * config.width))
        self.attention = JoinedAttention()
        self.adaptive_norm, self.residual = AdaptiveNorm(is_joined=True), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def vectors(self, c: torch.Tensor) -> Parts:
        """Return the modulation [B, 1, D] each: shift, scale; gate, shift, scale and gate of the feed-forward layers.

        A dual block has shift, scale and gate of its second attention behind them.
        """
        num_vectors = 9 if self.is_dual else 6 if self.has_output else 2
        parts: Parts = self.adaLN_modulation(c).unsqueeze(1).chunk(num_vectors, dim=2)
        return parts

    def modulated(self, x: torch.Tensor, c: Parts) -> torch.Tensor:
        """Return the norm of the stream [B, T, D] with shift and scale."""
        out: torch.Tensor = self.adaptive_norm(x, c[1], c[0])
        return out

    def finish(self, x: torch.Tensor, attended: torch.Tensor, second: torch.Tensor | None, c: Parts) -> torch.Tensor:
        """Return the stream [B, T, D] after what it attended to, and the feed-forward layers."""
        gate, shift_mlp, scale_mlp, gate_mlp = c[2:6]
        first = self.attn.proj(attended)
        if second is None:
            x, normed = self.residual_norm(x, first, gate, scale_mlp, shift_mlp)
        else:
            x = torch.stack([x, gate * first, c[8] * self.attn2.proj(second)]).sum(dim=0)
            normed = self.adaptive_norm(x, scale_mlp, shift_mlp)
        out: torch.Tensor = self.residual(x, self.mlp(normed), gate_mlp)
        return out

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Return the stream [B, T, D] after a block that attends to nothing else. `c` is [B, D]."""
        vectors = self.vectors(c)
        attended = self.attention([self.attn(self.modulated(x, vectors))])
        return self.finish(x, attended, None, vectors)


class JointBlock(nn.Module):
    def __init__(self, config: Sd3Config, index: int, *, is_last: bool) -> None:
        super().__init__()
        self.attention = JoinedAttention()
        self.context_block = StreamBlock(config, has_output=not is_last)
        self.x_block = StreamBlock(config, is_dual=index in config.dual_blocks)

    def forward(
        self, context: torch.Tensor, x: torch.Tensor, c: torch.Tensor, transformer_options: Options
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the text [B, T, D] (None after the last block) and the image [B, P, D]."""
        text, image = self.context_block, self.x_block
        text_vectors, vectors = text.vectors(c), image.vectors(c)
        streams = [text.attn(text.modulated(context, text_vectors)), image.attn(image.modulated(x, vectors))]
        attended = self.attention(streams, transformer_options)
        num_tokens = context.shape[1]
        second = None
        if image.is_dual:
            own = image.attn2(image.modulated(x, vectors[6:8]))
            second = image.attention([own], transformer_options)
        finished = text.finish(context, attended[:, :num_tokens], None, text_vectors) if text.has_output else None
        return finished, image.finish(x, attended[:, num_tokens:], second, vectors)


class FinalLayer(nn.Module):
    def __init__(self, config: Sd3Config) -> None:
        super().__init__()
        self.linear = Linear(config.width, config.patch_size**2 * config.out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.width, 2 * config.width))
        self.adaptive_norm = AdaptiveNorm(is_joined=True)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift, scale = self.adaLN_modulation(c).unsqueeze(1).chunk(2, dim=2)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


class TextLayer(nn.Module):
    """Attention and feed-forward layers of the text [B, T, C] alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"qkv": Linear(width, width * 3), "proj": Linear(width, width)})
        self.mlp = FeedForward(width)
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attn["qkv"](self.adaptive_norm(x)).chunk(3, dim=-1)
        attended = self.attn["proj"](optimized_attention(q, k, v, TEXT_HEADS))
        x, normed = self.residual_norm(x, attended, None, None)
        out: torch.Tensor = self.residual(x, self.mlp(normed))
        return out


class TextProcessor(nn.Module):
    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TextLayer(width) for _ in range(num_layers))
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.adaptive_norm(x)
        return out


class Sd3Trunk(nn.Module):
    """The layers before the last one, which networks that steer such a transformer have as well.

    With `ends` the text of the last block has no output.
    """

    def __init__(self, config: Sd3Config, *, ends: bool) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        if config.position_side:
            self.pos_embed = nn.Parameter(torch.empty(1, config.position_side**2, config.width))
        if config.num_text_layers:
            self.context_processor = TextProcessor(config.context_dim, config.num_text_layers)
        self.x_embedder = PatchEmbedder(config.in_channels, config)
        self.t_embedder = Embedder(TIME_WIDTH, config.width)
        self.y_embedder = Embedder(config.label_dim, config.width)
        self.context_embedder = Linear(config.context_dim, config.width)
        self.joint_blocks = nn.ModuleList(
            JointBlock(config, index, is_last=ends and index == config.num_blocks - 1)
            for index in range(config.num_blocks)
        )

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.context_embedder.weight.dtype

    def vector(self, timesteps: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the vector [B, D] that modulates the blocks, of time and labels."""
        time: torch.Tensor = self.t_embedder(timestep_embedding(timesteps, TIME_WIDTH).to(dtype))
        labels: torch.Tensor = self.y_embedder(y)
        return time + labels

    def text(self, context: torch.Tensor) -> torch.Tensor:
        """Return the text's tokens [B, T, D] for the blocks."""
        if self.config.num_text_layers:
            context = self.context_processor(context)
        embedded: torch.Tensor = self.context_embedder(context)
        return embedded

    def places(self, x: torch.Tensor) -> torch.Tensor:
        """Return the places [1, P, D] of a latent's patches, those that are learned from the middle of their square.

        Raises ValueError for a latent that is larger than the square.
        """
        side, patch = self.config.position_side, self.config.patch_size
        rows, columns = x.shape[-2] // patch, x.shape[-1] // patch
        if not side:
            return computed_places(self.config.width, rows, columns, x.device)[None]
        if max(rows, columns) > side:
            most = side * patch
            got = f"{x.shape[-1]} x {x.shape[-2]}"
            raise ValueError(f"latent: it is larger than the network's table of places; got {got}, expected {most}")
        top, left = (side - rows) // 2, (side - columns) // 2
        square = self.pos_embed.view(1, side, side, -1)
        return square[:, top : top + rows, left : left + columns].flatten(1, 2)


class Sd3Transformer(Sd3Trunk):
    """`forward(x [B, in, h, w], timesteps [B], context [B, T, D], y [B, label_dim])` -> `[B, out, h, w]`.

    `control` holds a list of additions to the image [B, P, D] by block under `output`. Built without weights being
    drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: Sd3Config) -> None:
        super().__init__(config, ends=True)
        self.final_layer = FinalLayer(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor,
        control: dict[str, list[torch.Tensor | None]] | None = None,
        transformer_options: Options | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, self.config.patch_size)
        patches = self.x_embedder(padded) + self.places(padded).to(x)  # [B, P, D]
        c = self.vector(timesteps, y, x.dtype)  # [B, D]
        patches = self._blocks(patches, self.text(context), c, control, options)
        tokens = self.final_layer(patches, c)
        out = image_channels_last(tokens, padded.shape[-2], padded.shape[-1], self.config.patch_size)
        return out[..., :height, :width]

    def _blocks(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None,
        c: torch.Tensor,
        control: dict[str, list[torch.Tensor | None]] | None,
        options: Options,
    ) -> torch.Tensor:
        replaced = options.get("patches_replace", {}).get("dit", {})
        additions = [] if control is None else control.get("output", [])
        for index, block in enumerate(self.joint_blocks):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                context, x = block(context, x, c, options)
            else:
                given = {"img": x, "txt": context, "vec": c, "transformer_options": options}
                out = replacement(given, {"original_block": two_stream_call(block)})
                context, x = out["txt"], out["img"]
            if index < len(additions) and (addition := additions[index]) is not None:
                x = x + addition.to(x.dtype)
        return x
