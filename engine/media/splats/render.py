"""Images of splats: Gaussians in slabs by depth, blended from front to back.

`N` Gaussians, `P` pixels of an image of `H W`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.splats.camera import Camera
from darkroom.engine.media.splats.footprints import Footprints, footprints_of
from darkroom.engine.media.splats.splat import Splat

STYLES = ("color", "clay", "depth", "normal")
GAUSSIANS_PER_SLAB, MOST_SLABS = 1000, 256
WEIGHTS_AT_ONCE = 2_000_000
LEAST = 1e-8
CLAY = 0.75
NORMAL_BLUR_PX = 1.2
KEY_LIGHT = (-0.4, -0.7, -0.6)  # towards the lower right, away from the viewer
SLABS_A_CHECK, HIDDEN = 8, 1e-3


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options for drawing Gaussians into an image."""

    style: str
    scale: float  # of their deviations
    sharpness: float  # above 1 the most opaque one of a slab shows more than its share
    headlight: float  # how much surfaces that turn away are darker


@dataclass(slots=True)
class _Layers:
    """Sums over Gaussians for each pixel."""

    colors: torch.Tensor  # [P, 3]
    depths: torch.Tensor  # [P]
    normals: torch.Tensor  # [P, 3]
    open_share: torch.Tensor  # [P], of what lies behind


