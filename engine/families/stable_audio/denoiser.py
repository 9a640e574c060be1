"""Inputs of Stable Audio's network beside the text: where the audio starts, and how long it is."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.stable_audio.transformer import START, TOTAL

CELLS_PER_SECOND = 21.53  # ComfyUI's, of a conditioning that does not say how long the audio is


class StableAudioDenoiser(Denoiser):
    """A network that reads seconds. Texts of different lengths are not padded: the seconds follow the text's tokens."""

    comfy_name = "StableAudio1"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        start = float(kwargs.get(START, 0))
        total = float(kwargs.get(TOTAL, int(kwargs["noise"].shape[-1] / CELLS_PER_SECOND)))
        inputs: dict[str, BatchedInput] = {START: ConstantInput(start), TOTAL: ConstantInput(total)}
        tokens = kwargs.get("cross_attn")
        self.check_text(kwargs)
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.to(kwargs["device"]))
        return inputs
