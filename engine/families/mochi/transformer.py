"""The transformer of Mochi (Genmo 2024, Mochi 1 preview), of any width and depth.

Tokens of a video and of a text, of another width, attend together; each has layers of its own. Places are rotations (Su
et al. 2021, arXiv 2104.09864) whose frequencies along time, rows and columns are learned for every head. `B` batch, `C`
channels, `F` latent frames, `h w` latent cells, `T` tokens of the video, `S` of the text, `D` width. Module names are
those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, tokens_of
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

TIME_WIDTH = 256  # of the sinusoids of the time
TIME_SCALE = 1000.0
NORM_EPS, ATTENTION_NORM_EPS = 1e-6, 1e-5
POOLING_HEADS = 8
INNER_MULTIPLE = 256  # of the width within feed-forward layers
PLACES_AREA = 36864  # rows times columns that places are stretched to

MARK = "t5_yproj.weight"
FIRST = "x_embedder.proj.weight"

Rotations = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [T, heads, D / heads / 2]


@dataclass(frozen=True, slots=True)
class MochiConfig:
    """Configuration of the network. Heads are those of the video's width."""

    width: int = 3072
    text_width: int = 1536
    num_blocks: int = 48
    heads: int = 24
    context_dim: int = 4096
    in_channels: int = 12


def mochi_config(shapes: Shapes) -> MochiConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_channels, *_ = shapes[FIRST]
    text_width, context_dim = shapes[MARK]
    return MochiConfig(
        width=width,
        text_width=text_width,
        num_blocks=count_children(shapes, "blocks"),
        heads=shapes["pos_frequencies"][1],
        context_dim=context_dim,
        in_channels=in_channels,
    )


