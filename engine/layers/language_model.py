"""Decoder-only language models, of which diffusion models read the hidden states of a prompt.

One network for Llama 3 (arXiv 2407.21783), Mistral Small 3, Gemma 2 and 3 (arXiv 2408.00118, 2503.19786), Qwen2.5
and Qwen3-VL with images among their tokens (arXiv 2502.13923, 2511.21631) and Qwen3 (arXiv 2505.09388): causal
attention with fewer keys than queries (Ainslie et al. 2023, arXiv 2305.13245), rotary places, gated feed-forward layers
(Shazeer 2020, arXiv 2002.05202). Module names are those of the transformers library's files. Gemma 3's
layers but every sixth attend to the last 1024 tokens alone; the window of Gemma 2 is left out, as in ComfyUI, since
prompts are shorter than it.

`B` prompts, `T` tokens, `D` width, `H` heads, `K` of them with keys of their own, `W` width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.keys_values import KeysValues
from darkroom.engine.layers.norms import OnePlusRmsNorm, RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.token_rotations import Rotation, rotated, rotation

EMBEDDING = "model.embed_tokens.weight"
FIRST = "model.layers.0."
QUERIES, KEYS = f"{FIRST}self_attn.q_proj.weight", f"{FIRST}self_attn.k_proj.weight"
QUERY_NORM, QUERY_BIAS = f"{FIRST}self_attn.q_norm.weight", f"{FIRST}self_attn.q_proj.bias"
JOINED_QUERIES, JOINED_GATES = f"{FIRST}self_attn.qkv_proj.weight", f"{FIRST}mlp.gate_up_proj.weight"
ATTENDED, FED = f"{FIRST}self_attn.o_proj.weight", f"{FIRST}mlp.down_proj.weight"
OUTPUT_NORM = f"{FIRST}post_feedforward_layernorm.weight"


@dataclass(frozen=True, slots=True)
class LanguageModelKind:
    """Traits of a model that its tensors' shapes do not show.

    `theta` is the base of the rotary angles; every `wide_every`-th layer takes `wide_theta`, with angles divided by
    `wide_scale`. Tokens of the other layers attend to `window` tokens, themselves and those before them; None is all.
    `sections` says how many pairs of channels rotate by each axis of places with three axes, one axis behind the other
    or, with `interleaves_sections`, in turns. With `norms_add_one` norms multiply by one plus their weight, with
    `scales_embeddings` rows of the table are multiplied by the root of the width.
    """

    name: str
    head_width: int = 128
    theta: float = 1e6
    wide_theta: float | None = None
    wide_scale: float = 1.0
    wide_every: int = 6
    eps: float = 1e-6
    activation: Literal["silu", "gelu"] = "silu"
    norms_add_one: bool = False
    scales_embeddings: bool = False
    window: int | None = None
    sections: tuple[int, int, int] | None = None
    interleaves_sections: bool = False


LLAMA3 = LanguageModelKind("llama3", theta=5e5, eps=1e-5)
MISTRAL3 = LanguageModelKind("mistral3", theta=1e9, eps=1e-5)
MINISTRAL3 = LanguageModelKind("ministral3", theta=1e6, eps=1e-5)
QWEN2 = LanguageModelKind("qwen2", sections=(16, 24, 24))
QWEN3 = LanguageModelKind("qwen3")
QWEN3_VL = LanguageModelKind("qwen3_vl", theta=5e6, sections=(24, 20, 20), interleaves_sections=True)
GEMMA2 = LanguageModelKind(
    "gemma2", head_width=256, theta=1e4, activation="gelu", norms_add_one=True, scales_embeddings=True
)
GEMMA3 = LanguageModelKind(
    "gemma3", head_width=256, theta=1e4, wide_theta=1e6, wide_scale=8.0, activation="gelu", norms_add_one=True,
    scales_embeddings=True, window=1024,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LanguageModelConfig:
    """Configuration of a model.

    With `norms_outputs` attention and feed-forward layers have a norm before and one after them, else one before. With
    `joins_queries` queries, keys and values are one projection, with `joins_gates` gates and values of feed-forward
    layers are.
    """

    kind: LanguageModelKind
    num_layers: int
    width: int
    heads: int
    key_heads: int
    inner_width: int
    vocabulary_size: int
    has_biases: bool = False
    norms_queries: bool = False
    norms_outputs: bool = False
    joins_queries: bool = False
    joins_gates: bool = False


def kind_of(shapes: Shapes) -> LanguageModelKind:
    """Return the kind of the model with these tensors, by its norms and biases.

    Raises:
        KeyError: the tensors are no language model's.
    """
    if QUERIES not in shapes:
        raise KeyError(QUERIES)
    if OUTPUT_NORM in shapes:
        return GEMMA3 if QUERY_NORM in shapes else GEMMA2
    if QUERY_NORM in shapes:
        return QWEN3
    return QWEN2 if QUERY_BIAS in shapes else LLAMA3


def language_model_config(shapes: Shapes, kind: LanguageModelKind | None = None) -> LanguageModelConfig:
    """Return the configuration of the model with these tensors (names from `model.` on); None is the kind they show."""
    num_tokens, width = shapes[EMBEDDING]
    kind = kind or kind_of(shapes)
    heads = shapes[ATTENDED][1] // kind.head_width
    joins_queries = JOINED_QUERIES in shapes
    key_rows = (shapes[JOINED_QUERIES][0] - shapes[ATTENDED][1]) // 2 if joins_queries else shapes[KEYS][0]
    return LanguageModelConfig(
        kind=kind,
        num_layers=count_children(shapes, "model.layers"),
        width=width,
        heads=heads,
        key_heads=key_rows // kind.head_width,
        inner_width=shapes[FED][1],
        vocabulary_size=num_tokens,
        has_biases=QUERY_BIAS in shapes,
        norms_queries=QUERY_NORM in shapes,
        norms_outputs=OUTPUT_NORM in shapes,
        joins_queries=joins_queries,
        joins_gates=JOINED_GATES in shapes,
    )


def rms_norm(kind: LanguageModelKind, width: int) -> RmsNorm:
    """Return a norm of the last dimension as models of this kind have it."""
    return (OnePlusRmsNorm if kind.norms_add_one else RmsNorm)(width, kind.eps)


# --- layers ----------------------------------------------------------------------------------------------------------


def causal_mask(embeds: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the addition to the scores [B or 1, 1, T, T] by which tokens attend to unmasked tokens before them.

    `mask` [B, T] is 1 for tokens that are seen. One that sees none of those before it sees them all alike, because a
    quarter of the least number drowns the scores without being infinite.
    """
    length = embeds.shape[1]
    hidden = torch.finfo(embeds.dtype).min / 4
    added = torch.full((1, 1, length, length), hidden, dtype=embeds.dtype, device=embeds.device).triu(1)
    return added if mask is None else added + (mask == 0)[:, None, None, :].to(embeds.dtype) * hidden


