"""The transformer of AuraFlow (fal 2024), of any width and depth: streams of text and image, then one of both.

Learned register tokens (Darcet et al. 2023, arXiv 2309.16588) stand before the text. `B` batch, `C` channels, `h w`
latent cells, `T` tokens, `D` width, `G` width of the time. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)` or `("single_block", index)`, called with the block's inputs and
`{"original_block": ...}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction, two_stream_call
from darkroom.engine.layers.patches import PATCH, image_channels_last, pad_to_patches, patches_of
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 256
TIME_WIDTH = 256  # of the sinusoids of the time
TIME_FACTOR = 1000.0
NUM_REGISTERS = 8
NORM_EPS = 1e-5
MARK = "cond_seq_linear.weight"
FEED_FORWARD = ("double_layers.0.mlpX.c_fc1.weight", "single_layers.0.mlp.c_fc1.weight")


@dataclass(frozen=True, slots=True)
class AuraFlowConfig:
    """Configuration of the network. The table of places is a square of `position_side`."""

    width: int
    num_double: int
    num_single: int
    context_dim: int
    time_dim: int
    inner_width: int
    position_side: int = 32
    num_registers: int = NUM_REGISTERS
    in_channels: int = 4
    out_channels: int = 4

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def aura_flow_config(shapes: Shapes) -> AuraFlowConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, context_dim = shapes[MARK]
    feed_forward = next((name for name in FEED_FORWARD if name in shapes), FEED_FORWARD[0])
    return AuraFlowConfig(
        width=width,
        num_double=count_children(shapes, "double_layers"),
        num_single=count_children(shapes, "single_layers"),
        context_dim=context_dim,
        time_dim=shapes["t_embedder.mlp.0.weight"][0],
        inner_width=shapes[feed_forward][0],
        position_side=math.isqrt(shapes["positional_encoding"][1]),
        num_registers=shapes["register_tokens"][1],
        in_channels=shapes["init_x_linear.weight"][1] // PATCH**2,
        out_channels=shapes["final_linear.weight"][0] // PATCH**2,
    )


class GatedLayers(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.c_fc1, self.c_fc2 = (Linear(width, inner, bias=False) for _ in range(2))
        self.c_proj = Linear(inner, width, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.c_proj(self.activation(self.c_fc1(x), self.c_fc2(x)))
        return out


class ModulationLayer(nn.Sequential):
    """`parts(time [B, G])` -> shift, scale, gate of attention, then of the feed-forward layers, [B, 1, D] each."""

    def __init__(self, time_dim: int, width: int, count: int = 6) -> None:
        super().__init__(nn.SiLU(), Linear(time_dim, count * width, bias=False))
        self.count = count

    def parts(self, time: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self(time)[:, None].chunk(self.count, dim=2))


class StreamsAttention(nn.Module):
    """Attention of one stream (layers `w1`), or of text (`w1`) and image (`w2`) together."""

    def __init__(self, width: int, heads: int, num_streams: int) -> None:
        super().__init__()
        self.heads = heads
        self.num_streams = num_streams
        for stream in range(1, num_streams + 1):
            for kind in "qkvo":
                self.add_module(f"w{stream}{kind}", Linear(width, width, bias=False))
        self.head_norm = nn.LayerNorm(width // heads, NORM_EPS, elementwise_affine=False)
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, streams: tuple[torch.Tensor, ...], options: Options | None) -> tuple[torch.Tensor, ...]:
        """Return the attended tokens of each stream [B, T, D]."""
        queries, keys, values = (self._heads(streams, kind) for kind in "qkv")
        q, k = self.rotary_heads([(x, self.head_norm) for x in queries], [(x, self.head_norm) for x in keys], None)
        q, k, v = (item.transpose(1, 2) for item in (q, k, torch.cat(values, dim=1)))  # [B, H, T, 256]
        out = optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        parts = torch.split(out, [x.shape[1] for x in streams], dim=1)
        return tuple(self.get_submodule(f"w{place}o")(part) for place, part in enumerate(parts, start=1))

    def _heads(self, streams: tuple[torch.Tensor, ...], kind: str) -> list[torch.Tensor]:
        """Return the queries, keys or values of each stream [B, T, H, 256]."""
        projected = (self.get_submodule(f"w{place}{kind}")(x) for place, x in enumerate(streams, start=1))
        return [x.view(*x.shape[:2], self.heads, -1) for x in projected]


class FedLayers(nn.Module):
    """Residuals behind the attention of a stream: it and the feed-forward layers start from the block's input."""

    def __init__(self) -> None:
        super().__init__()
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm(eps=NORM_EPS))

    def forward(
        self, x: torch.Tensor, attended: torch.Tensor, parts: tuple[torch.Tensor, ...], feed_forward: nn.Module
    ) -> torch.Tensor:
        """Return a stream [B, T, D] behind its attention and feed-forward layers."""
        _, _, gate, shift, scale, feed_gate = parts
        _, normed = self.residual_norm(x, attended, gate, scale, shift)
        out: torch.Tensor = self.residual(x, feed_forward(normed), feed_gate)
        return out


