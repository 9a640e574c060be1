"""Previews of the Gaussians that a latent of TripoSplat would become, as discs seen from a camera.

`N` Gaussians, `n` of them at once, `M` pixels of a disc, `S` pixels a side.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.diffusion.nested_latent import first_stream
from darkroom.engine.errors import OutOfMemory
from darkroom.engine.families.triposplat.transformer import LATENT_CHANNELS, NUM_TOKENS
from darkroom.engine.images.pixels import to_pillow
from darkroom.engine.media.splats.splat import Splat
from darkroom.engine.models.splat_vae import SplatVae
from darkroom.engine.nodes.running_call import running_context

log = logging.getLogger(__name__)

SIDE_PX, LARGEST_PX = 320, 512
FIELD_DEGREES, DISTANCE = 35.0, 2.2
NEAREST, LEAST_OPACITY = 1e-2, 0.01
PIXELS_AT_ONCE = 1 << 20  # of discs
CALLBACK = 5  # its position among the parameters of `outer_sample`
SEED = 0


@dataclass(frozen=True, slots=True)
class PreviewView:
    """Settings of a preview: the number of Gaussians, levels of the octree, and the camera's angles in degrees."""

    num_gaussians: int
    num_levels: int
    yaw: float
    pitch: float
    largest_radius_px: int


@dataclass(frozen=True, slots=True)
class SplatPreviews:
    """A wrapper of sampling that reports the Gaussians of every step."""

    vae: SplatVae
    view: PreviewView

    def wrap_run(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample, with a callback that reports a preview behind the sampler's own where one is asked for.

        A preview that fails for want of memory, or of a latent that is not one of splats, is the run's last one.
        """
        context = running_context()
        if context is None or context.report_preview is None:
            return executor(*args, **kwargs)
        show = context.report_preview
        given = list(args)
        own = given[CALLBACK] if len(given) > CALLBACK else kwargs.get("callback")
        has_failed = False

        def report(step: int, denoised: Any, x: Any, total_steps: int) -> None:
            nonlocal has_failed
            if own is not None:
                own(step, denoised, x, total_steps)
            if has_failed:
                return
            try:
                image = self.image_of(denoised)
            except (torch.OutOfMemoryError, OutOfMemory, ValueError) as error:
                has_failed = True
                log.warning("previews of splats stopped: %s", error)
                return
            show(("JPEG", to_pillow(image), LARGEST_PX))

        if len(given) > CALLBACK:
            given[CALLBACK] = report
        else:
            kwargs["callback"] = report
        return executor(*given, **kwargs)

    def image_of(self, denoised: Any) -> torch.Tensor:
        """Return the image [S, S, 3] of the first item of a latent, nested or packed. Raises ValueError for another."""
        numbers = first_stream(denoised)[:1].flatten(1)[:, : NUM_TOKENS * LATENT_CHANNELS]
        if numbers.shape[1] < NUM_TOKENS * LATENT_CHANNELS:
            raise ValueError(
                f"latent: none of splats; got {numbers.shape[1]} numbers, expected {NUM_TOKENS * LATENT_CHANNELS}"
            )
        latent = numbers.view(1, NUM_TOKENS, LATENT_CHANNELS)
        draw = torch.Generator(device="cpu").manual_seed(SEED)
        splat = self.vae.decode_splat(latent, self.view.num_gaussians, self.view.num_levels, draw)
        return disc_image(splat.item(0), self.view)


def disc_image(splat: Splat, view: PreviewView) -> torch.Tensor:
    """Return Gaussians [N, ...] as discs of their colours, the nearest in front, on black [S, S, 3], 0..1."""
    seen = _turned(splat.positions.float(), view)
    depths = seen[:, 2] + DISTANCE
    is_seen = (depths > NEAREST) & (splat.opacities[:, 0] > LEAST_OPACITY)
    seen, depths = seen[is_seen], depths[is_seen]
    focus = SIDE_PX / 2 / math.tan(math.radians(FIELD_DEGREES) / 2)
    middles = SIDE_PX / 2 + focus * seen[:, :2] / depths[:, None]
    radii = (focus * splat.scales[is_seen].amax(dim=1) / depths).round().clamp(1, view.largest_radius_px).long()
    order = depths.argsort(stable=True)
    middles, radii, own = middles[order], radii[order], splat.colors()[is_seen][order]
    nearest = torch.full((SIDE_PX * SIDE_PX,), len(order))  # the first Gaussian of each pixel, or none
    for radius in range(1, view.largest_radius_px + 1):
        side = torch.arange(-radius, radius + 1)
        offsets = torch.cartesian_prod(side, side)
        offsets = offsets[offsets.square().sum(dim=1) <= radius * radius]  # [M, 2]
        members = (radii == radius).nonzero()[:, 0]
        for part in torch.split(members, PIXELS_AT_ONCE // len(offsets)):
            pixels = (middles[part, None] + offsets).long().clamp(0, SIDE_PX - 1)  # [n, M, 2]
            index = pixels[..., 1] * SIDE_PX + pixels[..., 0]
            nearest.scatter_reduce_(0, index.flatten(), part[:, None].expand_as(index).flatten(), "amin")
    return torch.cat([own, torch.zeros(1, 3)])[nearest].view(SIDE_PX, SIDE_PX, 3)


def _turned(positions: torch.Tensor, view: PreviewView) -> torch.Tensor:
    """Return positions [N, 3] before a camera that is turned about the upright axis, then tilted."""
    yaw, pitch = math.radians(view.yaw), math.radians(view.pitch)
    x, y, z = positions.unbind(-1)
    x, z = x * math.cos(yaw) + z * math.sin(yaw), z * math.cos(yaw) - x * math.sin(yaw)
    y, z = y * math.cos(pitch) - z * math.sin(pitch), y * math.sin(pitch) + z * math.cos(pitch)
    return torch.stack([x, y, z], dim=-1)