class CausalAttention(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        width = config.kind.head_width
        self.heads, self.key_heads, self.head_width = config.heads, config.key_heads, width
        self.sizes = [heads * width for heads in (config.heads, config.key_heads, config.key_heads)]
        self.joins_queries = config.joins_queries
        if config.joins_queries:
            self.qkv_proj = Linear(config.width, sum(self.sizes), bias=config.has_biases)
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                Linear(config.width, size, bias=config.has_biases) for size in self.sizes
            )
        self.o_proj = Linear(config.heads * width, config.width, bias=False)
        self.q_norm, self.k_norm = (
            rms_norm(config.kind, width) if config.norms_queries else nn.Identity() for _ in range(2)
        )

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        places: Rotation,
        past: KeysValues | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. `mask` [B or 1, 1, T, T] is added to the scores; `past` is of tokens before these.

        A token behind others attends to the last `window` alone, itself among them; None is all.
        """
        q, k, v = self._projected(x)
        q = rotated(self.q_norm(self._split(q, self.heads)), places)
        k = rotated(self.k_norm(self._split(k, self.key_heads)), places)
        v = self._split(v, self.key_heads)
        k, v = (k, v) if past is None else past.extended(k, v)
        if window is not None and x.shape[1] == 1:
            k, v = k[:, :, -window:], v[:, :, -window:]
        shared = self.heads // self.key_heads
        k, v = (item.repeat_interleave(shared, dim=1) for item in (k, v))
        out: torch.Tensor = self.o_proj(optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True))
        return out

    def _projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values of all heads [B, T, heads * W]."""
        if self.joins_queries:
            return torch.split(self.qkv_proj(x), self.sizes, dim=-1)
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, self.head_width).transpose(1, 2)  # [B, H or K, T, W]


class GatedLayers(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.activation = config.kind.activation
        self.joins_gates = config.joins_gates
        if config.joins_gates:
            self.gate_up_proj = Linear(config.width, 2 * config.inner_width, bias=False)
        else:
            self.gate_proj, self.up_proj = (Linear(config.width, config.inner_width, bias=False) for _ in range(2))
        self.down_proj = Linear(config.inner_width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = (
            self.gate_up_proj(x).chunk(2, dim=-1) if self.joins_gates else (self.gate_proj(x), self.up_proj(x))
        )
        gate = functional.silu(gate) if self.activation == "silu" else functional.gelu(gate, approximate="tanh")
        out: torch.Tensor = self.down_proj(gate * value)
        return out


class DecoderLayer(nn.Module):
    """A layer with a norm before attention and one before the feed-forward layers."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config)
        self.mlp = GatedLayers(config)
        self.input_layernorm, self.post_attention_layernorm = (rms_norm(config.kind, config.width) for _ in range(2))

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        places: Rotation,
        past: KeysValues | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask, places, past, window)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class SandwichedLayer(DecoderLayer):
    """A layer whose attention and feed-forward layers have norms on both sides."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (
            rms_norm(config.kind, config.width) for _ in range(2)
        )

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        places: Rotation,
        past: KeysValues | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), mask, places, past, window))
        fed: torch.Tensor = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x + fed