class DoubleLayer(nn.Module):
    def __init__(self, config: AuraFlowConfig) -> None:
        super().__init__()
        self.mlpC, self.mlpX = (GatedLayers(config.width, config.inner_width) for _ in range(2))
        self.modC, self.modX = (ModulationLayer(config.time_dim, config.width) for _ in range(2))
        self.attn = StreamsAttention(config.width, config.heads, 2)
        self.adaptive_norm, self.fed = AdaptiveNorm(eps=NORM_EPS), FedLayers()

    def forward(
        self, text: torch.Tensor, image: torch.Tensor, time: torch.Tensor, options: Options | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return text and image [B, T, D] each. `time` is [B, G]."""
        of_text, of_image = self.modC.parts(time), self.modX.parts(time)
        inputs = (
            self.adaptive_norm(text, of_text[1], of_text[0]),
            self.adaptive_norm(image, of_image[1], of_image[0]),
        )
        text_out, image_out = self.attn(inputs, options)
        text = self.fed(text, text_out, of_text, self.mlpC)
        return text, self.fed(image, image_out, of_image, self.mlpX)


class SingleLayer(nn.Module):
    def __init__(self, config: AuraFlowConfig) -> None:
        super().__init__()
        self.modCX = ModulationLayer(config.time_dim, config.width)
        self.attn = StreamsAttention(config.width, config.heads, 1)
        self.mlp = GatedLayers(config.width, config.inner_width)
        self.adaptive_norm, self.fed = AdaptiveNorm(eps=NORM_EPS), FedLayers()

    def forward(self, x: torch.Tensor, time: torch.Tensor, options: Options | None = None) -> torch.Tensor:
        """Return text and image behind each other [B, T, D]."""
        parts = self.modCX.parts(time)
        (attended,) = self.attn((self.adaptive_norm(x, parts[1], parts[0]),), options)
        out: torch.Tensor = self.fed(x, attended, parts, self.mlp)
        return out


class TimeEmbedder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(TIME_WIDTH, width), nn.SiLU(), Linear(width, width))

    def forward(self, time: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Embed times [B] from 0 to 1 as [B, G]."""
        out: torch.Tensor = self.mlp(timestep_embedding(time * TIME_FACTOR, TIME_WIDTH).to(dtype))
        return out


class AuraFlowTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, T, D])` -> `[B, C, h, w]`.

    Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: AuraFlowConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.t_embedder = TimeEmbedder(config.time_dim)
        self.cond_seq_linear = Linear(config.context_dim, config.width, bias=False)
        self.init_x_linear = Linear(config.in_channels * PATCH * PATCH, config.width)
        self.positional_encoding = nn.Parameter(torch.empty(1, config.position_side**2, config.width))
        self.register_tokens = nn.Parameter(torch.empty(1, config.num_registers, config.width))
        self.double_layers = nn.ModuleList(DoubleLayer(config) for _ in range(config.num_double))
        self.single_layers = nn.ModuleList(SingleLayer(config) for _ in range(config.num_single))
        self.final_linear = Linear(config.width, config.out_channels * PATCH * PATCH, bias=False)
        self.modF = ModulationLayer(config.time_dim, config.width, 2)
        self.modulated = AdaptiveNorm("none")

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.cond_seq_linear.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, PATCH)
        rows, columns = padded.shape[-2] // PATCH, padded.shape[-1] // PATCH
        image = self.init_x_linear(patches_of(padded)) + self._places(rows, columns).to(x)
        text = self.cond_seq_linear(context)
        registers = self.register_tokens.to(text).expand(text.shape[0], -1, -1)
        time = self.t_embedder(timesteps, x.dtype)
        tokens = self._blocks(torch.cat([registers, text], dim=1), image, time, options)
        shift, scale = self.modF.parts(time)
        out = self.final_linear(self.modulated(tokens, scale, shift))  # [B, T, 4 * C]
        return image_channels_last(out, *padded.shape[-2:])[..., :height, :width]

    def _places(self, rows: int, columns: int) -> torch.Tensor:
        """Return the learned places [1, T, D] of a latent's patches, from the middle of the square.

        A latent larger than the square gets a square interpolated to its longer side.
        """
        side = self.config.position_side
        square: torch.Tensor = self.positional_encoding.view(1, side, side, -1)
        longest = max(rows, columns)
        if longest > side:
            square = functional.interpolate(square.movedim(-1, 1), (longest, longest), mode="bilinear").movedim(1, -1)
            side = longest
        top, left = (side - rows) // 2, (side - columns) // 2
        return square[:, top : top + rows, left : left + columns].flatten(1, 2)

    def _blocks(self, text: torch.Tensor, image: torch.Tensor, time: torch.Tensor, options: Options) -> torch.Tensor:
        """Return the image's tokens [B, T, D] after all blocks, or what custom nodes have put in their places."""
        replaced = options.get("patches_replace", {}).get("dit", {})
        shared = {"vec": time, "transformer_options": options}
        for index, layer in enumerate(self.double_layers):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                text, image = layer(text, image, time, options)
            else:
                given = {"img": image, "txt": text, **shared}
                out = replacement(given, {"original_block": two_stream_call(layer)})
                text, image = out["txt"], out["img"]
        x: torch.Tensor = torch.cat([text, image], dim=1)
        for index, layer in enumerate(self.single_layers):
            replacement = replaced.get(("single_block", index))
            if replacement is None:
                x = layer(x, time, options)
            else:
                x = replacement({"img": x, **shared}, {"original_block": _single_function(layer)})["img"]
        return x[:, text.shape[1] :]


def _single_function(layer: nn.Module) -> BlockFunction:
    """Return a block of one stream in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"img": layer(args["img"], args["vec"], args["transformer_options"])}

    return original
