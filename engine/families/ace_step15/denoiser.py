"""Inputs of ACE-Step 1.5's network: tags, lyrics, codes of a draft, and reference audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.ace_step15.audio_codes import NUM_CODES
from darkroom.engine.families.ace_step15.silence import silent_latent

LYRICS, CODES, TIMBRES = "conditioning_lyrics", "audio_codes", "reference_audio_timbre_latents"


class AceStep15Denoiser(Denoiser):
    """A network that reads tags and lyrics, whose lengths are not padded, and the latent of reference audio."""

    comfy_name = "ACEStep15"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for a conditioning without lyrics, as other nodes encode it."""
        inputs = super().extra_conds(**kwargs)
        device, length = kwargs["device"], kwargs["noise"].shape[2]
        tokens, lyrics = kwargs.get("cross_attn"), kwargs.get(LYRICS)
        if tokens is not None:
            if lyrics is None:
                raise ValueError(
                    "conditioning: it has no lyrics; got one of another text encoder, expected one of "
                    "TextEncodeAceStepAudio1.5 with ACE-Step 1.5's text encoders"
                )
            if not tokens.any():
                inputs["replace_with_null_embeds"] = ConstantInput(True)
            inputs["c_crossattn"] = RegularInput(tokens.to(device))
            inputs["lyric_embed"] = RegularInput(lyrics.to(device))
        timbres: Sequence[torch.Tensor] = kwargs.get(TIMBRES) or ()
        codes = kwargs.get(CODES)
        silence = silent_latent(length, device)
        if timbres:
            reference = self._reference(timbres[-1]).to(silence)[:, :, :length]
            rest = silence[:, :, reference.shape[2] :].expand(reference.shape[0], -1, -1)
            silence = torch.cat([reference, rest], dim=2)
            inputs["is_covers"] = ConstantInput(True)
        elif codes is not None:
            inputs["audio_codes"] = RegularInput(_checked(torch.tensor(codes)).to(device))
        else:
            inputs["is_covers"] = ConstantInput(False)
        inputs["refer_audio"] = RegularInput(silence)
        return inputs

    def _reference(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the latent of reference audio. Raises ValueError for one of another VAE."""
        channels = self.latent_format.latent_channels
        if latent.ndim != 3 or latent.shape[1] != channels:
            raise ValueError(
                f"latent: reference audio of another VAE; got shape {list(latent.shape)}, expected [batch, {channels}, "
                "length], as VAEEncodeAudio makes with ACE-Step 1.5's VAE"
            )
        return latent


def _checked(codes: torch.Tensor) -> torch.Tensor:
    """Return codes [B, N]. Raises ValueError for such as the network does not have."""
    if (
        codes.ndim != 2
        or codes.is_floating_point()
        or (codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < NUM_CODES)
    ):
        raise ValueError(f"audio_codes: no codes of ACE-Step 1.5; expected lists of numbers from 0 to {NUM_CODES - 1}")
    return codes