class ScaledEmbedding(nn.Embedding):
    """A table whose rows are multiplied by the root of their size; images and embeddings of files are not."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = super().forward(tokens) * math.sqrt(self.embedding_dim)
        return rows


class DecoderStack(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        embedding = ScaledEmbedding if config.kind.scales_embeddings else nn.Embedding
        self.embed_tokens = embedding(config.vocabulary_size, config.width)
        layer = SandwichedLayer if config.norms_outputs else DecoderLayer
        self.layers = nn.ModuleList(layer(config) for _ in range(config.num_layers))
        self.norm = rms_norm(config.kind, config.width)

    def forward(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor | None = None,
        layer: int | None = None,
        *,
        positions: torch.Tensor | None = None,
        normalises_layer: bool = False,
        added: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Return the output of `layer` [B, T, D], counted from the end where negative, or of the network (None).

        That of the network is after the final norm, that of a layer only with `normalises_layer`. Parameters are those
        of `states`. Raises ValueError for a layer that the network does not have.
        """
        last = len(self.layers) - 1
        wanted = last if layer is None else layer + len(self.layers) if layer < 0 else layer
        if not 0 <= wanted <= last:
            raise ValueError(f"layer: {layer} is not in the network; expected one of its {last + 1} layers")
        out = embeds
        for index, state in enumerate(self.states(embeds, mask, positions=positions, added=added), start=-1):
            out = state
            if index == wanted:
                break
        return self.norm(out) if layer is None or normalises_layer else out

    def all_states(
        self, embeds: torch.Tensor, mask: torch.Tensor | None = None, *, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the input of every layer, and the output of the network after the final norm [B, layers + 1, T, D]."""
        *inner, last = self.states(embeds, mask, positions=positions)
        return torch.stack([*inner, self.norm(last)], dim=1)

    def chosen_states(
        self,
        layers: Sequence[int],
        embeds: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        positions: torch.Tensor | None = None,
        added: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Return the inputs of some layers, by ascending number [B, len(layers), T, D].

        The number behind the last layer's is that of the output without the final norm. Layers behind the last one
        wanted are not computed. Parameters are those of `states`. Raises ValueError for a layer that is not there.
        """
        if layers[-1] > len(self.layers):
            raise ValueError(
                f"layer: {layers[-1]} is not in the network; expected one of its {len(self.layers)} layers"
            )
        first = islice(self.states(embeds, mask, positions=positions, added=added), layers[-1] + 1)
        return torch.stack([state for index, state in enumerate(first) if index in layers], dim=1)

    def empty_past(self, capacity: int = 0) -> list[KeysValues]:
        """Return the keys and values of each layer before the first token: empty, with room for so many tokens."""
        return [KeysValues(capacity) for _ in self.layers]

    def states(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        positions: torch.Tensor | None = None,
        added: Sequence[torch.Tensor] = (),
        past: Sequence[KeysValues] = (),
    ) -> Iterator[torch.Tensor]:
        """Yield the input of the first layer, then the output of each [B, T, D].

        Args:
            embeds: rows of the embedding, or of images [B, T, D].
            mask: 1 for tokens that others may see, 0 for padding [B, T]; without it all are seen. Behind others it has
                theirs too.
            positions: places of tokens, [1, T] or [3, T] (time, row, column); without them they are counted.
            added: what is added to the outputs of the first layers [T, D] each (Meng et al. 2024, arXiv 2406.04334).
            past: keys and values by layer, which these tokens join; behind others comes one token at a time.
        """
        kind = self.config.kind
        if positions is None:
            first = past[0].num_tokens if past else 0
            positions = torch.arange(first, first + embeds.shape[1], device=embeds.device)[None]
        turns_axes = kind.interleaves_sections
        places = wide = rotation(positions, kind.head_width, kind.theta, 1.0, kind.sections, interleaved=turns_axes)
        if kind.wide_theta is not None:
            wide = rotation(positions, kind.head_width, kind.wide_theta, kind.wide_scale, kind.sections)
        seen = near = causal_mask(embeds, mask)  # of one token it is zero, and holds for all that it sees
        if kind.window is not None and embeds.shape[1] > kind.window:
            near = seen + torch.full_like(seen, torch.finfo(seen.dtype).min / 4).tril(-kind.window)
        x = embeds
        yield x
        for index, layer in enumerate(self.layers, start=1):
            before = past[index - 1] if past else None
            sees_all = index % kind.wide_every == 0
            x = layer(x, seen, wide, before) if sees_all else layer(x, near, places, before, kind.window)
            yield (x := x + added[index - 1].to(x) if index <= len(added) else x)


class LanguageModel(nn.Module):
    """A model without the layer that predicts tokens. Weights may be of any type, inputs are of the computed one."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.model = DecoderStack(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens
