"""The encoder of ACE-Step 1.5's conditions: tags, lyrics and the timbre of reference audio as tokens of one width.

`B` batch, `T` tokens, `L` latent frames, `D` hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.ace_step15.attention import EncoderStack, Width
from darkroom.engine.layers.basic import Linear


class LyricEncoder(EncoderStack):
    def forward(self, lyrics: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, T, D] of embedded lyrics [B, T, text width]."""
        return self.encoded(self.embed_tokens(lyrics))


class TimbreEncoder(EncoderStack):
    def __init__(self, in_size: int, width: Width, num_layers: int) -> None:
        super().__init__(in_size, width, num_layers)
        self.special_token = nn.Parameter(torch.empty(1, 1, width.hidden_size))  # of training; files have it

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return the timbre tokens [B, B, D] of latents [B, L, C] of reference audio: the first one of each.

        They are packed as the reference audio of the first item of the batch, as ComfyUI packs them: the others have
        zeros.
        """
        timbres = self.encoded(self.embed_tokens(audio))[:, :1]  # [B, 1, D]
        batch = timbres.shape[0]
        first = timbres.transpose(0, 1)  # [1, B, D]
        return torch.cat([first, first.new_zeros(batch - 1, *first.shape[1:])]) if batch > 1 else first


class ConditionEncoder(nn.Module):
    """`forward(text [B, T, text width], lyrics [B, T, text width], audio [B, L, C])` -> tokens `[B, T, D]`."""

    def __init__(
        self, text_size: int, audio_size: int, width: Width, num_lyric_layers: int, num_timbre_layers: int
    ) -> None:
        super().__init__()
        self.text_projector = Linear(text_size, width.hidden_size, bias=False)
        self.lyric_encoder = LyricEncoder(text_size, width, num_lyric_layers)
        self.timbre_encoder = TimbreEncoder(audio_size, width, num_timbre_layers)

    def forward(self, text: torch.Tensor, lyrics: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.lyric_encoder(lyrics), self.timbre_encoder(audio), self.text_projector(text)], dim=1)
