"""Noise of a Brownian path: the noise between two levels is the same whichever steps lead from one to the other.

The path is torchsde's Brownian tree (Li et al. 2020, arXiv 2001.01328), drawn on the CPU from the seed; SDE samplers
ask it for increments, so that more steps refine an image instead of changing it.
"""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.noise import NoiseSampler
from darkroom.engine.diffusion.options import ExtraArgs


def brownian_noise_sampler(
    x: torch.Tensor, sigma_min: torch.Tensor, sigma_max: torch.Tensor, seed: int | None = None, *, on_cpu: bool = True
) -> NoiseSampler:
    """Return (sigma, sigma_next) -> unit noise of `x`'s shape. `on_cpu=False` draws on `x`'s device (`_gpu` samplers).

    Without a seed one is drawn from torch's global generator. Between levels that are not finite the noise is NaN.
    """
    import torchsde  # type: ignore[import-untyped]  # only the SDE samplers need it

    if seed is None:
        seed = int(torch.randint(0, 2**63 - 1, ()).item())
    low, high = (on_host(torch.as_tensor(level).detach()) for level in (sigma_min, sigma_max))
    is_falling = bool(low > high)
    if is_falling:
        low, high = high, low
    start = torch.zeros_like(x, device="cpu" if on_cpu else None)
    tree = torchsde.BrownianTree(low, start, high, entropy=seed)

    def draw(sigma: torch.Tensor, sigma_next: torch.Tensor) -> torch.Tensor:
        first, second = torch.as_tensor(sigma), torch.as_tensor(sigma_next)
        first, second = on_host(first.detach()), on_host(second.detach())
        if not (first.isfinite() and second.isfinite()):  # the tree would halve its intervals without end
            return torch.full_like(x, torch.nan)
        early, late, sign = (first, second, 1) if first < second else (second, first, -1)
        increment: torch.Tensor = tree(early.float(), late.float()) if on_cpu else tree(early, late)
        noise = increment.to(first.dtype) * (-sign if is_falling else sign) / (second - first).abs().sqrt()
        return noise.to(x.device)

    return draw


def brownian_noise_of(
    x: torch.Tensor, sigmas: torch.Tensor, extra_args: ExtraArgs | None, *, on_cpu: bool
) -> NoiseSampler:
    """Return the noise of a path between the levels of `sigmas`, drawn from the seed that a run's arguments have."""
    lowest, highest = sigmas[sigmas > 0].min(), sigmas.max()
    return brownian_noise_sampler(x, lowest, highest, (extra_args or {}).get("seed"), on_cpu=on_cpu)
