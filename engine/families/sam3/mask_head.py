"""Scores and masks of the detector's queries. `B` images, `Q` queries, `P` tokens of the prompt, `D` hidden size."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.sam3.layers import HEAD_SIZE, ProjectedAttention, ReluMlp, cells_of
from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear

NUM_GROUPS = 8
MOST_LOGIT = 12.0
MOST_STAGES = 3  # of joining two levels; three levels take two of them


class PixelDecoder(nn.Module):
    """Levels of a pyramid joined from the coarsest to the finest."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        convolutions = (Conv2d(hidden_size, hidden_size, 3, padding=1) for _ in range(MOST_STAGES))
        self.conv_layers = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(GroupNorm(NUM_GROUPS, hidden_size) for _ in range(MOST_STAGES))

    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        x = levels[-1]
        for level, convolution, norm in zip(levels[-2::-1], self.conv_layers, self.norms, strict=False):
            x = functional.relu(norm(convolution(level + functional.interpolate(x, size=level.shape[2:]))))
        return x


class MaskPredictor(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mask_embed = ReluMlp(*(hidden_size,) * 4)

    def forward(self, queries: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bqc,bchw->bqhw", self.mask_embed(queries), pixels)


class MaskHead(nn.Module):
    """Logits of masks [B, Q, 4 h, 4 w]."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.pixel_decoder = PixelDecoder(hidden_size)
        self.mask_predictor = MaskPredictor(hidden_size)
        self.cross_attend_prompt = ProjectedAttention(hidden_size, hidden_size // HEAD_SIZE)
        self.cross_attn_norm = nn.LayerNorm(hidden_size)
        self.instance_seg_head = Conv2d(hidden_size, hidden_size, 1)

    def forward(
        self,
        queries: torch.Tensor,
        levels: list[torch.Tensor],
        encoded: torch.Tensor,
        prompt: torch.Tensor,
        prompt_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return the masks. `encoded` [B, h w, D] takes the place of the coarsest of the levels.

        Where that level is coarser than the encoder's cells, it gets the first ones, as in ComfyUI.
        """
        read = self.cross_attend_prompt(self.cross_attn_norm(encoded), prompt, prompt, prompt_mask)
        height, width = levels[-1].shape[2:]
        cells = cells_of((read + encoded)[:, : height * width], height, width)
        pixels = self.instance_seg_head(self.pixel_decoder([*levels[:-1], cells]))
        out: torch.Tensor = self.mask_predictor(queries, pixels)
        return out


class NormedMlp(nn.Module):
    """Two linear layers beside the input, normed."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList((Linear(hidden_size, intermediate_size), Linear(intermediate_size, hidden_size)))
        self.out_norm = nn.LayerNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = self.layers
        out: torch.Tensor = self.out_norm(last(functional.relu(first(x))) + x)
        return out


class PromptScores(nn.Module):
    """Logits [B, Q] of how well queries match the prompt."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.hs_proj = Linear(hidden_size, hidden_size)
        self.prompt_proj = Linear(hidden_size, hidden_size)
        self.prompt_mlp = NormedMlp(hidden_size, intermediate_size)

    def forward(self, queries: torch.Tensor, prompt: torch.Tensor, is_seen: torch.Tensor) -> torch.Tensor:
        weights = is_seen[..., None].to(prompt.dtype)
        mean = (self.prompt_mlp(prompt) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        products = self.hs_proj(queries) @ self.prompt_proj(mean)[..., None]
        scaled: torch.Tensor = (products * queries.shape[-1] ** -0.5).clamp(-MOST_LOGIT, MOST_LOGIT)
        return scaled[..., 0]
