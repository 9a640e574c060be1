"""The transformer of Boogu-Image (2026): OmniGen2's with blocks of two streams before those of one.

In a block of two streams text and images attend to each other, and images to themselves alone beside that; its
feed-forward layers read the tokens as they were before both. `B` batch, `T` tokens of images, `L` of text, `D` hidden
size, `W` channels of a head. Module names are those of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.omnigen2.layers import (
    NORM_EPS,
    GatedLayers,
    ModulatingNorm,
    OmniGen2Config,
    SharedKeyAttention,
    TimedBlock,
)
from darkroom.engine.families.omnigen2.transformer import OmniGen2Trunk
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, RotaryHeads
from darkroom.engine.layers.unet_layers import Options

MARK = "double_stream_layers.0.img_instruct_attn.processor.img_to_q.weight"
ATTENTION = "single_stream_layers.0.attn."

Streams = tuple[torch.Tensor, torch.Tensor]  # images [B, T, D] and text [B, L, D]


@dataclass(frozen=True, slots=True)
class BooguConfig(OmniGen2Config):
    """Configuration of the network; `num_layers` are the blocks of one stream."""

    num_double: int = 8


def boogu_config(shapes: Shapes) -> BooguConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    width, in_width = shapes["x_embedder.weight"]
    (head_width,) = shapes[f"{ATTENTION}norm_q.weight"]
    return BooguConfig(
        width=width,
        heads=shapes[f"{ATTENTION}to_q.weight"][0] // head_width,
        key_heads=shapes[f"{ATTENTION}to_k.weight"][0] // head_width,
        inner_width=shapes["single_stream_layers.0.feed_forward.linear_1.weight"][0],
        num_layers=count_children(shapes, "single_stream_layers"),
        num_double=count_children(shapes, "double_stream_layers"),
        context_dim=shapes["time_caption_embed.caption_embedder.1.weight"][1],
        time_width=shapes["time_caption_embed.timestep_embedder.linear_1.bias"][0],
        num_refiners=count_children(shapes, "noise_refiner"),
        in_channels=in_width // PATCH**2,
        num_references=shapes["image_index_embedding"][0],
    )


class StreamProjections(nn.Module):
    """Queries, keys and values of images and text, and what follows attention in each stream."""

    def __init__(self, config: BooguConfig) -> None:
        super().__init__()
        width, key_width = config.width, config.key_heads * config.head_width
        self.img_to_q, self.instruct_to_q = (Linear(width, width, bias=False) for _ in range(2))
        self.img_to_k, self.img_to_v, self.instruct_to_k, self.instruct_to_v = (
            Linear(width, key_width, bias=False) for _ in range(4)
        )
        self.img_out, self.instruct_out = (Linear(width, width, bias=False) for _ in range(2))


class JointAttention(nn.Module):
    """Attention over text and images together, whose keys and values serve several heads of queries."""

    def __init__(self, config: BooguConfig) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_width = config.heads, config.key_heads, config.head_width
        self.norm_q, self.norm_k = (RmsNorm(config.head_width, NORM_EPS) for _ in range(2))
        self.to_out = nn.ModuleList([Linear(config.width, config.width, bias=False)])
        self.processor = StreamProjections(config)
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, img: torch.Tensor, txt: torch.Tensor, pe: torch.Tensor, options: Options | None) -> Streams:
        """Return images and text. `pe` [1, 1, L + T, P, 2, 2] rotates the text's tokens, then the images'."""
        layers = self.processor
        text_q, text_k, text_v = (
            self._heads(layer(txt)) for layer in (layers.instruct_to_q, layers.instruct_to_k, layers.instruct_to_v)
        )
        q, k, v = (self._heads(layer(img)) for layer in (layers.img_to_q, layers.img_to_k, layers.img_to_v))
        q, k = self.rotary_heads(
            [(text_q, self.norm_q), (q, self.norm_q)], [(text_k, self.norm_k), (k, self.norm_k)], pe.transpose(1, 2)
        )
        q, k, v = (item.transpose(1, 2) for item in (q, k, torch.cat([text_v, v], dim=1)))  # [B, heads, L + T, W]
        k, v = (item.repeat_interleave(self.heads // self.key_heads, dim=1) for item in (k, v))
        attended = optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        text, image = attended[:, : txt.shape[1]], attended[:, txt.shape[1] :]
        return self.to_out[0](layers.img_out(image)), self.to_out[0](layers.instruct_out(text))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.head_width)  # [B, T, heads, W]


class DoubleStreamBlock(nn.Module):
    def __init__(self, config: BooguConfig) -> None:
        super().__init__()
        self.img_instruct_attn, self.img_self_attn = JointAttention(config), SharedKeyAttention(config)
        self.img_feed_forward, self.instruct_feed_forward = GatedLayers(config), GatedLayers(config)
        self.img_norm1, self.img_norm2, self.img_norm3, self.instruct_norm1, self.instruct_norm2 = (
            ModulatingNorm(config) for _ in range(5)
        )
        self.img_attn_norm, self.img_self_attn_norm, self.img_ffn_norm1, self.img_ffn_norm2 = (
            RmsNorm(config.width, NORM_EPS) for _ in range(4)
        )
        self.instruct_attn_norm, self.instruct_ffn_norm1, self.instruct_ffn_norm2 = (
            RmsNorm(config.width, NORM_EPS) for _ in range(3)
        )
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual(has_tanh=True)

    def forward(
        self, img: torch.Tensor, txt: torch.Tensor, pe: torch.Tensor, time: torch.Tensor, options: Options | None
    ) -> Streams:
        """Return images and text. `pe` rotates the text's tokens, then the images'; `time` is [B, time width]."""
        normed, gate, scale, inner_gate = self.img_norm1(img, time)
        inner, shift, *_ = self.img_norm2(img, time)
        alone, alone_gate, *_ = self.img_norm3(img, time)
        text_normed, text_gate, text_scale, text_inner_gate = self.instruct_norm1(txt, time)
        text_inner, text_shift, *_ = self.instruct_norm2(txt, time)
        attended, text_attended = self.img_instruct_attn(normed, text_normed, pe, options)
        to_itself = self.img_self_attn(alone, pe[:, :, txt.shape[1] :], options)

        img = self.residual(img, attended, gate, self.img_attn_norm)
        img = self.residual(img, to_itself, alone_gate, self.img_self_attn_norm)
        inner = self.img_ffn_norm1(self.adaptive_norm(inner, scale, shift))
        img = self.residual(img, self.img_feed_forward(inner), inner_gate, self.img_ffn_norm2)

        txt = self.residual(txt, text_attended, text_gate, self.instruct_attn_norm)
        text_inner = self.instruct_ffn_norm1(self.adaptive_norm(text_inner, text_scale, text_shift))
        txt = self.residual(txt, self.instruct_feed_forward(text_inner), text_inner_gate, self.instruct_ffn_norm2)
        return img, txt


class BooguTransformer(OmniGen2Trunk):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, D'])` -> its prediction `[B, C, h, w]`.

    `ref_latents` are reference images [B, C, h, w] of any size.
    """

    is_wrapped = False

    def __init__(self, config: BooguConfig) -> None:
        super().__init__(config)
        self.double_stream_layers = nn.ModuleList(DoubleStreamBlock(config) for _ in range(config.num_double))
        self.single_stream_layers = nn.ModuleList(TimedBlock(config) for _ in range(config.num_layers))

    def through(
        self, text: torch.Tensor, images: torch.Tensor, pe: torch.Tensor, time: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return text and images behind each other, after blocks of two streams and of one."""
        for layer in self.double_stream_layers:
            images, text = layer(images, text, pe, time, options)
        tokens = torch.cat([text, images], dim=1)
        for layer in self.single_stream_layers:
            tokens = layer(tokens, pe, time, options)
        return tokens
