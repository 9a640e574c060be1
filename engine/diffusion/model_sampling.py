"""Parameterisations: the reading of a network's output (eps, v, x0...) and the noise levels of its training.

`sigma` is the standard deviation of the noise of the variance-exploding form x = x0 + sigma * n (Karras et al. 2022,
arXiv 2206.00364), `timestep` the number the network takes. A network's parameterisation is a class made of one schedule
and one prediction: `class EpsDiscrete(DiscreteSchedule, Eps)`; nodes put another such object in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def reshape_sigma(sigma: torch.Tensor, num_dims: int) -> torch.Tensor:
    """Reshape `sigma` so that it multiplies a tensor `[B, ...]` of that many dimensions."""
    if sigma.nelement() == 1:
        return sigma.view(())
    return sigma.view(sigma.shape[:1] + (1,) * (num_dims - 1))


class Eps:
    """The network predicts the noise n (Ho et al. 2020, arXiv 2006.11239)."""

    sigma_data: float

    def calculate_input(self, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        sigma = reshape_sigma(sigma, noise.ndim)
        return noise / (sigma**2 + self.sigma_data**2) ** 0.5

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        return model_input - model_output * reshape_sigma(sigma, model_output.ndim)

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        """Return the first x of sampling. At full noise the variance of the data counts too (`max_denoise`)."""
        sigma = reshape_sigma(sigma, noise.ndim)
        factor = torch.sqrt(1.0 + sigma**2.0) if max_denoise else sigma
        return noise * factor + latent_image

    def inverse_noise_scaling(self, sigma: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        return latent


class VPrediction(Eps):
    """The network predicts v = alpha * n - sigma * x0 (Salimans and Ho 2022, arXiv 2202.00512)."""

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        sigma = reshape_sigma(sigma, model_output.ndim)
        variance = sigma**2 + self.sigma_data**2
        return model_input * self.sigma_data**2 / variance - model_output * sigma * self.sigma_data / variance**0.5


class Edm(VPrediction):
    """The network predicts F of Karras et al. 2022, eq. 7: v with the other sign."""

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        sigma = reshape_sigma(sigma, model_output.ndim)
        variance = sigma**2 + self.sigma_data**2
        return model_input * self.sigma_data**2 / variance + model_output * sigma * self.sigma_data / variance**0.5


class UnscaledV(Eps):
    """The network predicts v of an input of the variance-preserving form, which it takes as it is (CogVideoX).

    Samplers whose x is of the variance-exploding form do not scale it for such a network either, as in ComfyUI.
    """

    def calculate_input(self, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        sigma = reshape_sigma(sigma, model_output.ndim)
        deviation = (sigma**2 + 1.0) ** 0.5
        return model_input / deviation - model_output * sigma / deviation


class X0(Eps):
    """The network predicts the clean latent."""

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        return model_output


def spaced_betas(kind: str, num_timesteps: int, start: float, end: float) -> torch.Tensor:
    """Return betas [num_timesteps], float64, between two values. Raises ValueError for an unknown kind.

    They are evenly spaced in their square roots (`linear`, as latent diffusion calls that), themselves (`sqrt_linear`),
    or in their squares (`sqrt`, of square roots of the bounds).
    """
    if kind == "linear":
        return torch.linspace(start**0.5, end**0.5, num_timesteps, dtype=torch.float64) ** 2
    if kind not in ("sqrt_linear", "sqrt"):
        raise ValueError(f"beta_schedule: unknown; got {kind!r}, expected one of linear, sqrt_linear, sqrt")
    betas = torch.linspace(start, end, num_timesteps, dtype=torch.float64)
    return betas if kind == "sqrt_linear" else betas**0.5


class DiscreteSchedule(torch.nn.Module):
    """The noise levels of N trained timesteps, from betas whose square roots are evenly spaced (latent diffusion).

    `settings` (or a model's `sampling_settings`): beta_schedule, linear_start, linear_end, timesteps, zsnr.
    """

    sigmas: torch.Tensor  # [N], rising
    log_sigmas: torch.Tensor
    _table_copy: tuple[torch.Tensor, torch.Tensor] | None = None  # `log_sigmas`, and the copy of it on another device

    def __init__(self, model_config: object = None, zsnr: bool | None = None) -> None:
        super().__init__()
        settings: Mapping[str, Any] = getattr(model_config, "sampling_settings", {}) if model_config is not None else {}
        self.linear_start = float(settings.get("linear_start", 0.00085))
        self.linear_end = float(settings.get("linear_end", 0.012))
        self.zsnr = bool(settings.get("zsnr", False)) if zsnr is None else zsnr
        self.sigma_data = 1.0
        num_timesteps = int(settings.get("timesteps", 1000))
        kind = settings.get("beta_schedule", "linear")
        self.set_betas(spaced_betas(kind, num_timesteps, self.linear_start, self.linear_end))

    def set_betas(self, betas: torch.Tensor) -> None:
        """Set the noise levels from the share of variance [N] that each trained timestep adds."""
        self.num_timesteps = len(betas)
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        sigmas = ((1 - alphas_cumprod) / alphas_cumprod) ** 0.5
        self.set_sigmas(rescale_zero_terminal_snr(sigmas) if self.zsnr else sigmas)

    def set_sigmas(self, sigmas: torch.Tensor) -> None:
        self.register_buffer("sigmas", sigmas.float(), persistent=False)
        self.register_buffer("log_sigmas", sigmas.log().float(), persistent=False)

    @property
    def sigma_min(self) -> torch.Tensor:
        return self.sigmas[0]

    @property
    def sigma_max(self) -> torch.Tensor:
        return self.sigmas[-1]

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        """Return the trained timestep whose log sigma is nearest, on the device of `sigma`."""
        distances = sigma.log() - self._log_sigmas_on(sigma.device)[:, None]
        return distances.abs().argmin(dim=0).view(sigma.shape)

    def _log_sigmas_on(self, device: torch.device) -> torch.Tensor:
        """Return the table on a device, where a copy is kept: one that a node has made stays in the host's memory."""
        table, known = self.log_sigmas, self._table_copy
        if table.device == device:
            return table
        if known is None or known[0] is not table or known[1].device != device:
            known = self._table_copy = table, table.to(device)
        return known[1]

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        """Return the noise level at a fractional timestep, log-linear between neighbours."""
        at = torch.clamp(timestep.float().to(self.log_sigmas.device), min=0, max=(len(self.sigmas) - 1))
        low, high, weight = at.floor().long(), at.ceil().long(), at.frac()
        log_sigma = (1 - weight) * self.log_sigmas[low] + weight * self.log_sigmas[high]
        return log_sigma.exp().to(timestep.device)

    def percent_to_sigma(self, percent: float) -> float:
        """Return the noise level after that share (0..1) of the way from pure noise to the image."""
        if percent <= 0.0:
            return 999999999.9
        if percent >= 1.0:
            return 0.0
        # 999 whatever the number of timesteps is: ComfyUI's constant, and nearly all models have 1000.
        return float(self.sigma(torch.tensor((1.0 - percent) * 999.0)).item())


def rescale_zero_terminal_snr(sigmas: torch.Tensor) -> torch.Tensor:
    """Noise levels whose last one is (nearly) pure noise: Lin et al. 2023, arXiv 2305.08891, algorithm 1."""
    root = (1 / (sigmas * sigmas + 1)).sqrt()
    first, last = root[0].clone(), root[-1].clone()
    root = (root - last) * (first / (first - last))
    alphas_cumprod = root**2
    alphas_cumprod[-1] = 4.8973451890853435e-08  # instead of 0, so that sigma stays finite; ComfyUI's value
    return ((1 - alphas_cumprod) / alphas_cumprod) ** 0.5


class ContinuousEdmSchedule(torch.nn.Module):
    """Any noise level between two bounds; the network takes log(sigma) / 4 (Karras et al. 2022)."""

    sigmas: torch.Tensor
    log_sigmas: torch.Tensor

    def __init__(self, model_config: object = None) -> None:
        super().__init__()
        settings: Mapping[str, Any] = getattr(model_config, "sampling_settings", {}) if model_config is not None else {}
        self.set_parameters(
            settings.get("sigma_min", 0.002), settings.get("sigma_max", 120.0), settings.get("sigma_data", 1.0)
        )

    def set_parameters(self, sigma_min: float, sigma_max: float, sigma_data: float) -> None:
        self.sigma_data = sigma_data
        sigmas = torch.linspace(math.log(sigma_min), math.log(sigma_max), 1000).exp()  # read by some schedulers
        self.register_buffer("sigmas", sigmas, persistent=False)
        self.register_buffer("log_sigmas", sigmas.log(), persistent=False)

    @property
    def sigma_min(self) -> torch.Tensor:
        return self.sigmas[0]

    @property
    def sigma_max(self) -> torch.Tensor:
        return self.sigmas[-1]

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return 0.25 * sigma.log()

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        return (timestep / 0.25).exp()

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return 999999999.9
        if percent >= 1.0:
            return 0.0
        low, high = math.log(self.sigma_min), math.log(self.sigma_max)
        return math.exp((high - low) * (1.0 - percent) + low)


class ContinuousVSchedule(ContinuousEdmSchedule):
    """Any noise level; the network takes atan(sigma) * 2 / pi."""

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return sigma.atan() / math.pi * 2

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        return (timestep * math.pi / 2).tan()


class EpsDiscrete(DiscreteSchedule, Eps):
    """A network of trained timesteps that predicts the noise."""


class VDiscrete(DiscreteSchedule, VPrediction):
    """A network of trained timesteps that predicts v."""


class UnscaledVDiscrete(DiscreteSchedule, UnscaledV):
    """A network of trained timesteps that predicts v of an input that it takes as it is."""


class EdmContinuous(ContinuousEdmSchedule, Edm):
    """A network of any noise level with the preconditioning of Karras et al. 2022."""


class VContinuous(ContinuousVSchedule, VPrediction):
    """A network of any noise level that predicts v and takes the angle between image and noise."""


class EdmVContinuous(ContinuousEdmSchedule, VPrediction):
    """A network of any noise level that predicts v."""
