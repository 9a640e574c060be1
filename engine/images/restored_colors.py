"""Colours of restored frames brought to those of the frames that they were made of. The detail stays.

Frames are float32 `[3, H, W]` of -1..1, both of one size.

- `wavelet`: low frequencies are those of the reference, high ones those of the frame. J. Wang et al., "Exploiting
  Diffusion Prior for Real-World Image Super-Resolution", 2023 (arXiv 2305.07015), section 3.4.
- `adain`: mean and deviation of each channel. X. Huang, S. Belongie, "Arbitrary Style Transfer in Real-time with
  Adaptive Instance Normalization", 2017 (arXiv 1703.06868).
- `lab`: after `wavelet`, the distribution of a* and b*, and a fifth of that of L*, in CIE L*a*b*, by exact histogram
  specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn import functional

from darkroom.engine.images.transfer_curves import linear_to_srgb, srgb_to_linear

LEVELS = 5  # of the decomposition, each of twice the radius
LARGEST_SHARE = 8  # of a side, that a radius may be: one part of so many
BLUR = ((0.0625, 0.125, 0.0625), (0.125, 0.25, 0.125), (0.0625, 0.125, 0.0625))
LEAST_VARIANCE = 1e-5
LIGHTNESS_KEPT = 0.8
RGB_TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
XYZ_TO_RGB = (
    (3.2404542, -1.5371385, -0.4985314), (-0.9692660, 1.8760108, 0.0415560), (0.0556434, -0.2040259, 1.0572252),
)  # fmt: skip
WHITE_X, WHITE_Z = 0.95047, 1.08883  # of D65; Y is 1
DELTA = 6.0 / 29.0  # CIE 15: below its cube the curve is a line
KAPPA = (29.0 / 3.0) ** 3


def wavelet_transfer(frame: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the frame with the low frequencies of the reference, clamped to -1..1."""
    details = frame - _low_frequencies(frame)
    return details.add_(_low_frequencies(reference)).clamp_(-1.0, 1.0)


def mean_transfer(frame: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the frame with mean and deviation of each channel of the reference, clamped to -1..1."""
    own, wanted = _moments(frame), _moments(reference)
    return ((frame - own[0]) / own[1] * wanted[1] + wanted[0]).clamp_(-1.0, 1.0)


def lab_transfer(frame: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the frame with the distribution of the reference's colours in L*a*b*, -1..1."""
    details = wavelet_transfer(frame, reference)
    own, wanted = (_lab_of(((item + 1.0) * 0.5).clamp_(0.0, 1.0)) for item in (details, reference))
    lightness, a, b = (_with_distribution(*pair) for pair in zip(own, wanted, strict=True))
    lightness = own[0] * LIGHTNESS_KEPT + lightness * (1.0 - LIGHTNESS_KEPT)
    return _rgb_of(torch.stack([lightness, a, b])) * 2.0 - 1.0


METHODS: Final[Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "lab": lab_transfer,
    "wavelet": wavelet_transfer,
    "adain": mean_transfer,
}


def _low_frequencies(frame: torch.Tensor) -> torch.Tensor:
    """Return a frame behind blurs of radii of 1, 2, 4, 8, and 16; those of small frames are smaller."""
    kernel = frame.new_tensor(BLUR).expand(frame.shape[0], 1, 3, 3)
    most = max(1, min(frame.shape[1:]) // LARGEST_SHARE)
    image = frame[None]
    for level in range(LEVELS):
        radius = min(2**level, most)
        padded = functional.pad(image, (radius, radius, radius, radius), mode="replicate")
        image = functional.conv2d(padded, kernel, groups=frame.shape[0], dilation=radius)
    return image[0]


def _moments(frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation [C, 1, 1] of each channel."""
    pixels = frame.flatten(1)
    deviation = (pixels.var(dim=1, correction=0) + LEAST_VARIANCE).sqrt()
    return pixels.mean(dim=1)[:, None, None], deviation[:, None, None]


def _with_distribution(channel: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return a channel [H, W] whose n-th smallest value is the reference's n-th smallest."""
    order = channel.flatten().sort().indices
    values = reference.flatten().sort().values
    return torch.empty_like(values).scatter_(0, order, values).view(channel.shape)


def _by_matrix(pixels: torch.Tensor, matrix: tuple[tuple[float, ...], ...]) -> torch.Tensor:
    """Return colours [3, H, W] by a matrix."""
    rows = pixels.flatten(1).T
    return (rows @ rows.new_tensor(matrix).T).T.view(pixels.shape)


def _lab_of(rgb: torch.Tensor) -> torch.Tensor:
    """Return sRGB [3, H, W] of 0..1 as L*a*b*."""
    x, y, z = _by_matrix(srgb_to_linear(rgb), RGB_TO_XYZ)
    xyz = torch.stack([x / WHITE_X, y, z / WHITE_Z])
    fx, fy, fz = torch.where(xyz > DELTA**3, torch.pow(xyz, 1.0 / 3.0), (xyz * KAPPA + 16.0) / 116.0)
    return torch.stack([fy * 116.0 - 16.0, (fx - fy) * 500.0, (fy - fz) * 200.0])


def _rgb_of(lab: torch.Tensor) -> torch.Tensor:
    """Return L*a*b* [3, H, W] as sRGB, clamped to 0..1."""
    lightness, a, b = lab
    fy = (lightness + 16.0) / 116.0
    roots = torch.stack([a / 500.0 + fy, fy, fy - b / 200.0])
    x, y, z = torch.where(roots > DELTA, torch.pow(roots, 3.0), (roots * 116.0 - 16.0) / KAPPA)
    return linear_to_srgb(_by_matrix(torch.stack([x * WHITE_X, y, z * WHITE_Z]), XYZ_TO_RGB)).clamp(0.0, 1.0)