def rendered(
    splat: Splat, camera: Camera, background: torch.Tensor, options: RenderOptions, cancel: CancelToken
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an image [H, W, 3] of one splat, without a batch, before a background [H, W, 3], and its mask [H, W].

    Colors blend as linear light. A depth is white where near, a normal map has x to the right, y up, z to the viewer.
    """
    height, width = background.shape[:2]
    seen = footprints_of(splat, camera, options.scale, width, height)
    if not len(seen.means):
        image = background if options.style == "color" else torch.zeros_like(background)
        return image, torch.zeros(height, width)
    if options.style == "clay":
        seen = replace(seen, colors=torch.full_like(seen.colors, CLAY))
    elif options.style == "color":
        seen, background = replace(seen, colors=_linear(seen.colors)), _linear(background)
    layers = _blended(seen, camera, (height, width), options.sharpness, cancel)
    mask = 1 - layers.open_share.reshape(height, width)
    image = _styled(layers, mask, background, options)
    return image.clamp(0, 1), mask.clamp(0, 1)


def _blended(seen: Footprints, camera: Camera, size: tuple[int, int], sharpness: float, cancel: CancelToken) -> _Layers:
    """Blend slabs from the nearest to the farthest, until what remains is hidden."""
    count = size[0] * size[1]
    layers = _Layers(torch.zeros(count, 3), torch.zeros(count), torch.zeros(count, 3), torch.ones(count))
    num_hidden = 0
    for number, slab in enumerate(_slabs(seen.means[:, 2])):
        front = _blend_slab(layers, seen, slab, camera, size, sharpness, cancel)
        if number % SLABS_A_CHECK == SLABS_A_CHECK - 1:
            num_hidden = num_hidden + 1 if float(front.max()) < HIDDEN else 0
            if num_hidden == 2:
                break
    return layers


def _slabs(depths: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield indices of Gaussians, about a thousand of neighbouring depths at once."""
    num_slabs = min(MOST_SLABS, max(1, len(depths) // GAUSSIANS_PER_SLAB))
    bounds = torch.linspace(0, len(depths), num_slabs + 1).round().long().tolist()
    order = depths.argsort()
    return (order[start:end] for start, end in zip(bounds[:-1], bounds[1:], strict=True))


def _blend_slab(
    layers: _Layers,
    seen: Footprints,
    slab: torch.Tensor,
    camera: Camera,
    size: tuple[int, int],
    sharpness: float,
    cancel: CancelToken,
) -> torch.Tensor:
    """Add one slab behind what is there; return how much [P] of it shows."""
    count = size[0] * size[1]
    opacities, depths, clearness = torch.zeros(count), torch.zeros(count), torch.zeros(count)
    colors, normals, weights = torch.zeros(count, 3), torch.zeros(count, 3), torch.zeros(count)
    for part, offsets in _parts(seen, slab):
        cancel.check()
        index, opacity = seen.weights(part, offsets, camera, size[1], size[0])
        index, sharp = index.reshape(-1), opacity**sharpness
        opacities.index_add_(0, index, opacity.reshape(-1))
        clearness.index_add_(0, index, torch.log1p(-opacity).reshape(-1))
        weights.index_add_(0, index, sharp.reshape(-1))
        colors.index_add_(0, index, (sharp[..., None] * seen.colors[part, None]).reshape(-1, 3))
        depths.index_add_(0, index, (opacity * seen.means[part, 2:]).reshape(-1))
        normals.index_add_(0, index, (opacity[..., None] * seen.normals[part, None]).reshape(-1, 3))
    opaque = 1 - torch.exp(clearness)
    front = layers.open_share * opaque
    opacities, weights = opacities.clamp(min=LEAST), weights.clamp(min=LEAST)
    layers.colors += front[:, None] * colors / weights[:, None]
    layers.depths += front * depths / opacities
    layers.normals += front[:, None] * normals / opacities[:, None]
    layers.open_share *= 1 - opaque
    return front


def _parts(seen: Footprints, slab: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield parts of a slab with the offsets [M, 2] of the window that they have in common."""
    for number, half in enumerate(seen.windows):
        lines = torch.arange(-half, half + 1.0)
        offsets = torch.cartesian_prod(lines, lines)
        members = slab[seen.window[slab] == number]
        for part in torch.split(members, max(WEIGHTS_AT_ONCE // len(offsets), 1)):
            if len(part):
                yield part, offsets


def _styled(layers: _Layers, mask: torch.Tensor, background: torch.Tensor, options: RenderOptions) -> torch.Tensor:
    if options.style == "depth":
        return _depth_image(layers.depths.reshape(mask.shape) / mask.clamp(min=1e-6), mask > 0.5)
    normals = _smooth_normals(layers.normals.reshape(*mask.shape, 3), mask)
    if options.style == "normal":
        return (normals * torch.tensor([1.0, -1.0, -1.0]) * 0.5 + 0.5).clamp(0, 1) * (mask > 0.5)[..., None]
    image = layers.colors.reshape(*mask.shape, 3)
    if options.style == "clay":
        light = functional.normalize(torch.tensor(KEY_LIGHT), dim=0)
        lit = (0.5 * (normals * light).sum(-1) + 0.5).clamp(0, 1)
        image = image * (0.35 + 0.65 * lit.square())[..., None]
    elif options.headlight > 0:
        facing = (-normals[..., 2]).clamp(0, 1)
        image = image * (1 + 0.6 * options.headlight * (facing - 1))[..., None]
    image = image + layers.open_share.reshape(*mask.shape, 1) * background
    return _displayed(image) if options.style == "color" else image


def _depth_image(depths: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    image = torch.zeros_like(depths)
    if shown.any():
        near, far = depths[shown].min(), depths[shown].max()
        image = torch.where(shown, ((far - depths) / (far - near).clamp(min=1e-6)).clamp(0, 1), image)
    return image[..., None].expand(*depths.shape, 3)


def _smooth_normals(normals: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return unit normals [H, W, 3] without their noise, blurred by how much each pixel is covered."""
    both = _blurred(torch.cat((normals, mask[..., None]), dim=-1))
    mean = both[..., :3] / both[..., 3:].clamp(min=1e-6)
    unit: torch.Tensor = mean / mean.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return unit


def _blurred(image: torch.Tensor) -> torch.Tensor:
    reach = round(3 * NORMAL_BLUR_PX)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1.0) / NORMAL_BLUR_PX).square())
    kernel = kernel / kernel.sum()
    channels = image.movedim(-1, 0)[:, None]
    channels = functional.conv2d(channels, kernel[None, None, None], padding=(0, reach))
    channels = functional.conv2d(channels, kernel[None, None, :, None], padding=(reach, 0))
    return channels[:, 0].movedim(0, -1)


def _linear(colors: torch.Tensor) -> torch.Tensor:
    return torch.where(colors <= 0.04045, colors / 12.92, ((colors.clamp(min=0) + 0.055) / 1.055) ** 2.4)


def _displayed(colors: torch.Tensor) -> torch.Tensor:
    return torch.where(colors <= 0.0031308, colors * 12.92, 1.055 * colors.clamp(min=0) ** (1 / 2.4) - 0.055)
