"""Samplers against the exact solution of a Gaussian, and what holds for every one of them and every schedule."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion import noise as noise_module
from darkroom.engine.diffusion.choices import Choices, calculate_sigmas
from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.diffusion.samplers.declaration import SamplerDeclaration
from darkroom.engine.diffusion.samplers.ode import linear_multistep_coefficient
from darkroom.engine.diffusion.samplers.registry import COMFYUI_ORDER, declared_samplers
from darkroom.engine.diffusion.sigmas import SCHEDULES

# These take steps of their own between the first and the last level.
OWN_STEPS = ("dpm_fast", "dpm_adaptive")
WAITING = ("dpm_adaptive",)  # its next step depends on the error of the one before
SIGMA_DATA = 0.7


class GaussianModel:
    """The exact denoiser of Gaussian data, for which the ODE has a closed solution; guided or not."""

    def __init__(self) -> None:
        self.inner_model = self
        self.model_patcher = self

    def get_model_object(self, name: str) -> Any:
        assert name == "model_sampling"
        return EpsDiscrete()

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, model_options: Mapping[str, Any] | None = None, seed: int = 0
    ) -> torch.Tensor:
        denoised = x * SIGMA_DATA**2 / (sigma.view(-1, 1, 1, 1) ** 2 + SIGMA_DATA**2)
        for function in (model_options or {}).get("sampler_post_cfg_function", ()):
            denoised = function({"denoised": denoised, "uncond_denoised": denoised})
        return denoised


class CountingModel(GaussianModel):
    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def __call__(self, *args: Any, **options: Any) -> torch.Tensor:
        self.num_calls += 1
        return super().__call__(*args, **options)


def _solve(name: str, steps: int) -> float:
    sigmas = calculate_sigmas(EpsDiscrete(), "karras", steps)
    x = torch.full((1, 4, 2, 2), float(sigmas[0]))
    return float(declared_samplers()[name].function(GaussianModel(), x, sigmas, extra_args={"seed": 3}).mean())


@pytest.mark.parametrize(
    "name", [*(name for name, item in declared_samplers().items() if item.is_deterministic), "dpm_adaptive"]
)
def test_deterministic_samplers_reach_the_exact_solution(name: str) -> None:
    sigma = float(EpsDiscrete().sigma_max)
    exact = sigma * SIGMA_DATA / (sigma**2 + SIGMA_DATA**2) ** 0.5
    coarse, fine = abs(_solve(name, 20) - exact), abs(_solve(name, 160) - exact)
    assert fine < 0.05
    # The adaptive one looks only at the ends; those that stop at sigma_min keep a rest that steps do not lessen.
    assert fine < coarse or name in OWN_STEPS or fine < 0.005


@pytest.mark.parametrize("declared", declared_samplers().values(), ids=declared_samplers())
def test_each_step_evaluates_the_network_as_often_as_declared(declared: SamplerDeclaration) -> None:
    model, num_steps = CountingModel(), 20
    sigmas = calculate_sigmas(EpsDiscrete(), "karras", num_steps)
    declared.function(model, torch.ones(1, 4, 2, 2) * sigmas[0], sigmas, extra_args={"seed": 1})
    if declared.evaluations_per_step is None:  # no number of them would fit
        assert not any(num_steps - 2 < model.num_calls / number <= num_steps for number in range(1, 8))
    else:  # the last steps, down to 0, may need fewer
        assert num_steps - 2 < model.num_calls / declared.evaluations_per_step <= num_steps


@pytest.mark.parametrize("declared", declared_samplers().values(), ids=declared_samplers())
def test_deterministic_samplers_alone_take_no_noise_and_treat_items_alone(declared: SamplerDeclaration) -> None:
    sigmas = calculate_sigmas(EpsDiscrete(), "karras", 6)
    batch = torch.randn(2, 4, 2, 2, generator=torch.Generator().manual_seed(0)) * sigmas[0]
    batch[0] *= 1e-3
    whole = declared.function(GaussianModel(), batch, sigmas, extra_args={"seed": 1})
    second = declared.function(GaussianModel(), batch[1:], sigmas, extra_args={"seed": 2})
    assert torch.equal(whole[1:], second) == declared.is_deterministic


@pytest.mark.parametrize("name", declared_samplers())
def test_each_step_is_reported_once_and_the_seed_decides(name: str) -> None:
    sigmas = calculate_sigmas(EpsDiscrete(), "normal", 4)
    x = torch.randn(1, 4, 2, 2, generator=torch.Generator().manual_seed(0)) * sigmas[0]
    steps: list[int] = []
    function = declared_samplers()[name].function
    first = function(
        GaussianModel(), x, sigmas, extra_args={"seed": 1}, callback=lambda state: steps.append(state["i"])
    )
    assert steps == ([*range(len(steps))] if name in OWN_STEPS else [0, 1, 2, 3])
    assert torch.equal(first, function(GaussianModel(), x, sigmas, extra_args={"seed": 1}))


@pytest.mark.parametrize("name", declared_samplers())
@pytest.mark.parametrize("steps", (1, 2))
def test_a_step_or_two_give_finite_latents(name: str, steps: int) -> None:
    sigmas = calculate_sigmas(EpsDiscrete(), "normal", steps)
    x = torch.randn(2, 4, 2, 2, generator=torch.Generator().manual_seed(0)) * sigmas[0]
    assert bool(declared_samplers()[name].function(GaussianModel(), x, sigmas, extra_args={"seed": 1}).isfinite().all())


def test_multistep_coefficients_are_those_of_adams_bashforth() -> None:
    times = [0.0, 1.0, 2.0, 3.0]
    found = [linear_multistep_coefficient(3, times, 2, j) for j in range(3)]
    assert found == pytest.approx([23 / 12, -16 / 12, 5 / 12])


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_fall_to_zero(name: str) -> None:
    sigmas = calculate_sigmas(EpsDiscrete(), name, 10)
    assert len(sigmas) == 11
    assert sigmas[-1] == 0
    assert bool((sigmas[:-1] > sigmas[1:]).all())


def test_every_name_that_is_offered_is_there() -> None:
    assert Choices().samplers == [*Choices().functions] == [*declared_samplers()]
    assert Choices().samplers[: len(COMFYUI_ORDER)] == [*COMFYUI_ORDER]
    assert list(SCHEDULES) == Choices().schedules
    with pytest.raises(ValueError, match="there is no scheduler"):
        calculate_sigmas(EpsDiscrete(), "nope", 3)


@pytest.mark.parametrize(
    "name", [name for name in declared_samplers() if name not in WAITING and not name.endswith("_gpu")]
)
def test_samplers_with_noise_levels_on_the_host_never_wait_for_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tensor without data, whose numbers nothing can read: as on a device, where reading one waits for all kernels.
    noise = SimpleNamespace(
        Generator=lambda device: torch.Generator(),
        randn=lambda shape, dtype, device, generator: torch.empty(shape, dtype=dtype, device=device),
    )
    monkeypatch.setattr(noise_module, "torch", noise)
    sigmas = calculate_sigmas(EpsDiscrete(), "karras", 6)
    x = torch.empty((1, 4, 2, 2), device="meta")
    found = declared_samplers()[name].function(GaussianModel(), x, sigmas, extra_args={"seed": 3})
    assert found.device.type == "meta" and found.shape == x.shape
