"""Samplers that correct each step once the network has seen its end: UniPC and the stochastic Adams solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, report
from darkroom.engine.diffusion.samplers.declaration import sampler
from darkroom.engine.diffusion.samplers.flow import by_ratio, ending_above_zero


def _uni_pc_step(
    x: torch.Tensor,
    denoised: list[torch.Tensor],
    lambdas: list[torch.Tensor],
    lambda_t: torch.Tensor,
    order: int,
    is_bh2: bool,
    evaluate: Callable[[torch.Tensor], torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Zhao et al. 2023 (arXiv 2302.04867), algorithms 5 and 6, data prediction: (x at lambda_t, prediction there).

    `x` is divided by alpha (sigma space); `denoised` and `lambdas` are the past points, newest last. Without `evaluate`
    the step is only predicted.
    """
    now, lambda_s = denoised[-1], lambdas[-1]
    h = lambda_t - lambda_s
    shares = [(lambdas[-(i + 1)] - lambda_s) / h for i in range(1, order)]
    slopes = [(denoised[-(i + 1)] - now) / share for i, share in enumerate(shares, 1)]
    points = torch.stack([*(share.reshape(()) for share in shares), torch.ones_like(h).reshape(())])

    hh = -h.reshape(())
    h_phi_1 = torch.expm1(hh)
    scale = h_phi_1 if is_bh2 else hh
    phi = h_phi_1 / hh - 1
    factorial = 1
    targets = []
    for i in range(1, order + 1):
        targets.append(phi * factorial / scale)
        factorial *= i + 1
        phi = phi / hh - 1 / factorial
    matrix = torch.stack([points**i for i in range(order)])
    target = torch.stack(targets)

    base = torch.exp(hh) * x - h_phi_1 * now
    predicted = base
    if slopes:
        # Order 2 takes the paper's simplification, 1/2, instead of solving for one unknown.
        weights = target.new_tensor([0.5]) if order == 2 else torch.linalg.solve(matrix[:-1, :-1], target[:-1])
        predicted = base - scale * sum(weight * slope for weight, slope in zip(weights, slopes, strict=True))
    if evaluate is None:
        return predicted, None
    found = evaluate(predicted)
    weights = target.new_tensor([0.5]) if order == 1 else torch.linalg.solve(matrix, target)
    correction = weights[-1] * (found - now)
    for weight, slope in zip(weights[:-1], slopes, strict=True):
        correction = correction + weight * slope
    return base - scale * correction, found


@sampler("uni_pc_bh2", evaluations_per_step=1, deterministic=True, flow=ending_above_zero, is_bh2=True)
@sampler("uni_pc", evaluations_per_step=1, deterministic=True, flow=ending_above_zero)
@torch.no_grad()
def sample_uni_pc(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    *,
    is_bh2: bool = False,
) -> torch.Tensor:
    """Sample by UniPC: Zhao et al. 2023 (arXiv 2302.04867), order 3, with B(h) = h or (bh2) e^h - 1.

    A last sigma of 0 is taken as 0.001, since its lambda has no end; the last step is predicted, not corrected. With
    one step there is none to take: as in ComfyUI, x is only rescaled.
    """
    extra_args = extra_args or {}
    levels = sigmas.clone()
    if levels[-1] == 0:
        levels[-1] = 0.001
    num_steps = len(levels) - 1
    max_order = min(3, num_steps - 1)
    ones = x.new_ones([x.shape[0]])
    if max_order == 0:
        model(x, of_batch(levels[0], ones), **extra_args)
        return x * ((1 + levels[-1] ** 2) / (1 + levels[0] ** 2)).sqrt()
    # lambda by way of the variance-preserving scales: near sigma 0 its rounding shows in the image, and is ComfyUI's.
    log_alpha = -0.5 * torch.log(1 + levels**2)
    lambdas = log_alpha - 0.5 * torch.log(1 - torch.exp(2 * log_alpha))

    past = [model(x, of_batch(levels[0], ones), **extra_args)]
    report_x = x
    for i in range(1, num_steps + 1):
        if i == num_steps:
            # ComfyUI reports the last two steps as one.
            x, _ = _uni_pc_step(x, past, list(lambdas[:i]), lambdas[i], 1, is_bh2, None)
            _tell(callback, num_steps - 1, x, levels[i - 1], past[-1])
            break
        _tell(callback, i - 1, report_x, levels[i - 1], past[-1])
        order = min(i, max_order) if i < max_order else min(max_order, num_steps + 1 - i)
        evaluate = partial(_evaluate, model, of_batch(levels[i], ones), extra_args)
        x, found = _uni_pc_step(x, past, list(lambdas[:i]), lambdas[i], order, is_bh2, evaluate)
        report_x = x
        past = [*past, found if found is not None else evaluate(x)][-max_order:]
    return x


def _evaluate(
    model: ModelFunction, sigma: torch.Tensor, extra_args: Mapping[str, object], x: torch.Tensor
) -> torch.Tensor:
    return model(x, sigma, **extra_args)


def _tell(callback: StepCallback | None, i: int, x: torch.Tensor, sigma: torch.Tensor, denoised: torch.Tensor) -> None:
    report(callback, i, x, sigma, sigma, denoised)


def tau_in_interval(start_sigma: float, end_sigma: float, eta: float = 1.0) -> Callable[[object], float]:
    """Return tau(sigma) of the stochastic Adams solver: `eta` between the two levels, 0 (an ODE) outside."""

    def tau(sigma: Any) -> float:
        return eta if eta > 0 and start_sigma >= float(sigma) >= end_sigma else 0.0

    return tau


