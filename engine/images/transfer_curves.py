"""The transfer curve of sRGB (IEC 61966-2-1): encoded values of 0..1 to light, and back."""

from __future__ import annotations

import torch


def srgb_to_linear(colors: torch.Tensor) -> torch.Tensor:
    """Return the light of encoded values."""
    curved = ((colors.clamp(min=0.0) + 0.055) / 1.055) ** 2.4
    return torch.where(colors <= 0.04045, colors / 12.92, curved)


def linear_to_srgb(light: torch.Tensor) -> torch.Tensor:
    """Return the encoded values of light."""
    curved = 1.055 * light.clamp(min=0.0) ** (1 / 2.4) - 0.055
    return torch.where(light <= 0.0031308, light * 12.92, curved)
