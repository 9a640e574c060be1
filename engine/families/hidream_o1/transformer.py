"""The transformer of HiDream-O1-Image (HiDream.ai 2026): Qwen3-VL 8B, which draws patches of 32 pixels a side.

One stream has a text's tokens, with those of reference images among them, then the patches of the image, then those of
the reference images. Tokens of the text attend to those before them, the others to all; the last of the text stands for
the time. Positions are rotations on three axes (frame, row, column). The network predicts the image itself. `B` batch,
`H W` pixels, `L` tokens of text, `N` patches of the image, `R` patches of references, `T` all tokens, `D` hidden size,
`W` channels of a head. Module names are those of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import image_channels_first, patches_channels_first
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVision, Qwen3VlVisionConfig, qwen3_vl_vision_config
from darkroom.engine.layers.rotary import Turns
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

MARK = "t_embedder1.mlp.0.weight"
FIRST_LAYER = "language_model.layers.0."
VISION_PREFIX = "visual."
HEAD_DIM = 128
PATCH_PX = 32
PATCH_VALUES = 3 * PATCH_PX**2
BOTTLENECK = 4  # the hidden size is this times that of the patches' first layer
WAVES = 256
MAX_TIME = 1000.0
LEAST_SIGMA = 1e-3


@dataclass(frozen=True, slots=True)
class HiDreamO1Config:
    """Configuration of the network."""

    vision: Qwen3VlVisionConfig
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_layers: int = 36
    key_heads: int = 8
    vocabulary_size: int = 151936
    in_channels: int = 3
    context_dim: int = 1  # of a conditioning, which is the numbers of tokens

    @property
    def heads(self) -> int:
        return self.hidden_size // HEAD_DIM


def hidream_o1_config(shapes: Shapes) -> HiDreamO1Config:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    seen = {name.removeprefix(VISION_PREFIX): shape for name, shape in shapes.items() if name.startswith(VISION_PREFIX)}
    vocabulary_size, hidden_size = shapes["language_model.embed_tokens.weight"]
    return HiDreamO1Config(
        vision=qwen3_vl_vision_config(seen, is_tapped=False),
        hidden_size=hidden_size,
        intermediate_size=shapes[f"{FIRST_LAYER}mlp.gate_proj.weight"][0],
        num_layers=count_children(shapes, "language_model.layers"),
        key_heads=shapes[f"{FIRST_LAYER}self_attn.k_proj.weight"][0] // HEAD_DIM,
        vocabulary_size=vocabulary_size,
    )


class StreamAttention(nn.Module):
    def __init__(self, config: HiDreamO1Config) -> None:
        super().__init__()
        size, key_size = config.hidden_size, config.key_heads * HEAD_DIM
        self.heads, self.shared = config.heads, config.heads // config.key_heads
        self.q_proj, self.o_proj = (Linear(size, size, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (Linear(size, key_size, bias=False) for _ in range(2))
        self.q_norm, self.k_norm = (RmsNorm(HEAD_DIM) for _ in range(2))
        self.rotary_heads = RotaryHeads(RotaryLayout.HALVES)

    def forward(self, x: torch.Tensor, num_causal: int, turns: Turns, options: Options | None) -> torch.Tensor:
        """Return [B, T, D]. The first `num_causal` tokens attend to those before them alone."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], turns)
        k, v = (item.repeat_interleave(self.shared, dim=1) if self.shared > 1 else item for item in (k, v))
        text = scaled_dot_product_attention(
            q[:, :, :num_causal], k[:, :, :num_causal], v[:, :, :num_causal], is_causal=True
        )
        rest = optimized_attention(
            q[:, :, num_causal:], k, v, self.heads, skip_reshape=True, transformer_options=options
        )
        out: torch.Tensor = self.o_proj(torch.cat([text.transpose(1, 2).flatten(2), rest], dim=1))
        return out


class FeedForward(nn.Module):
    def __init__(self, config: HiDreamO1Config) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = Linear(inner, size, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.activation(self.gate_proj(x), self.up_proj(x)))
        return out


class StreamLayer(nn.Module):
    def __init__(self, config: HiDreamO1Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = StreamAttention(config), FeedForward(config)
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(config.hidden_size) for _ in range(2))
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(
        self, x: torch.Tensor, num_causal: int, turns: Turns, transformer_options: Options | None = None
    ) -> torch.Tensor:
        """Return [B, T, D]."""
        attended = self.self_attn(self.input_layernorm(x), num_causal, turns, transformer_options)
        x, normed = self.residual_norm(x, attended, None, None, norm=self.post_attention_layernorm)
        out: torch.Tensor = self.residual(x, self.mlp(normed))
        return out


