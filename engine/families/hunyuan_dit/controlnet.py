"""The ControlNet of HunyuanDiT (Li et al. 2024, arXiv 2405.08748): its first half, which sees an image's latent too.

`B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` width.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.hunyuan_dit.transformer import HunyuanDitBlock, HunyuanDitConfig, HunyuanDitTrunk
from darkroom.engine.layers.basic import Linear


class HunyuanDitControlNet(HunyuanDitTrunk):
    """`forward(x, hint [B, C, h, w], timesteps, context, ...)` -> additions [B, T, D] of each block, as `output`."""

    def __init__(self, config: HunyuanDitConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(HunyuanDitBlock(config, has_skip=False) for _ in range(config.num_blocks))
        self.before_proj = Linear(config.width, config.width)
        self.after_proj_list = nn.ModuleList(Linear(config.width, config.width) for _ in range(config.num_blocks))

    def forward(
        self,
        x: torch.Tensor,
        hint: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        *,
        text_embedding_mask: torch.Tensor,
        encoder_hidden_states_t5: torch.Tensor,
        text_embedding_mask_t5: torch.Tensor,
        image_meta_size: torch.Tensor | None = None,
        **kwargs: object,
    ) -> dict[str, list[torch.Tensor]]:
        text = self.text(context, text_embedding_mask, encoder_hidden_states_t5, text_embedding_mask_t5)
        vec = self.vector(timesteps, encoder_hidden_states_t5, image_meta_size, x.dtype)
        pe = self.rotations_of(x)
        tokens = self.x_embedder(x) + self.before_proj(self.x_embedder(hint.expand(x.shape[0], -1, -1, -1)))
        additions = []
        for block, onward in zip(self.blocks, self.after_proj_list, strict=True):
            tokens = block(tokens, vec, text, pe)
            additions.append(onward(tokens))
        return {"output": additions}
