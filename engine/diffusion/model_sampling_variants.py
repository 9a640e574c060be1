"""Parameterisations that nodes put in a model's place: distilled, image to image, and those of flow models.

Schedules and predictions combine as in `model_sampling.py`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from darkroom.engine.diffusion.model_sampling import (
    X0,
    ContinuousEdmSchedule,
    DiscreteSchedule,
    Eps,
    reshape_sigma,
)


class Lcm(Eps):
    """Consistency models: Luo et al. 2023 (arXiv 2310.04378), eq. 9, with the boundary conditions of appendix C."""

    SIGMA_DATA = 0.5
    TIMESTEP_SCALING = 10.0

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        """Refuse: timesteps belong to the schedule, and a prediction alone has none."""
        raise TypeError("a consistency prediction needs a schedule beside it")

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        shape = sigma.shape[:1] + (1,) * (model_output.ndim - 1)
        scaled = self.timestep(sigma).view(shape) * self.TIMESTEP_SCALING
        denoised = model_input - model_output * sigma.view(shape)
        variance = scaled**2 + self.SIGMA_DATA**2
        return scaled / variance**0.5 * denoised + self.SIGMA_DATA**2 / variance * model_input


class ImageToImage(X0):
    """The network predicts an image from an image: the input is not scaled."""

    def calculate_input(self, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise


class DiscreteImageToImage(DiscreteSchedule, ImageToImage):
    """A network of trained timesteps that predicts an image from an image."""


class DistilledSchedule(DiscreteSchedule):
    """Every 20th of the trained timesteps, from the last down: those a 50-step teacher showed its student."""

    original_timesteps = 50  # custom nodes set another number

    def __init__(self, model_config: object = None, zsnr: bool | None = None) -> None:
        super().__init__(model_config, zsnr=zsnr)
        self.stride = self.num_timesteps // self.original_timesteps
        first = self.num_timesteps - 1 - (self.original_timesteps - 1) * self.stride
        self.set_sigmas(self.sigmas[first :: self.stride].clone())

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return super().timestep(sigma) * self.stride + (self.stride - 1)

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        return super().sigma((timestep.float() - (self.stride - 1)) / self.stride)


# --- flow matching ---------------------------------------------------------------------------------------------------


class RectifiedFlow:
    """Liu et al. 2022 (arXiv 2209.03003): x = (1 - sigma) x0 + sigma n, and the network predicts n - x0.

    `noise_scale` is the standard deviation of n in training.
    """

    sigma_data = 1.0
    noise_scale = 1.0

    def calculate_input(self, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        return model_input - model_output * reshape_sigma(sigma, model_output.ndim)

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        sigma = reshape_sigma(sigma, noise.ndim)
        scaled = noise if self.noise_scale == 1.0 else self.noise_scale * noise
        return sigma * scaled + (1.0 - sigma) * latent_image

    def inverse_noise_scaling(self, sigma: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        return latent / (1.0 - reshape_sigma(sigma, latent.ndim))


class ImageToImageFlow(RectifiedFlow):
    """The network predicts an image from an image, of a flow: sampling starts at the image, without noise."""

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        return model_output

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        return latent_image

    def inverse_noise_scaling(self, sigma: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        return 1.0 - latent


class DiscreteImageToImageFlow(DiscreteSchedule, ImageToImageFlow):
    """A network of trained timesteps that predicts an image from an image, of a flow."""


class CosmosFlow(Eps):
    """Rectified flow in the variance-exploding form of this engine's samplers: its time is sigma / (sigma + 1)."""

    def calculate_input(self, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise * (1.0 - reshape_sigma(sigma / (sigma + 1), noise.ndim))

    def calculate_denoised(
        self, sigma: torch.Tensor, model_output: torch.Tensor, model_input: torch.Tensor
    ) -> torch.Tensor:
        time = reshape_sigma(sigma / (sigma + 1), model_output.ndim)
        return model_input * (1.0 - time) - model_output * time

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        return noise * reshape_sigma(sigma, noise.ndim) + latent_image


class CosmosFlowSchedule(ContinuousEdmSchedule):
    """Any noise level; the network takes sigma / (sigma + 1)."""

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return sigma / (sigma + 1)

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        highest = self.sigma_max
        return highest if bool(timestep >= highest / (highest + 1)) else timestep / (1 - timestep)


class FlowSchedule(torch.nn.Module):
    """Times 0..1 of a flow, shifted towards noise: Esser et al. 2024 (arXiv 2403.03206), eq. 23.

    The network takes sigma times `multiplier`.
    """

    sigmas: torch.Tensor
    NUM_LEVELS = 1000

    def __init__(self, shift: float, multiplier: float) -> None:
        super().__init__()
        self.shift, self.multiplier = shift, multiplier
        times = torch.arange(1, self.NUM_LEVELS + 1) / self.NUM_LEVELS
        self.register_buffer("sigmas", self._shifted(times), persistent=False)

    @property
    def sigma_min(self) -> torch.Tensor:
        return self.sigmas[0]

    @property
    def sigma_max(self) -> torch.Tensor:
        return self.sigmas[-1]

    def _shifted(self, time: Any) -> Any:
        return time if self.shift == 1.0 else self.shift * time / (1 + (self.shift - 1) * time)

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return sigma * self.multiplier

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        shifted: torch.Tensor = self._shifted(timestep / self.multiplier)
        return shifted

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return 1.0
        return 0.0 if percent >= 1.0 else float(self._shifted(1.0 - percent))


class FluxSchedule(FlowSchedule):
    """The exponential shift: e^mu / (e^mu + 1 / t - 1); the network takes sigma itself."""

    NUM_LEVELS = 10000

    def __init__(self, shift: float) -> None:
        super().__init__(shift, multiplier=1.0)

    def _shifted(self, time: Any) -> Any:
        return math.exp(self.shift) / (math.exp(self.shift) + (1 / time - 1))


class Flow(FlowSchedule, RectifiedFlow):
    """A network of a flow, with the shift of Esser et al. 2024."""


class FluxFlow(FluxSchedule, RectifiedFlow):
    """A network of a flow, with the exponential shift."""


class ContinuousCosmos(CosmosFlowSchedule, CosmosFlow):
    """A network of a flow at any noise level, in the variance-exploding form."""


def cosmos_flow_of(config: Any) -> ContinuousCosmos:
    """Make the flow of a model's `sampling_settings`: `sigma_min`, `sigma_max`, `sigma_data`."""
    return ContinuousCosmos(config)


def flow_of(config: Any) -> Flow:
    """Make the flow of a model's `sampling_settings`: `shift` (1: none), `multiplier` of sigma, `noise_scale`."""
    settings = config.sampling_settings
    flow = Flow(float(settings.get("shift", 1.0)), float(settings.get("multiplier", 1000)))
    flow.noise_scale = float(settings.get("noise_scale", 1.0))
    return flow


def flux_flow_of(config: Any) -> FluxFlow:
    """Make the flow of a model's `sampling_settings`: `shift`, the exponent mu."""
    return FluxFlow(float(config.sampling_settings.get("shift", 1.15)))


class CascadeSchedule(DiscreteSchedule):
    """Cosine noise levels (Nichol and Dhariwal 2021, arXiv 2102.09672), shifted in log SNR for larger images.

    The highest levels are next to a zero of the cosine, where the last bit of a constant moves the level by a tenth of
    a percent: every constant is a float32 tensor, as in ComfyUI.
    """

    NUM_LEVELS = 10000
    COSINE_OFFSET = torch.tensor(8e-3)

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.num_timesteps = self.NUM_LEVELS
        self.set_sigmas(self.sigma(torch.arange(1, self.NUM_LEVELS + 1) / self.NUM_LEVELS))

    @property
    def _first(self) -> torch.Tensor:
        first: torch.Tensor = torch.cos(self.COSINE_OFFSET / (1 + self.COSINE_OFFSET) * torch.pi * 0.5) ** 2
        return first

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        signal = (
            torch.cos((timestep + self.COSINE_OFFSET) / (1 + self.COSINE_OFFSET) * torch.pi * 0.5) ** 2 / self._first
        )
        if self.shift != 1.0:
            log_snr = (signal / (1 - signal)).log() + 2 * torch.log(1.0 / torch.tensor(self.shift))
            signal = log_snr.sigmoid()
        signal = signal.clamp(0.0001, 0.9999)
        return ((1 - signal) / signal) ** 0.5

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        signal = (1 / (sigma * sigma + 1)).clamp(0, 1.0)
        offset, first = self.COSINE_OFFSET, self._first
        return ((signal * first) ** 0.5).acos() / (torch.pi * 0.5) * (1 + offset) - offset

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return 999999999.9
        return 0.0 if percent >= 1.0 else float(self.sigma(torch.tensor(1.0 - percent)))


class CascadeEps(CascadeSchedule, Eps):
    """A network of cosine noise levels that predicts the noise."""