class LanguageStack(nn.Module):
    """The embedding, the layers and the last norm of the language model."""

    def __init__(self, config: HiDreamO1Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(StreamLayer(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size)

    def run(self, x: torch.Tensor, shared: dict[str, Any]) -> torch.Tensor:
        """Return tokens [B, T, D] after all layers, or after what custom nodes have put in their places.

        `shared` are the further inputs of each layer.
        """
        replaced = shared["transformer_options"].get("patches_replace", {}).get("dit", {})
        for index, layer in enumerate(self.layers):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                x = layer(x, **shared)
            else:
                x = replacement({"x": x, **shared}, {"original_block": _as_function(layer)})["x"]
        return x


class TimeEmbedder(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(WAVES, hidden_size), nn.SiLU(), Linear(hidden_size, hidden_size))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(times, WAVES).to(dtype))
        return out


class HiDreamO1Transformer(nn.Module):
    """`forward(x [B, 3, H, W], timesteps [B], context [B, L, 1])` -> the velocity `[B, 3, H, W]`, float32.

    `input_ids` [B, L] are the text's tokens, `cosines` and `sines` [B, T, W / 2] the rotations of all tokens.
    `ref_tokens` [B, S, D] are reference images as the text's tokens, `ref_spans` the first position and the number of
    each of them, `ref_patches` [B, R, 3 * 32 * 32] the same images as patches. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    def __init__(self, config: HiDreamO1Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH_PX
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        size = config.hidden_size
        self.visual = Qwen3VlVision(config.vision)
        self.language_model = LanguageStack(config)
        self.t_embedder1 = TimeEmbedder(size)
        self.x_embedder = nn.ModuleDict(
            {"proj1": Linear(PATCH_VALUES, size // BOTTLENECK, bias=False), "proj2": Linear(size // BOTTLENECK, size)}
        )
        self.final_layer2 = nn.ModuleDict({"linear": Linear(size, PATCH_VALUES)})

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.language_model.embed_tokens.weight.dtype

    def read_images(self, images: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """Return images [H, W, 3] of 0..1 as tokens of the text [1, S, D], behind each other."""
        return torch.cat([self.visual(image, dtype).tokens for image in images])[None]

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        input_ids: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        ref_tokens: torch.Tensor | None = None,
        ref_spans: Sequence[tuple[int, int]] = (),
        ref_patches: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it, and `context` is the same as `input_ids`."""
        sigma = timesteps.float() / MAX_TIME
        text = self._text(input_ids, sigma, ref_tokens, ref_spans, x.dtype)
        drawn = patches_channels_first(x, PATCH_PX)  # [B, N, 3 * 32 * 32]
        patches = drawn if ref_patches is None else torch.cat([drawn, ref_patches.to(x.dtype)], dim=1)
        stream = torch.cat([text, self.x_embedder["proj2"](self.x_embedder["proj1"](patches))], dim=1)
        num_text, num_drawn = text.shape[1], drawn.shape[1]
        shared = {
            "num_causal": num_text - 1,
            "turns": (cosines[:, None], sines[:, None]),
            "transformer_options": {} if transformer_options is None else transformer_options,
        }
        stream = self.language_model.run(stream, shared)[:, num_text : num_text + num_drawn]
        values = self.final_layer2["linear"](self.language_model.norm(stream))
        image = image_channels_first(values, x.shape[2], x.shape[3], PATCH_PX)
        # In float32: 16-bit differences show.
        return (x.float() - image.float()) / sigma.view(-1, 1, 1, 1).clamp_min(LEAST_SIGMA)

    def _text(
        self,
        input_ids: torch.Tensor,
        sigma: torch.Tensor,
        ref_tokens: torch.Tensor | None,
        ref_spans: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return the text's tokens [B, L, D]: images in their positions, and the time in the last one."""
        rows = self.language_model.embed_tokens(input_ids).to(dtype)
        time = self.t_embedder1((1.0 - sigma) * MAX_TIME, dtype)[:, None]
        if ref_tokens is None:
            return torch.cat([rows[:, :-1], time], dim=1)
        parts: list[torch.Tensor] = []
        behind, taken = 0, 0
        for first, count in ref_spans:
            parts += [rows[:, behind:first], ref_tokens[:, taken : taken + count].to(dtype)]
            behind, taken = first + count, taken + count
        return torch.cat([*parts, rows[:, behind:-1], time], dim=1)


def _as_function(layer: nn.Module) -> BlockFunction:
    """Return a layer in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"x": layer(**args)}

    return original
