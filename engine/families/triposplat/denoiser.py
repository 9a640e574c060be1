"""Inputs of TripoSplat's network: tokens and latent of an image, and the shapes of the two streams of a latent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ListInput, RegularInput
from darkroom.engine.diffusion.denoiser import TEXT, Denoiser

REFERENCES = "reference_latents"


class TripoSplatDenoiser(Denoiser):
    """A network that reads an image, and generates a latent together with the camera."""

    comfy_name = "TripoSplat"
    takes_streams = True

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for a latent without a camera, and for an image of another VAE."""
        shapes: Sequence[Sequence[int]] = kwargs.get("latent_shapes") or ()
        if len(shapes) != 2:
            raise ValueError(
                f"latent_image: no latent with a camera; got {len(shapes) or 1} streams, expected the 2 that "
                "TripoSplatConditioning makes"
            )
        network: Any = self.diffusion_model
        network.anchors(shapes[0][1], torch.device(kwargs["device"]))
        inputs = super().extra_conds(**kwargs)
        tokens: torch.Tensor | None = kwargs.get(TEXT)
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.to(kwargs["device"]))
        references = kwargs.get(REFERENCES)
        if references is not None:
            inputs["ref_latents"] = ListInput([self._checked(latent, tokens) for latent in references])
        return inputs

    def _checked(self, latent: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
        """Return an image's latent. Raises ValueError for one of other channels, or of more cells than its tokens."""
        network: Any = self.diffusion_model
        channels: int = network.config.cell_dim
        if latent.ndim != 4 or latent.shape[1] != channels:
            raise ValueError(
                f"reference latents: a latent of another VAE than Flux.2's; got shape {list(latent.shape)}, expected "
                f"{channels} channels"
            )
        if tokens is not None and latent.shape[2] * latent.shape[3] > tokens.shape[1]:
            raise ValueError(
                f"reference latents: more cells than the image has tokens; got {latent.shape[2] * latent.shape[3]}, "
                f"expected at most {tokens.shape[1]}"
            )
        return latent
