"""The transformer of HiDream-I1 (HiDream.ai 2025, arXiv 2505.22705), of any width and depth.

Blocks of two streams, one for the image and one for the text, are followed by blocks of one stream for both. Every
block sees, behind the text of all blocks, the output of one layer of a language model. The feed-forward layers of the
image are experts, of which each token passes those that a gate selects (Shazeer et al. 2017, arXiv 1701.06538).
Places are rotations (Su et al. 2021, arXiv 2104.09864) on three axes, of which the text has none. `B` batch, `C`
channels, `h w` latent cells, `T` tokens, `D` width, `L` layers of the language model. Module names are those of the
original checkpoints. The output is the noise minus the image, as other flow networks give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.transformer import FinalLayer
from darkroom.engine.families.lumina2.transformer import image_places
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.feed_forward import GatedFeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, image_channels_last, pad_to_patches, patches_channels_last
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    Part,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 128
AXES = (64, 32, 32)  # channels of a head that rotate by image, row and column
SINUSOID_WIDTH = 256  # of the time
NORM_EPS = 1e-5
NUM_CHOSEN = 2  # experts that a token passes
MARK = "caption_projection.0.linear.weight"
FIRST = "double_stream_blocks.0.block."


@dataclass(frozen=True, slots=True)
class HiDreamConfig:
    """Configuration of the network.

    `text_dim` is the width of the text of all blocks, `language_dim` that of the language model's layers, `label_dim`
    that of the pooled text. Experts have `expert_width`, the one that all tokens pass `shared_width`, the text's layers
    `text_width`. Without experts (`num_experts` 0) the image's layers have `expert_width`.
    """

    width: int
    num_double: int
    num_single: int
    text_dim: int
    language_dim: int
    label_dim: int
    expert_width: int
    shared_width: int
    text_width: int
    num_experts: int = 4
    in_channels: int = 16
    out_channels: int = 16

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def hidream_config(shapes: Shapes) -> HiDreamConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, language_dim = shapes[MARK]
    num_double, num_single = (count_children(shapes, f"{name}_stream_blocks") for name in ("double", "single"))
    num_experts = count_children(shapes, f"{FIRST}ff_i.experts")
    expert = f"{FIRST}ff_i.experts.0" if num_experts else f"{FIRST}ff_i"
    return HiDreamConfig(
        width=width,
        num_double=num_double,
        num_single=num_single,
        text_dim=shapes[f"caption_projection.{num_double + num_single}.linear.weight"][1],
        language_dim=language_dim,
        label_dim=shapes["p_embedder.pooled_embedder.linear_1.weight"][1],
        expert_width=shapes[f"{expert}.w1.weight"][0],
        shared_width=shapes[f"{FIRST}ff_i.shared_experts.w1.weight"][0] if num_experts else 0,
        text_width=shapes[f"{FIRST}ff_t.w1.weight"][0],
        num_experts=num_experts,
        in_channels=shapes["x_embedder.proj.weight"][1] // PATCH**2,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
    )


# --- layers ----------------------------------------------------------------------------------------------------------


class Embedder(nn.Module):
    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(in_width, width), Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_2(functional.silu(self.linear_1(x)))
        return out


class ExpertGate(nn.Module):
    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors and the numbers of the experts that each token [N, D] passes [N, 2] each."""
        scores = functional.linear(x, self.weight.to(x.dtype)).softmax(dim=-1)
        factors, chosen = scores.topk(NUM_CHOSEN, dim=-1, sorted=False)
        return factors, chosen


