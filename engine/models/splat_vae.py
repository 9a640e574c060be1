"""VAE of splats: Gaussians in space, decoded from latents of tokens."""

from __future__ import annotations

import math

import torch

from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.media.rotations import multiplied, normalized
from darkroom.engine.media.splats.splat import Splat
from darkroom.engine.models.vae import Vae

NODE = "VAEDecodeTripoSplat"
QUARTER_TURN = (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0)  # about x: z axes become y axes


class SplatVae(Vae):
    """VAE of splats with ComfyUI's members."""

    latent_dim = 1

    def decode(self, samples_in: torch.Tensor, vae_options: OptionDict | None = None) -> torch.Tensor:
        """Raise ValueError: latents are not decoded to images."""
        raise ValueError(f"vae: one of splats; its latents are no images, expected to be decoded by {NODE}")

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        """Raise ValueError: images cannot be encoded."""
        raise ValueError("vae: one of splats; got images, expected a VAE of those")

    def decode_tiled(self, samples: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Raise ValueError, as `decode` does."""
        return self.decode(samples)

    def encode_tiled(self, pixel_samples: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Raise ValueError, as `encode` does."""
        return self.encode(pixel_samples)

    @torch.no_grad()
    def decode_splat(self, latent: torch.Tensor, num_gaussians: int, num_levels: int, draw: torch.Generator) -> Splat:
        """Decode latents [B, N, C] to Gaussians with upright y axes on the CPU, whose points a generator draws.

        Raises ValueError for latents of another VAE.
        """
        channels: int = self.first_stage_model.latent_channels
        if latent.ndim != 3 or latent.shape[2] != channels:
            raise ValueError(
                f"samples: no latent of splats; got shape {list(latent.shape)}, expected [batch, tokens, {channels}]"
            )
        working: int = self.first_stage_model.splat_bytes(latent.shape[1], num_gaussians) * len(latent)
        with self.patcher.in_use(working_bytes=working * self.vae_dtype.itemsize) as network:
            found = network.decode_splat(latent.to(self.device, self.vae_dtype), num_gaussians, num_levels, draw)
            parts = (found.positions, found.scales, found.rotations, found.opacities, found.colors)
            positions, scales, rotations, opacities, colors = (part.to(self.output_device) for part in parts)
        x, y, z = positions.unbind(-1)
        turned = normalized(multiplied(torch.tensor(QUARTER_TURN), normalized(rotations)))
        turned = torch.where(turned[..., :1] < 0, -turned, turned)
        return Splat(torch.stack([x, -z, y], dim=-1), scales, turned, opacities, colors[:, :, None])
