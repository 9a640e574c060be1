"""Inputs of ACE-Step's network: the tags, the tokens of the lyrics and how strongly these count."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.text.lyrics import START_TOKEN


class AceStepDenoiser(Denoiser):
    """A network that reads tags and lyrics, whose lengths are not padded."""

    comfy_name = "ACEStep"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        device = kwargs["device"]
        tokens, lyrics = kwargs.get("cross_attn"), kwargs.get("conditioning_lyrics")
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.to(device))
        lyrics = torch.tensor([[START_TOKEN]]) if lyrics is None else lyrics
        inputs["lyric_token_idx"] = RegularInput(lyrics.to(device))
        inputs["lyrics_strength"] = ConstantInput(kwargs.get("lyrics_strength", 1.0))
        return inputs