class ExpertLayers(nn.Module):
    """Feed-forward layers of which each token passes two, and those that all tokens pass.

    How many tokens pass each expert is known on the device alone, and sizes of products are the host's: it waits once,
    so that a CUDA graph cannot hold the layers. Without a wait each expert would have to pass all tokens, twice the
    work of layers that are most of the network's.
    """

    def __init__(self, config: HiDreamConfig) -> None:
        super().__init__()
        self.shared_experts = GatedFeedForward(config.width, config.shared_width)
        self.experts = nn.ModuleList(
            GatedFeedForward(config.width, config.expert_width) for _ in range(config.num_experts)
        )
        self.gate = ExpertGate(config.width, config.num_experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])  # [N, D]
        factors, chosen = self.gate(tokens)
        order = chosen.flatten().argsort(stable=True)  # [2 N], by expert, each one's tokens in their order
        rows = order // NUM_CHOSEN
        numbers = torch.arange(len(self.experts), device=x.device)
        counts: list[int] = (chosen.flatten()[:, None] == numbers).sum(dim=0).tolist()
        passed = tokens.new_empty(len(order), x.shape[-1])
        for expert, last, count in zip(self.experts, accumulate(counts), counts, strict=True):
            if count:
                passed[last - count : last] = expert(tokens[rows[last - count : last]])
        parts = torch.empty_like(passed).index_copy_(0, order, passed).view(*chosen.shape, -1)  # [N, 2, D]
        out: torch.Tensor = (parts * factors.unsqueeze(-1)).sum(dim=1).view(x.shape) + self.shared_experts(x)
        return out


class StreamAttention(nn.Module):
    """Attention of the image's tokens, and of the text's with layers of its own where there are two streams."""

    def __init__(self, config: HiDreamConfig, *, is_single: bool) -> None:
        super().__init__()
        self.heads = config.heads
        for end in ("",) if is_single else ("", "_t"):
            for name in ("to_q", "to_k", "to_v", "to_out"):
                self.add_module(f"{name}{end}", Linear(config.width, config.width))
            for name in ("q_rms_norm", "k_rms_norm"):
                self.add_module(f"{name}{end}", RmsNorm(config.width, NORM_EPS))
        self.rotary_heads = RotaryHeads(num_heads=config.heads)

    def forward(self, streams: Sequence[torch.Tensor], pe: torch.Tensor, options: Options | None) -> list[torch.Tensor]:
        """Return the streams [B, T, D], image first, each with the tokens of all attended to."""
        parts = [self._split(x, end) for x, end in zip(streams, ("", "_t"), strict=False)]
        queries, keys, values = zip(*parts, strict=True)
        q, k = self.rotary_heads(queries, keys, pe)  # [B, H, T, 128]
        v = torch.cat(values, dim=2)
        attended = optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        lengths = [x.shape[1] for x in streams]
        return [
            self.get_submodule(f"to_out{end}")(part)
            for part, end in zip(torch.split(attended, lengths, dim=1), ("", "_t"), strict=False)
        ]

    def _split(self, x: torch.Tensor, end: str) -> tuple[Part, Part, torch.Tensor]:
        """Return queries and keys of a stream [B, T, D] with their norms, and values [B, H, T, 128]."""
        q, k, v = (self.get_submodule(f"to_{name}{end}")(x) for name in "qkv")
        q_norm, k_norm = (self.get_submodule(f"{name}_rms_norm{end}") for name in "qk")
        return (q, q_norm), (k, k_norm), v.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def image_layers(config: HiDreamConfig) -> nn.Module:
    """Return the feed-forward layers of the image."""
    return ExpertLayers(config) if config.num_experts else GatedFeedForward(config.width, config.expert_width)


