"""FreeU: Si et al. 2023 (arXiv 2309.11497): amplified backbone features, damped low frequencies of skip features.

`h` are features of the way up `[B, C, h, w]`, `skip` those of the skip connection they meet.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


class FreeU:
    """Output block patch of FreeU. `factors`: number of channels -> (backbone factor b, skip factor s).

    The first version scales half of the backbone's channels alike; the second by how strong the mean over channels is
    in a cell (the authors' "v2", eq. 4 of the paper).
    """

    def __init__(self, factors: Mapping[int, tuple[float, float]], *, is_structured: bool) -> None:
        self.factors = dict(factors)
        self.is_structured = is_structured

    def __call__(
        self, h: torch.Tensor, skip: torch.Tensor, options: Mapping[str, object]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        factors = self.factors.get(h.shape[1])
        if factors is None:
            return h, skip
        backbone, skip_factor = factors
        half = h.shape[1] // 2
        gain = (backbone - 1) * _strength(h) + 1 if self.is_structured else backbone
        return torch.cat([h[:, :half] * gain, h[:, half:]], dim=1), low_frequencies_scaled(skip, skip_factor)


def _strength(h: torch.Tensor) -> torch.Tensor:
    """Return the mean over channels, scaled to 0..1 for each item: [B, 1, h, w]."""
    mean = h.mean(1, keepdim=True)
    flat = mean.flatten(1)
    lowest, highest = (edge[:, None, None, None] for edge in (flat.min(dim=1).values, flat.max(dim=1).values))
    return (mean - lowest) / (highest - lowest)


def low_frequencies_scaled(x: torch.Tensor, scale: float, threshold: int = 1) -> torch.Tensor:
    """Scale the frequencies within `threshold` of the spectrum's centre (a square, not symmetric: 2 by 2 for 1)."""
    spectrum = torch.fft.fftshift(torch.fft.fftn(x.float(), dim=(-2, -1)), dim=(-2, -1))
    row, column = x.shape[-2] // 2, x.shape[-1] // 2
    spectrum[..., row - threshold : row + threshold, column - threshold : column + threshold] *= scale
    filtered: torch.Tensor = torch.fft.ifftn(torch.fft.ifftshift(spectrum, dim=(-2, -1)), dim=(-2, -1)).real
    return filtered.to(x.dtype)
