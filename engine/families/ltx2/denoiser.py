"""The inputs of LTX-2 beside the latents: prompt, frame rate, noise levels, frames and audio that are given to it.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells, `T` tokens of the video, `L` latent frames of audio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import TEXT
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.diffusion.nested_latent import unpacked
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser
from darkroom.engine.families.ltx2.guidance import REFERENCE
from darkroom.engine.families.ltx2.text_projection import UNPROCESSED
from darkroom.engine.families.ltx_video.denoiser import DEFAULT_FRAME_RATE, GUIDES_ARE_NOT_CUT, kept_tokens_of

VIDEO_LEVELS, AUDIO_LEVELS = "video_levels", "audio_levels"
"""Inputs of the denoiser: shares of the noise level [B, f], [B, T] or [B, L] that a stream's tokens have."""


class Ltx2Denoiser(TextTokensDenoiser):
    """LTX-2, which sees what it may not paint at noise level 0, of a video and of its audio."""

    comfy_name = "LTXAV"
    takes_streams = True

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        text: torch.Tensor | None = kwargs.get(TEXT)
        if text is not None:
            given = text.to(device=kwargs["device"], dtype=self.compute_dtype)
            network: Any = self.diffusion_model
            read = network.preprocess_text_embeds(given, unprocessed=bool(kwargs.get(UNPROCESSED, False)))
            inputs["c_crossattn"] = RegularInput(read)
        if kwargs.get("attention_mask") is not None:
            inputs["attention_mask"] = RegularInput(kwargs["attention_mask"])
        inputs["frame_rate"] = ConstantInput(kwargs.get("frame_rate", DEFAULT_FRAME_RATE))
        inputs |= self._levels(kwargs)
        if kwargs.get(REFERENCE) is not None:
            inputs[REFERENCE] = RegularInput(kwargs[REFERENCE]["tokens"])
        if kwargs.get("generated_keyframes") is not None:
            inputs["generated_keyframes"] = ConstantInput(kwargs["generated_keyframes"])
        return inputs

    def check_text(self, condition: Mapping[str, Any]) -> None:
        """Raise ValueError for text [..., D] of other widths than the network reads: of another encoder."""
        tokens: torch.Tensor | None = condition.get(TEXT)
        config: Any = self.diffusion_model.config
        if tokens is None or tokens.shape[-1] in config.text_widths:
            return
        raise ValueError(
            f"conditioning: its text encoder does not fit the model; got text of width {tokens.shape[-1]}, expected "
            f"{' or '.join(map(str, config.text_widths))}, as LTXAVTextEncoderLoader gives it with a file of LTX-2"
        )

    def _levels(self, given: Mapping[str, Any]) -> dict[str, BatchedInput]:
        """Return the noise levels of tokens where a mask sets them, and the frames of guides among a video's."""
        mask: torch.Tensor | None = given.get("concat_mask", given.get("denoise_mask"))
        shapes = given.get("latent_shapes")
        audio_mask: torch.Tensor | None = None
        if mask is not None and shapes:
            mask, *others = unpacked(mask, shapes)
            audio_mask = others[0] if others else None
        inputs: dict[str, BatchedInput] = {}
        guides: torch.Tensor | None = given.get("keyframe_idxs")
        weights: torch.Tensor | None = given.get("guide_weights")
        if guides is not None and guides.shape[2]:
            inputs["keyframe_idxs"] = RegularInput(guides)
            kept, weights = kept_tokens_of(mask, guides, weights)
            if kept is not None:
                inputs["kept_tokens"] = RegularInput(kept)
            if weights is not None:
                inputs["guide_weights"] = RegularInput(weights)
        if mask is not None:
            inputs[VIDEO_LEVELS] = RegularInput(video_levels(mask))
        if audio_mask is not None:
            inputs[AUDIO_LEVELS] = RegularInput(audio_mask[:, 0, :, 0])
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return noise levels of a context window's tokens; None for other inputs. Raises ValueError for guides."""
        if name == "keyframe_idxs":
            raise ValueError(GUIDES_ARE_NOT_CUT)
        levels: torch.Tensor = given.cond
        if name == AUDIO_LEVELS:
            return RegularInput(levels[:, window.further_places[0]])
        if name != VIDEO_LEVELS:
            return None
        by_frame = levels.reshape(levels.shape[0], window.total_frames, -1)
        return RegularInput(window.get_tensor(by_frame, 1, retained).flatten(1))

    def process_timestep(self, timestep: torch.Tensor, **kwargs: Any) -> Any:
        """Return the noise levels of the video's tokens and of the audio's: [B] each, or one for each row of tokens."""
        levels = (kwargs.get(name) for name in (VIDEO_LEVELS, AUDIO_LEVELS))
        return tuple(timestep if item is None else item * timestep.view(-1, 1) for item in levels)

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """Return the latent itself: what is kept is seen without noise."""
        return latent_image


def video_levels(mask: torch.Tensor) -> torch.Tensor:
    """Return the shares of the noise level that tokens of a video have, by a mask [B, C, f, h, w].

    One for each latent frame [B, f] where all cells of a frame have the same, else one for each token [B, T].
    """
    levels = mask[:, 0].flatten(2)  # [B, f, h * w]
    is_of_frames = bool((levels == levels[..., :1]).all())
    return levels[..., 0] if is_of_frames else levels.flatten(1)