class SingleBlock(nn.Module):
    def __init__(self, config: HiDreamConfig) -> None:
        super().__init__()
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.width, 6 * config.width))
        self.attn1 = StreamAttention(config, is_single=True)
        self.ff_i = image_layers(config)
        self.adaptive_norm, self.residual = AdaptiveNorm(is_joined=True), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(self, x: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return image and text behind each other [B, T, D]. `vec` is [B, D]."""
        shift, scale, gate, inner_shift, inner_scale, inner_gate = self.adaLN_modulation(vec)[:, None].chunk(6, dim=-1)
        (attended,) = self.attn1([self.adaptive_norm(x, scale, shift)], pe, options)
        x, normed = self.residual_norm(x, attended, gate, inner_scale, inner_shift)
        out: torch.Tensor = self.residual(x, self.ff_i(normed), inner_gate)
        return out


class DoubleBlock(nn.Module):
    def __init__(self, config: HiDreamConfig) -> None:
        super().__init__()
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.width, 12 * config.width))
        self.attn1 = StreamAttention(config, is_single=False)
        self.ff_i = image_layers(config)
        self.ff_t = GatedFeedForward(config.width, config.text_width)
        self.adaptive_norm, self.residual = AdaptiveNorm(is_joined=True), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return image and text [B, T, D] each. `vec` is [B, D]."""
        parts = self.adaLN_modulation(vec)[:, None].chunk(12, dim=-1)
        image, text = parts[:6], parts[6:]
        given = [self.adaptive_norm(img, image[1], image[0]), self.adaptive_norm(txt, text[1], text[0])]
        attended, attended_text = self.attn1(given, pe, options)
        img, normed = self.residual_norm(img, attended, image[2], image[4], image[3])
        img = self.residual(img, self.ff_i(normed), image[5])
        txt, normed = self.residual_norm(txt, attended_text, text[2], text[4], text[3])
        return img, self.residual(txt, self.ff_t(normed), text[5])


class Wrapped(nn.Module):
    """A layer behind a name of the original checkpoints."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, layer)

    def forward(self, *inputs: Any) -> Any:
        return self.get_submodule(self.name)(*inputs)


# --- network ---------------------------------------------------------------------------------------------------------


class HiDreamTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, T, text_dim], y [B, label_dim])` -> `[B, C, h, w]`.

    `encoder_hidden_states_llama3` are the outputs of the language model's layers [B, L, T, language_dim]; blocks beyond
    its depth see the last one. `image_cond` is an image [B, C, h, w'] beside the one that is drawn. Built without
    weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: HiDreamConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.t_embedder = Wrapped("timestep_embedder", Embedder(SINUSOID_WIDTH, config.width))
        self.p_embedder = Wrapped("pooled_embedder", Embedder(config.label_dim, config.width))
        self.x_embedder = Wrapped("proj", Linear(PATCH * PATCH * config.in_channels, config.width))
        self.double_stream_blocks = nn.ModuleList(
            Wrapped("block", DoubleBlock(config)) for _ in range(config.num_double)
        )
        self.single_stream_blocks = nn.ModuleList(
            Wrapped("block", SingleBlock(config)) for _ in range(config.num_single)
        )
        self.final_layer = FinalLayer(config.width, PATCH * PATCH * config.out_channels)
        text_widths = [config.language_dim] * (config.num_double + config.num_single) + [config.text_dim]
        self.caption_projection = nn.ModuleList(
            Wrapped("linear", Linear(width, config.width, bias=False)) for width in text_widths
        )

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.final_layer.linear.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        encoder_hidden_states_llama3: torch.Tensor,
        image_cond: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        height, width = x.shape[-2:]
        padded = pad_to_patches(x if image_cond is None else torch.cat([x, image_cond], dim=-1), PATCH)
        vec = self.t_embedder(timestep_embedding(timesteps, SINUSOID_WIDTH).to(x.dtype)) + self.p_embedder(y)
        layers, text = self._texts(context, encoder_hidden_states_llama3)
        img = self.x_embedder(patches_channels_last(padded))
        pe = self._rotations(padded, text.shape[1] + layers[0].shape[1])
        num_cells, num_tokens = img.shape[1], text.shape[1]
        for block, layer in zip(self.double_stream_blocks, layers, strict=False):
            img, txt = block(img, torch.cat([text, layer], dim=1), vec, pe, transformer_options)
            text = txt[:, :num_tokens]
        tokens = torch.cat([img, text], dim=1)
        for block, layer in zip(self.single_stream_blocks, layers[self.config.num_double :], strict=True):
            joined = block(torch.cat([tokens, layer], dim=1), vec, pe, transformer_options)
            tokens = joined[:, : num_cells + num_tokens]
        drawn = self.final_layer(tokens[:, :num_cells], vec)
        return -image_channels_last(drawn, *padded.shape[-2:])[..., :height, :width]

    def _texts(self, context: torch.Tensor, states: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the language model's states for each block [B, T, D], and the text of all blocks [B, T, D]."""
        *projections, last = self.caption_projection
        deepest = states.shape[1] - 1
        layers = [projection(states[:, min(index, deepest)]) for index, projection in enumerate(projections)]
        return layers, torch.cat([last(context), layers[-1]], dim=1)

    def _rotations(self, padded: torch.Tensor, num_tokens: int) -> torch.Tensor:
        places = image_places(padded.shape[-2] // PATCH, padded.shape[-1] // PATCH, 0, padded.device)
        return rotations(functional.pad(places, (0, 0, 0, num_tokens)), AXES)
