"""Inputs of Stable Audio 3's network beside the text: how long the audio is, and what of it stays as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import (
    BatchedInput,
    ConstantInput,
    NoiseShapedInput,
    RegularInput,
    spread_to_batch_size,
)
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.stable_audio3.transformer import TOTAL

CELLS_PER_SECOND = 10.7666  # ComfyUI's, of a conditioning that does not say how long the audio is
MAX_TEXT_TOKENS = 256  # shorter texts are padded to so many, where the network has an embedding of padding


class StableAudio3Denoiser(Denoiser):
    """A network that reads seconds, a text padded by the network's own embedding, and the audio around a mask."""

    comfy_name = "StableAudio3"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for audio around the mask of another length than the latent."""
        noise, device = kwargs["noise"], kwargs["device"]
        self.check_text(kwargs)
        total = float(kwargs.get(TOTAL, int(noise.shape[-1] / CELLS_PER_SECOND)))
        inputs: dict[str, BatchedInput] = {TOTAL: ConstantInput(total)}
        inputs["local_add_cond"] = NoiseShapedInput(self._kept_audio(**kwargs))
        tokens: torch.Tensor | None = kwargs.get("cross_attn")
        if tokens is None:
            return inputs
        tokens = tokens.to(device)
        network: Any = self.diffusion_model
        if network.config.has_padding:
            length = tokens.shape[1]
            tokens = functional.pad(tokens, (0, 0, 0, max(0, MAX_TEXT_TOKENS - length)))
            inputs["text_lengths"] = RegularInput(torch.full((tokens.shape[0],), length, device=device))
        inputs["c_crossattn"] = RegularInput(tokens)
        return inputs

    def _kept_audio(self, **kwargs: Any) -> torch.Tensor:
        """Return 1 where the sampler may not write, and the audio given with the condition or zeros [B, 1 + C, L]."""
        noise, device = kwargs["noise"], kwargs["device"]
        audio: torch.Tensor | None = kwargs.get("concat_latent_image")
        if audio is None:
            audio = torch.zeros_like(noise)
        elif audio.shape[1:] != noise.shape[1:]:
            raise ValueError(
                f"conditioning: its latent is not of the sampled one's shape; got {list(audio.shape[1:])}, expected "
                f"{list(noise.shape[1:])}"
            )
        mask: torch.Tensor | None = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        if mask is None:
            kept = torch.zeros_like(noise)[:, :1]
        else:
            kept = 1.0 - (mask if mask.shape[1] == 1 else torch.mean(mask, dim=1, keepdim=True))
            kept = spread_to_batch_size(kept, noise.shape[0])
        audio = spread_to_batch_size(self.process_latent_in(audio), noise.shape[0])
        return torch.cat([kept.to(device), audio.to(device)], dim=1)
