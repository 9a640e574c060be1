"""Denoisers of images whose latents are videos of one frame. `B` batch, `T` tokens, `D` width."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput
from darkroom.engine.families.references_denoiser import ReferencesDenoiser


class ImageVideoDenoiser(ReferencesDenoiser):
    """A network of images [B, C, 1, h, w], told by a node how it sees reference images.

    Raises ValueError for text and latents that are not made for it.
    """

    @property
    def takes_frames(self) -> bool:
        """True for a network whose latents may have several frames."""
        return False

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        self._check(kwargs)
        return super().extra_conds(**kwargs)

    def _check(self, options: dict[str, Any]) -> None:
        config: Any = self.diffusion_model.config
        latents = {"latent_image": options["noise"]}
        latents |= {f"reference_latents[{place}]": item for place, item in enumerate(_references(options))}
        for name, latent in latents.items():
            if latent.shape[1] != config.in_channels:
                raise ValueError(
                    f"{name}: its VAE is not the model's; got a latent of {latent.shape[1]} channels, expected "
                    f"{config.in_channels}"
                )
            if latent.ndim == 5 and latent.shape[2] != 1 and not self.takes_frames:
                raise ValueError(
                    f"{name}: the model draws images; got a latent of {latent.shape[2]} frames, expected 1"
                )


def _references(options: dict[str, Any]) -> list[torch.Tensor]:
    return list(options.get("reference_latents") or ())