def _adams_weights(
    known: torch.Tensor, lambda_s: torch.Tensor, lambda_t: torch.Tensor, tau: float, simple: str | None
) -> torch.Tensor:
    """Return the weights b of Xue et al. 2023 (arXiv 2309.05019), eqs. 15 and 18, for lambdas `known` [K].

    (1 + tau^2) times the integral over [lambda_s, lambda_t] of e^((1 + tau^2)(lambda - lambda_t)) times each Lagrange
    polynomial. `simple` is the paper's shorter form of order 2 (appendix D) for a `predictor` or a `corrector`.
    """
    rate = 1 + tau**2
    h = lambda_t - lambda_s
    if simple is not None and len(known) == 2:
        total = -torch.expm1(-h * rate)
        if simple == "corrector":
            newest = 0.5 * rate * h
            return torch.stack([total - newest, newest])
        oldest = 0.5 * rate * h**2 / (known[-2] - lambda_s)
        return torch.stack([oldest, total - oldest])
    moments: list[torch.Tensor] = []
    for power in range(len(known)):  # by parts: each power's integral from the one before
        edge = lambda_t**power - lambda_s**power * torch.exp(-rate * h)
        moments.append(edge if power == 0 else edge - power / rate * moments[-1])
    vandermonde = torch.vander(known, len(known), increasing=True).T
    weights: torch.Tensor = torch.linalg.solve(vandermonde, torch.stack(moments))
    return weights


@sampler("sa_solver", evaluations_per_step=1, deterministic=False, flow=by_ratio(has_tau=True))
@torch.no_grad()
def sample_sa_solver(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, Any] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    tau_func: Callable[[Any], float] | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    predictor_order: int = 3,
    corrector_order: int = 4,
    use_pece: bool = False,
    simple_order_2: bool = False,
) -> torch.Tensor:
    """Sample by SA-Solver: Xue et al. 2023 (arXiv 2309.05019), alg. 1. `use_pece` evaluates what was corrected again.

    Without `tau_func` noise is added between 20 and 80 per cent of the model's schedule.
    """
    if len(sigmas) <= 1:
        return x
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    lambdas = -sigmas.log()
    if tau_func is None:
        schedule: Any = model.inner_model.model_patcher.get_model_object("model_sampling")  # type: ignore[attr-defined]
        tau_func = tau_in_interval(schedule.percent_to_sigma(0.2), schedule.percent_to_sigma(0.8))
    ends_at_zero = float(sigmas[-1]) == 0.0
    past: list[torch.Tensor] = []
    predicted = x
    tau, noise = 0.0, torch.zeros_like(x)
    for i in range(len(sigmas) - 1):
        denoised = model(predicted, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, predicted, sigmas[i], sigmas[i], denoised)
        past = [*past, denoised][-max(predictor_order, corrector_order) :]
        is_last = bool(sigmas[i + 1] == 0)
        num_predicting, num_correcting = min(predictor_order, len(past)), min(corrector_order, len(past))
        if i == 0 or (is_last and not use_pece):
            num_correcting = 0
        if ends_at_zero:  # lower orders towards the end, for stability
            num_predicting = min(num_predicting, len(sigmas) - 2 - i)
            num_correcting = min(num_correcting, len(sigmas) - 1 - i)

        if num_correcting == 0:
            x = predicted
        else:
            known = lambdas[i - num_correcting + 1 : i + 1]
            simple = "corrector" if simple_order_2 else None
            weights = _adams_weights(known, lambdas[i - 1], lambdas[i], tau, simple)
            h = lambdas[i] - lambdas[i - 1]
            x = sigmas[i] / sigmas[i - 1] * torch.exp(-(tau**2) * h) * x + _weighted(weights, past)
            if tau > 0 and s_noise > 0:
                x = x + noise  # that of the predictor, so that both describe the same path
            if use_pece:
                denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
                past[-1] = denoised

        if is_last:
            predicted = denoised
        else:
            tau = tau_func(sigmas[i + 1])
            known = lambdas[i - num_predicting + 1 : i + 1]
            simple = "predictor" if simple_order_2 else None
            weights = _adams_weights(known, lambdas[i], lambdas[i + 1], tau, simple)
            h = lambdas[i + 1] - lambdas[i]
            predicted = sigmas[i + 1] / sigmas[i] * torch.exp(-(tau**2) * h) * x + _weighted(weights, past)
            if tau > 0 and s_noise > 0:
                strength = sigmas[i + 1] * math.sqrt(-math.expm1(-2 * tau**2 * float(h))) * s_noise
                noise = noise_sampler(sigmas[i], sigmas[i + 1]) * strength
                predicted = predicted + noise
    return predicted


def _weighted(weights: torch.Tensor, past: list[torch.Tensor]) -> torch.Tensor:
    """Sum the newest predictions, oldest first, by their weights."""
    newest = past[len(past) - len(weights) :]
    total = weights[0] * newest[0]
    for weight, item in zip(weights[1:], newest[1:], strict=True):
        total = total + weight * item
    return total


@sampler("sa_solver_pece", evaluations_per_step=2, deterministic=False, flow=by_ratio(has_tau=True))
@torch.no_grad()
def sample_sa_solver_pece(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    tau_func: Callable[[object], float] | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    predictor_order: int = 3,
    corrector_order: int = 4,
    simple_order_2: bool = False,
) -> torch.Tensor:
    """Sample by `sample_sa_solver` that evaluates the corrected state too (predict, evaluate, correct, evaluate)."""
    return sample_sa_solver(
        model, x, sigmas, extra_args, callback, disable, tau_func, s_noise, noise_sampler, predictor_order,
        corrector_order, True, simple_order_2,
    )  # fmt: skip
