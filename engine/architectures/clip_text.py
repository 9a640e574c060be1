"""CLIP's text encoder (Radford et al. 2021, arXiv 2103.00020), and prompts with weights on it.

`B` chunks, `T` 77 tokens, `D` width. Module names are those of SD1 checkpoints below `cond_stage_model.`, behind
ComfyUI's `clip_l.`, since LoRA files and custom nodes name weights so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.architectures.clip_layers import ClipLayer
from engine.architectures.layers import Linear

START_TOKEN, END_TOKEN = 49406, 49407
log = logging.getLogger(__name__)

TokenWeights = Sequence[tuple[Any, float]]  # (token id or embedding [D] or [n, D], weight)


@dataclass(frozen=True, slots=True)
class ClipTextConfig:
    num_layers: int = 12
    width: int = 768
    heads: int = 12
    inner_width: int = 3072
    vocabulary_size: int = 49408
    num_positions: int = 77


class ClipEmbeddings(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.position_embedding = nn.Embedding(config.num_positions, config.width)


class ClipEncoder(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ClipLayer(config.width, config.heads, config.inner_width, is_causal=True) for _ in range(config.num_layers)
        )


class ClipTextTower(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.embeddings = ClipEmbeddings(config)
        self.encoder = ClipEncoder(config)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(self, embeds: torch.Tensor, layer: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(output of the last layer, output of `layer`), both through the final norm; `layer` None is the last."""
        places = torch.arange(self.embeddings.position_embedding.num_embeddings, device=embeds.device)
        x = embeds + self.embeddings.position_embedding(places)
        chosen: torch.Tensor | None = None
        for index, block in enumerate(self.encoder.layers):
            x = block(x)
            if layer is not None and index == layer % len(self.encoder.layers):
                chosen = x
        last: torch.Tensor = self.final_layer_norm(x)
        return last, last if chosen is None else self.final_layer_norm(chosen)


class ClipTextModel(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.text_model = ClipTextTower(config)
        self.text_projection = Linear(config.width, config.width, bias=False)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.text_model.embeddings.token_embedding


class ClipL(nn.Module):
    """The encoder of chunks of tokens."""

    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.transformer = ClipTextModel(config)

    def encode(
        self, chunks: Sequence[Sequence[Any]], layer_idx: int | None, project_pooled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(conditioning [B, T, D], pooled [B, D]), float32. A layer beyond the first means the last one."""
        embedded = [self._embed(chunk) for chunk in chunks]
        embeds = torch.stack([rows for rows, _ in embedded])
        layer = None if layer_idx is None or abs(layer_idx) > self.num_layers else layer_idx
        last, chosen = self.transformer.text_model(embeds, layer)
        ends = torch.tensor([end for _, end in embedded], device=last.device)
        pooled = last[torch.arange(last.shape[0], device=last.device), ends]
        if project_pooled:
            pooled = self.transformer.text_projection(pooled)
        return chosen.float(), pooled.float()

    def _embed(self, chunk: Sequence[Any]) -> tuple[torch.Tensor, int]:
        """Rows [T, D] of a chunk, and the place whose output is the pooled one. Embeddings stand for themselves.

        That place is the first end token's, moved on by the embeddings behind it, as in ComfyUI, which counts them in
        wherever they are; only a prompt that spells an end token out has any there.
        """
        table = self.transformer.get_input_embeddings()
        width = table.embedding_dim
        numbers = [END_TOKEN, *(int(token) for token in chunk if not isinstance(token, torch.Tensor))]
        end_row, *looked_up = table(torch.tensor(numbers, device=table.weight.device)).unsqueeze(1)  # each [1, D]
        rows, has_ended, num_counted, left_out = [], False, 0, 0
        for token in chunk:
            if isinstance(token, torch.Tensor):
                if token.shape[-1] == width:
                    rows.append(token.reshape(-1, width).to(end_row))
                    num_counted += rows[-1].shape[0]
                else:
                    left_out += max(1, token.numel() // token.shape[-1])
                continue
            rows.append(looked_up.pop(0))
            num_counted += not has_ended
            has_ended = has_ended or int(token) == END_TOKEN
        if left_out:
            log.warning("an embedding is not of the text encoder's width %d and is ignored", width)
            rows.append(end_row.expand(left_out, -1))
        return torch.cat(rows), num_counted - 1


class ClipTextEncoder(nn.Module):
    """SD1's `cond_stage_model`: prompts with weights -> conditioning."""

    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.clip_l = ClipL(config)
        self.projects_pooled = False  # SD1's pooled output is never projected
        # ComfyUI keeps text encoders as float16, so what it patches is rounded to that; see `engine/memory`.
        self.patched_dtype: torch.dtype | None = None

    def encode_token_weights(
        self, token_weight_pairs: Mapping[str, Sequence[TokenWeights]], *, layer_idx: int | None, project_pooled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(conditioning [1, 77 * chunks, D], pooled [1, D] of the first chunk).

        A token of weight w moves along the line from the empty prompt's output at its place: empty + w * (its own -
        empty).
        """
        chunks = token_weight_pairs["l"]
        tokens = [[token for token, _ in chunk] for chunk in chunks]
        weighted = not chunks or any(weight != 1.0 for chunk in chunks for _, weight in chunk)
        if weighted:
            length = max((len(chunk) for chunk in tokens), default=0)
            tokens = [*tokens, [START_TOKEN, *[END_TOKEN] * max(1, length - 1)]]
        cond, pooled = self.clip_l.encode(tokens, layer_idx, project_pooled and self.projects_pooled)
        if not chunks:
            return cond[-1:], pooled[:1]
        if weighted:
            empty = cond[-1]
            weights = torch.tensor([[weight for _, weight in chunk] for chunk in chunks], device=cond.device)
            weights = weights.unsqueeze(-1)
            moved = (cond[: len(chunks)] - empty) * weights + empty
            cond = torch.where(weights != 1.0, moved, cond[: len(chunks)])
        return cond.reshape(1, -1, cond.shape[-1]), pooled[:1]
