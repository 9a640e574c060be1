"""DPM-Solver (Lu et al. 2022, arXiv 2206.00927) in its two whole forms: a fixed budget of calls, and adaptive steps.

Time is t = -log sigma, so that sigma(t) = e^-t; eps is the network's noise (x - denoised) / sigma.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, get_ancestral_step
from darkroom.engine.diffusion.samplers.declaration import sampler


class DpmSteps:
    """Steps of order 1 to 3 from one point (x, t), which share their calls of the network."""

    def __init__(
        self, model: ModelFunction, extra_args: Mapping[str, object], x: torch.Tensor, t: torch.Tensor
    ) -> None:
        self.model, self.extra_args, self.x, self.t = model, extra_args, x, t
        self.eps = self._noise(x, t)
        self._inner: dict[float, torch.Tensor] = {}

    @property
    def denoised(self) -> torch.Tensor:
        return self.x - self.t.neg().exp() * self.eps

    def _noise(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        sigma = t.neg().exp()
        return (x - self.model(x, of_batch(sigma, x.new_ones([x.shape[0]])), **self.extra_args)) / sigma

    def first(self, t: torch.Tensor) -> torch.Tensor:
        """Step by DPM-Solver-1, which is DDIM."""
        return self.x - t.neg().exp() * (t - self.t).expm1() * self.eps

    def _at(self, r: float, t: torch.Tensor) -> torch.Tensor:
        """Return the noise at share `r` of the way to `t`, along the first-order step."""
        if r not in self._inner:
            middle = self.t + r * (t - self.t)
            self._inner[r] = self._noise(self.first(middle), middle)
        return self._inner[r]

    def second(self, t: torch.Tensor, r_1: float = 1 / 2) -> torch.Tensor:
        """Step by DPM-Solver-2, algorithm 1."""
        scale = t.neg().exp() * (t - self.t).expm1()
        return self.x - scale * self.eps - scale / (2 * r_1) * (self._at(r_1, t) - self.eps)

    def third(self, t: torch.Tensor, r_1: float = 1 / 3, r_2: float = 2 / 3) -> torch.Tensor:
        """Step by DPM-Solver-3, algorithm 2."""
        h = t - self.t
        eps_1 = self._at(r_1, t)
        middle = self.t + r_2 * h
        bend = r_2 / r_1 * ((r_2 * h).expm1() / (r_2 * h) - 1)
        eps_2 = self._noise(self.first(middle) - middle.neg().exp() * bend * (eps_1 - self.eps), middle)
        return self.first(t) - t.neg().exp() / r_2 * (h.expm1() / h - 1) * (eps_2 - self.eps)


def _span(sigmas: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end in t. A last sigma of 0 has none; the one before it ends the path, as in ComfyUI."""
    lowest = sigmas[-2] if sigmas[-1] == 0 else sigmas[-1]
    return -sigmas[0].log(), -lowest.log()


def _ancestral(t: torch.Tensor, t_next: torch.Tensor, t_end: torch.Tensor, eta: float) -> tuple[torch.Tensor, Any]:
    """Return the end of the deterministic part of a step, and the noise that brings it to `t_next`."""
    if not eta:
        return t_next, 0.0
    down, _ = get_ancestral_step(t.neg().exp(), t_next.neg().exp(), eta)
    below = torch.minimum(t_end, -down.log())
    return below, (t_next.neg().exp() ** 2 - below.neg().exp() ** 2) ** 0.5


@sampler("dpm_fast", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_dpm_fast(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by DPM-Solver-fast, appendix D.4: as many calls as steps in `sigmas`, of order 3 as far as they go.

    Of the sigmas only the ends count; the steps between are even in log sigma.
    """
    if len(sigmas) <= 1:
        return x
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    start, end = _span(sigmas)
    num_calls = len(sigmas) - 1
    num_steps = num_calls // 3 + 1
    rest = num_calls % 3
    orders = [3] * (num_steps - 2) + [2, 1] if rest == 0 else [3] * (num_steps - 1) + [rest]
    times = torch.linspace(float(start), float(end), num_steps + 1, device=sigmas.device)
    for i, order in enumerate(orders):
        t, t_next = times[i], times[i + 1]
        below, up = _ancestral(t, t_next, end, eta)
        steps = DpmSteps(model, extra_args, x, t)
        if callback is not None:
            sigma = t.neg().exp()
            callback({"x": x, "i": i, "sigma": sigma, "sigma_hat": sigma, "denoised": steps.denoised})
        x = (steps.first, steps.second, steps.third)[order - 1](below)
        if eta:
            x = x + up * s_noise * noise_sampler(t.neg().exp(), t_next.neg().exp())
    return x


class StepSizeController:
    """A PID controller of the step's length, with the limiter of Söderlind's filters (as torchode's and diffrax's)."""

    def __init__(self, h: float, p: float, i: float, d: float, order: float, accept_safety: float) -> None:
        self.h = h
        self._powers = ((p + i + d) / order, -(p + 2 * d) / order, d / order)
        self._accept_safety = accept_safety
        self._inverse_errors: list[float] = []

    def accepts(self, error: float) -> bool:
        """Return True where a step with that error (1 is just tolerable) counts; set `h` for the next try."""
        inverse = 1 / (error + 1e-8)
        history = self._inverse_errors or [inverse, inverse]
        factor = math.prod(value**power for value, power in zip([inverse, *history], self._powers, strict=True))
        factor = 1 + math.atan(factor - 1)
        self.h *= factor
        is_accepted = factor >= self._accept_safety
        self._inverse_errors = [inverse, history[0]] if is_accepted else history
        return is_accepted


# It has as many steps as the largest error in the batch asks for.
@sampler("dpm_adaptive", evaluations_per_step=None, deterministic=False)
@torch.no_grad()
def sample_dpm_adaptive(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    order: int = 3,
    rtol: float = 0.05,
    atol: float = 0.0078,
    h_init: float = 0.05,
    pcoeff: float = 0.0,
    icoeff: float = 1.0,
    dcoeff: float = 0.0,
    accept_safety: float = 0.81,
    eta: float = 0.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by DPM-Solver-12 or -23, appendix C, alg. 3 or 4: steps as long as two orders agree to the tolerances.

    Of the sigmas only the ends count, so the number of steps has no influence.
    """
    if len(sigmas) <= 1:
        return x
    if order not in (2, 3):
        raise ValueError(f"order must be 2 or 3, not {order}")
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    t, end = _span(sigmas)
    controller = StepSizeController(h_init, pcoeff, icoeff, dcoeff, 1.5 if eta else order, accept_safety)
    lower_before = x
    absolute, relative = torch.tensor(atol), torch.tensor(rtol)
    num_tries = 0
    while t < end - 1e-5:
        t_next = torch.minimum(end, t + controller.h)
        below, up = _ancestral(t, t_next, end, eta)
        steps = DpmSteps(model, extra_args, x, t)
        low = steps.first(below) if order == 2 else steps.second(below, r_1=1 / 3)
        high = steps.second(below) if order == 2 else steps.third(below)
        delta = torch.maximum(absolute, relative * torch.maximum(low.abs(), lower_before.abs()))
        error = float(torch.linalg.norm((low - high) / delta) / x.numel() ** 0.5)
        if controller.accepts(error):
            lower_before, x = low, high
            if eta:
                x = x + up * s_noise * noise_sampler(t.neg().exp(), t_next.neg().exp())
            t = t_next
        if callback is not None:
            sigma = t.neg().exp()
            callback({"x": x, "i": num_tries, "sigma": sigma, "sigma_hat": sigma, "denoised": steps.denoised})
        num_tries += 1
    return x