def places(frames: int, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return frame, row and column [T, 3] of each token; rows and columns are centred and stretched to one area."""
    stretch = math.sqrt(PLACES_AREA / (rows * columns))
    sides = (_centres(number, stretch, device) for number in (rows, columns))
    axes = (torch.arange(frames, dtype=torch.float32, device=device), *sides)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).view(-1, 3)


def _centres(number: int, stretch: float, device: torch.device) -> torch.Tensor:
    edges = torch.linspace(-number * stretch / 2, number * stretch / 2, number + 1, device=device)
    return (edges[:-1] + edges[1:]) / 2


class GatedLayers(nn.Module):
    """Feed-forward layers, one half of whose inner channels gates the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = INNER_MULTIPLE * math.ceil(int(2 * 4 * width / 3) / INNER_MULTIPLE)
        self.w1, self.w2 = Linear(width, 2 * inner, bias=False), Linear(inner, width, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.w2(self.activation(self.w1(x)))
        return out


class TextPool(nn.Module):
    """Attention of a text's mean over its tokens: [B, S, context_dim] -> [B, D]."""

    def __init__(self, context_dim: int, width: int) -> None:
        super().__init__()
        self.to_kv, self.to_q = Linear(context_dim, 2 * context_dim), Linear(context_dim, context_dim)
        self.to_out = Linear(context_dim, width)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [B, D]. `mask` [B, S] is 1 where the text has tokens."""
        shares = mask[:, :, None].to(tokens.dtype)
        mean = (tokens * (shares / shares.sum(dim=1, keepdim=True).clamp(min=1))).sum(dim=1, keepdim=True)
        kv = self.to_kv(torch.cat([mean, tokens], dim=1)).unflatten(2, (2, POOLING_HEADS, -1))
        k, v = kv.transpose(1, 3).unbind(2)  # [B, heads, 1 + S, context_dim / heads]
        q = self.to_q(mean[:, 0]).unflatten(1, (POOLING_HEADS, -1))[:, :, None]
        seen = functional.pad(mask[:, None, None].bool(), (1, 0), value=True)
        out: torch.Tensor = self.to_out(scaled_dot_product_attention(q, k, v, attn_mask=seen).flatten(1))
        return out


class JointAttention(nn.Module):
    """Attention of the video's tokens and the text's among each other."""

    def __init__(self, config: MochiConfig, *, changes_text: bool) -> None:
        super().__init__()
        width, text_width, self.heads = config.width, config.text_width, config.heads
        self.qkv_x, self.qkv_y = Linear(width, 3 * width, bias=False), Linear(text_width, 3 * width, bias=False)
        self.q_norm_x, self.k_norm_x, self.q_norm_y, self.k_norm_y = (
            RmsNorm(width // self.heads, eps=ATTENTION_NORM_EPS) for _ in range(4)
        )
        self.proj_x = Linear(width, width)
        self.proj_y = Linear(width, text_width) if changes_text else nn.Identity()
        self.rotary_heads = RotaryHeads(RotaryLayout.PAIRS, token_dim=1)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, num_tokens: int, rotations: Rotations, options: Options
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return changes of video [B, T, D] and text [B, S, W], of whose tokens the first `num_tokens` take part."""
        q, k, v = self.qkv_x(x).unflatten(2, (3, self.heads, -1)).unbind(2)  # [B, T, heads, D / heads]
        text_q, text_k, text_v = self.qkv_y(y[:, :num_tokens]).unflatten(2, (3, self.heads, -1)).unbind(2)
        q, k = self.rotary_heads([(q, self.q_norm_x)], [(k, self.k_norm_x)], rotations)
        text_q, text_k = self.rotary_heads([(text_q, self.q_norm_y)], [(text_k, self.k_norm_y)], None)
        pairs = ((q, text_q), (k, text_k), (v, text_v))
        q, k, v = (torch.cat(pair, dim=1).transpose(1, 2) for pair in pairs)
        out = optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        seen = functional.pad(out[:, x.shape[1] :], (0, 0, 0, max(0, y.shape[1] - num_tokens)))
        return self.proj_x(out[:, : x.shape[1]]), self.proj_y(seen)


class MochiBlock(nn.Module):
    """A block; the last one of a network leaves the text as it is."""

    def __init__(self, config: MochiConfig, *, changes_text: bool) -> None:
        super().__init__()
        width, text_width = config.width, config.text_width
        self.changes_text = changes_text
        self.mod_x = Linear(width, 4 * width)
        self.mod_y = Linear(width, (4 if changes_text else 1) * text_width)
        self.attn = JointAttention(config, changes_text=changes_text)
        self.mlp_x = GatedLayers(width)
        if changes_text:
            self.mlp_y = GatedLayers(text_width)
        self.adaptive_norm, self.residual = AdaptiveNorm("rms", NORM_EPS), GatedResidual("rms", NORM_EPS, has_tanh=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        vec: torch.Tensor,
        y: torch.Tensor,
        num_tokens: int,
        rotations: Rotations,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of video [B, T, D] and text [B, S, W]. `vec` is [B, D]."""
        condition = functional.silu(vec)
        scale, gate, inner_scale, inner_gate = self.mod_x(condition)[:, None].chunk(4, dim=2)
        text_scale, *text = self.mod_y(condition)[:, None].chunk(4 if self.changes_text else 1, dim=2)
        given = self.adaptive_norm(x, scale), self.adaptive_norm(y, text_scale)
        change, text_change = self.attn(*given, num_tokens, rotations, options)
        x, normed = self.residual_norm(x, change, gate, inner_scale)
        x = self.residual(x, self.mlp_x(normed), inner_gate)
        if self.changes_text:
            y, normed = self.residual_norm(y, text_change, text[0], text[1])
            y = self.residual(y, self.mlp_y(normed), text[2])
        return x, y


class LastLayer(nn.Module):
    def __init__(self, width: int, out_channels: int) -> None:
        super().__init__()
        self.mod, self.linear = Linear(width, 2 * width), Linear(width, PATCH * PATCH * out_channels)
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        shift, scale = self.mod(functional.silu(vec))[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


class MochiTransformer(nn.Module):
    """`forward(x [B, C, F, h, w], timesteps [B], context [B, S, context_dim])` -> the flow `[B, C, F, h, w]`.

    `attention_mask` [B, S] is 1 where the text has tokens, the first `num_tokens` of which take part. `timesteps` are
    noise levels of 0 to 1. Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: MochiConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, PATCH, PATCH)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.x_embedder = nn.ModuleDict({"proj": nn.Conv2d(config.in_channels, width, PATCH, stride=PATCH)})
        times = {"0": Linear(TIME_WIDTH, width), "2": Linear(width, width)}
        self.t_embedder = nn.ModuleDict({"mlp": nn.ModuleDict(times)})
        self.t5_y_embedder = TextPool(config.context_dim, width)
        self.t5_yproj = Linear(config.context_dim, config.text_width)
        self.pos_frequencies = nn.Parameter(torch.empty(3, config.heads, width // config.heads // 2))
        last = config.num_blocks - 1
        self.blocks = nn.ModuleList(MochiBlock(config, changes_text=index < last) for index in range(config.num_blocks))
        self.final_layer = LastLayer(width, config.in_channels)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.t5_yproj.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
        num_tokens: int = 256,
        **kwargs: object,
    ) -> torch.Tensor:
        """Return the flow. Raises ValueError for sides that are no whole patches."""
        options = {} if transformer_options is None else transformer_options
        if x.shape[3] % PATCH or x.shape[4] % PATCH:
            raise ValueError(
                f"latent: sides of Mochi's latents are multiples of {PATCH} cells; got {x.shape[4]}x{x.shape[3]} "
                f"cells, expected {x.shape[4] // PATCH * PATCH}x{x.shape[3] // PATCH * PATCH}"
            )
        mask = torch.ones(context.shape[:2], device=x.device) if attention_mask is None else attention_mask
        img = self._embedded(x)
        vec = self._time_vector(1 - timesteps, img.dtype) + self.t5_y_embedder(context, mask)
        cos, sin = self._rotations(x)
        shared = {
            "vec": vec, "rope_cos": cos, "rope_sin": sin, "num_tokens": num_tokens, "transformer_options": options,
        }  # fmt: skip
        streams = {"img": img, "txt": self.t5_yproj(context)}
        replaced = options.get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.blocks):
            original = _as_function(block)
            replacement = replaced.get(("double_block", index))
            inputs = {**streams, **shared}
            streams = original(inputs) if replacement is None else replacement(inputs, {"original_block": original})
        flow: torch.Tensor = -self._video_of(self.final_layer(streams["img"], vec), x)
        return flow

    def _embedded(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, T, D] of a video's patches."""
        patches: torch.Tensor = self.x_embedder["proj"](x.transpose(1, 2).flatten(0, 1))  # [B * F, D, rows, columns]
        return tokens_of(patches).reshape(x.shape[0], -1, patches.shape[1])

    def _time_vector(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        layers: Any = self.t_embedder["mlp"]
        sinusoids = timestep_embedding(times * TIME_SCALE, TIME_WIDTH).to(dtype)
        out: torch.Tensor = layers["2"](functional.silu(layers["0"](sinusoids)))
        return out

    def _rotations(self, x: torch.Tensor) -> Rotations:
        frames, height, width = x.shape[2:]
        frequencies = self.pos_frequencies.to(x)
        where = places(frames, height // PATCH, width // PATCH, x.device).to(frequencies)
        angles = torch.einsum("Td,dhf->Thf", where, frequencies)
        return angles.cos(), angles.sin()

    def _video_of(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return patches [B, T, 4 * C], channels innermost, as a video of the shape of `like`."""
        batch, channels, frames, height, width = like.shape
        cells = tokens.view(batch, frames, height // PATCH, width // PATCH, PATCH, PATCH, channels)
        return cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(like.shape)


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        rotations = args["rope_cos"], args["rope_sin"]
        img, txt = block(
            args["img"], args["vec"], args["txt"], args["num_tokens"], rotations, args["transformer_options"]
        )
        return {"img": img, "txt": txt}

    return original
