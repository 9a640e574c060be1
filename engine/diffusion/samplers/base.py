"""Types, formulas of a step and its report, which all samplers share.

A sampler takes `model(x, sigma [B], **extra_args) -> denoised`, the first `x` `[B, C, h, w]` (noise scaled to
`sigmas[0]`), `sigmas` `[n + 1]` in the host's memory (`host_levels.py`) or on the device of `x`, and calls
`callback({"x", "i", "sigma", "sigma_hat", "denoised"})` once a step. `disable` is ComfyUI's switch for a progress bar,
of which there is none here.
The ODE of Karras et al. 2022 (arXiv 2206.00364): dx/dsigma = d = (x - denoised) / sigma.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import divisor

ModelFunction = Callable[..., torch.Tensor]
StepCallback = Callable[[dict[str, Any]], None]
SamplerFunction = Callable[..., torch.Tensor]


def to_d(x: torch.Tensor, sigma: torch.Tensor, denoised: torch.Tensor) -> torch.Tensor:
    """Return the derivative dx/dsigma at x."""
    return (x - denoised) / divisor(sigma, x)


def get_ancestral_step(
    sigma_from: torch.Tensor, sigma_to: torch.Tensor, eta: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Return (sigma_down, sigma_up): the end of a deterministic step, and the noise that brings it to `sigma_to`."""
    if not eta:
        return sigma_to, 0.0
    sigma_up = min(sigma_to, eta * (sigma_to**2 * (sigma_from**2 - sigma_to**2) / sigma_from**2) ** 0.5)
    return (sigma_to**2 - sigma_up**2) ** 0.5, sigma_up


def churn(
    x: torch.Tensor, sigma: torch.Tensor, num_steps: int, s_churn: float, s_tmin: float, s_tmax: float, s_noise: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x_hat, sigma_hat), noisier by the churn: Karras et al. 2022, algorithm 2, lines 4 to 6."""
    gamma = min(s_churn / num_steps, 2**0.5 - 1) if s_churn > 0 and s_tmin <= sigma <= s_tmax else 0.0
    if gamma <= 0:
        return x, sigma
    sigma_hat = sigma * (gamma + 1)
    return x + torch.randn_like(x) * s_noise * (sigma_hat**2 - sigma**2) ** 0.5, sigma_hat


def report(
    callback: StepCallback | None, i: int, x: torch.Tensor, sigma: object, sigma_hat: object, denoised: torch.Tensor
) -> None:
    """Call the callback of step `i`."""
    if callback is not None:
        callback({"x": x, "i": i, "sigma": sigma, "sigma_hat": sigma_hat, "denoised": denoised})
