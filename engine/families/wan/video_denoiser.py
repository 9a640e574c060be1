"""The inputs of Wan's networks beside the latent: text, images seen or given, masks, reference images.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells, `T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import BatchedInput, ListInput, RegularInput, spread_to_batch_size
from darkroom.engine.diffusion.denoiser import fit
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser

MASK_CHANNELS = 4  # of the frames that one latent frame is


class VideoDenoiser(TextTokensDenoiser):
    """A network that may read more channels than it draws: a mask and a latent of images.

    `always_masked`: it reads a mask whatever the channels of the images are.
    """

    comfy_name = "WAN21"
    always_masked = False

    def concat_cond(self, **kwargs: Any) -> torch.Tensor | None:
        """Return the further channels [B, C, f, h, w] of the network, zeros without images; None without any."""
        noise: torch.Tensor = kwargs["noise"]
        device: torch.device = kwargs["device"]
        num_extra = int(self.diffusion_model.in_channels) - noise.shape[1]  # type: ignore[arg-type]
        if num_extra == 0:
            return None
        given: torch.Tensor | None = kwargs.get("concat_latent_image")
        if given is None:
            image = noise.new_zeros(noise.shape[0], num_extra, *noise.shape[2:])
        else:
            image = spread_to_batch_size(self._each_processed(_resized(given.to(device), noise)), noise.shape[0])
        room = num_extra - MASK_CHANNELS
        if image.shape[1] != room and (not self.always_masked or image.shape[1] == num_extra):
            return image
        image = image[:, :room]
        mask = self.given_mask(kwargs.get("concat_mask", kwargs.get("denoise_mask")), noise, device)
        place = kwargs.get("concat_mask_index", 0)
        return torch.cat([image[:, :place], mask, image[:, place:]], dim=1)

    def _each_processed(self, image: torch.Tensor) -> torch.Tensor:
        """Return latents beside each other, each as the network's own is."""
        parts = torch.split(image, self.latent_format.latent_channels, dim=1)
        return torch.cat([self.process_latent_in(part) for part in parts], dim=1)

    def seen_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return an image encoder's tokens [B, T, D]. Raises ValueError for those of another encoder's width."""
        config: Any = self.diffusion_model.config
        if config.image_dim and tokens.shape[-1] != config.image_dim:
            raise ValueError(
                f"clip_vision_output: its image encoder does not fit the model; got tokens of width "
                f"{tokens.shape[-1]}, expected {config.image_dim}, as CLIP ViT-H gives them"
            )
        return tokens

    def given_mask(self, mask: torch.Tensor | None, noise: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the mask [B, 4, f, h, w] of what is given (1) and not drawn; nothing without a mask."""
        if mask is None:
            return torch.zeros_like(noise)[:, :MASK_CHANNELS]
        if mask.shape[1] != MASK_CHANNELS:
            mask = mask.mean(dim=1, keepdim=True)
        kept = _resized(1.0 - mask.to(device), noise)
        kept = functional.pad(kept, (0, 0, 0, 0, 0, max(0, noise.shape[2] - kept.shape[2])))
        return spread_to_batch_size(kept.expand(-1, MASK_CHANNELS, -1, -1, -1), noise.shape[0])

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        seen = kwargs.get("clip_vision_output")
        if seen is not None:
            inputs["clip_fea"] = RegularInput(self.seen_tokens(seen.penultimate_hidden_states))
        if kwargs.get("time_dim_concat") is not None:
            inputs["time_dim_concat"] = RegularInput(self.process_latent_in(kwargs["time_dim_concat"]))
        references = kwargs.get("reference_latents")
        if references is not None:
            inputs["reference_latent"] = RegularInput(self.process_latent_in(references[-1])[:, :, 0])
        others: Sequence[torch.Tensor] | None = kwargs.get("context_latents")
        if others is not None:
            inputs["context_latents"] = ListInput([self.process_latent_in(other) for other in others])
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is.

        Of other videos those of as many frames are cut.
        """
        if name != "context_latents":
            return None
        frames = window.total_frames
        whole = [other.ndim <= window.dim or other.shape[window.dim] != frames for other in given.cond]
        cut = [
            other if is_whole else window.get_tensor(other, retained=retained)
            for other, is_whole in zip(given.cond, whole, strict=True)
        ]
        return ListInput(cut)


class FrameByFrameDenoiser(VideoDenoiser):
    """Wan that draws a few frames after the other."""

    comfy_name = "WAN21_CausalAR"


class SegmentedVideoDenoiser(VideoDenoiser):
    """FlowRVS, which draws what a text names in a video."""

    comfy_name = "WAN21_FlowRVS"
    always_masked = True


def _resized(frames: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return frames [B, C, f, h, w] of the size of `like`."""
    if frames.shape[-2:] == like.shape[-2:]:
        return frames
    flat = fit(frames.transpose(1, 2).flatten(0, 1), like)
    return flat.view(frames.shape[0], -1, *flat.shape[1:]).transpose(1, 2)
