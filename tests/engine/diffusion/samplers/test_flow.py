"""Each sampler of a rectified flow, on a toy model, against values recorded from ComfyUI 0.33.0 with the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.brownian import brownian_noise_sampler
from darkroom.engine.diffusion.model_sampling_variants import DiscreteImageToImageFlow, Flow
from darkroom.engine.diffusion.samplers.registry import declared_samplers

RECORDED = {
    "euler_cfg_pp": (0.58930, -0.17067, -0.67630, 0.30829),
    "euler_ancestral": (-0.05379, -0.40340, 0.24878, 0.19653),
    "euler_ancestral_cfg_pp": (-0.00636, -0.33535, 0.36214, 0.19121),
    "dpm_2_ancestral": (-0.08098, -0.41824, 0.25188, 0.19745),
    "dpmpp_2s_ancestral": (-0.06856, -0.41076, 0.25116, 0.19682),
    "dpmpp_sde": (-0.41257, -0.27174, 0.00356, -0.13956),
    "dpmpp_2m_sde": (-0.41050, -0.19325, -0.07172, 0.18706),
    "dpmpp_2m_sde_heun": (-0.42036, -0.19646, -0.10068, 0.23715),
    "dpmpp_3m_sde": (-0.41792, -0.21043, -0.14682, 0.29285),
    "lcm": (0.16018, -0.29899, 0.26437, 0.20398),
    "er_sde": (-0.59171, -0.42640, 0.51904, -0.07484),
    "exp_heun_2_x0": (0.59130, -0.16992, -0.68100, 0.30709),
    "exp_heun_2_x0_sde": (0.49787, -0.24109, -0.08424, -0.00869),
    "seeds_2": (0.15936, -0.29436, -0.15008, -0.47693),
    "seeds_3": (-0.36060, 0.11526, -0.05502, -0.44797),
    "sa_solver": (-0.62826, -0.07981, 0.58478, 0.17443),
    "sa_solver_pece": (-0.63221, -0.05287, 0.59152, 0.21529),
    "uni_pc": (0.61116, -0.17748, -0.69847, 0.32027),
}
SCALED_NOISE = {
    "euler_ancestral": (-0.01042, -0.50654, 0.37516, 0.24683),
    "euler_ancestral_cfg_pp": (0.09768, -0.43397, 0.42321, 0.26749),
    "dpm_2_ancestral": (-0.07087, -0.52228, 0.38595, 0.24553),
    "dpmpp_2s_ancestral": (-0.04049, -0.51435, 0.38175, 0.24605),
    "dpmpp_sde": (-0.52951, -0.36934, 0.00107, -0.20142),
    "dpmpp_2m_sde": (-0.52868, -0.27582, -0.10853, 0.22893),
    "dpmpp_2m_sde_heun": (-0.53725, -0.27954, -0.14793, 0.28989),
    "dpmpp_3m_sde": (-0.53531, -0.29466, -0.20282, 0.35194),
    "lcm": (0.30375, -0.39122, 0.29464, 0.28185),
    "er_sde": (-0.66939, -0.53120, 0.62008, -0.10070),
    "exp_heun_2_x0_sde": (0.59388, -0.27987, -0.12111, -0.00899),
    "seeds_2": (0.15149, -0.38001, -0.20316, -0.57556),
    "seeds_3": (-0.48899, 0.15626, -0.06616, -0.54113),
    "sa_solver": (-0.70745, -0.09369, 0.67541, 0.24918),
    "sa_solver_pece": (-0.71355, -0.06117, 0.68208, 0.29772),
    "res_multistep_ancestral": (-0.41028, -0.63826, 0.24701, 0.34820),
    "dpmpp_2s_ancestral_cfg_pp": (0.16309, -0.56171, -0.07673, 0.41803),
}
"""The same, of a model that was trained with noise of a standard deviation of 1.4."""


class ToyModel:
    """A guided prediction that knows it is read as a flow."""

    def __init__(self, noise_scale: float = 1.0) -> None:
        self.inner_model = self
        self.model_patcher = self
        self.model_sampling: Any = Flow(3.0, multiplier=1000)
        self.model_sampling.noise_scale = noise_scale

    def get_model_object(self, name: str) -> Any:
        assert name == "model_sampling"
        return self.model_sampling

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, model_options: Mapping[str, Any] | None = None, seed: int = 0
    ) -> torch.Tensor:
        denoised = torch.tanh(x) * (1 - 0.5 * sigma.view(-1, 1, 1, 1))
        uncond = 0.8 * denoised + 0.05 * x
        for function in (model_options or {}).get("sampler_post_cfg_function", ()):
            denoised = function({"denoised": denoised, "uncond_denoised": uncond})
        return denoised


def _sampled(name: str, model: ToyModel) -> list[float]:
    x = torch.randn(1, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    sigmas = torch.tensor([1.0, 0.9, 0.6, 0.3, 0.0])
    sampled = declared_samplers()[name].function(model, x, sigmas, extra_args={"seed": 5, "model_options": {}})
    found: list[float] = sampled.flatten().tolist()
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_flows_are_sampled_as_in_comfyui(name: str) -> None:
    assert _sampled(name, ToyModel()) == pytest.approx(RECORDED[name], abs=5e-5)


@pytest.mark.parametrize("name", SCALED_NOISE)
def test_fresh_noise_is_that_of_the_models_training(name: str) -> None:
    assert _sampled(name, ToyModel(noise_scale=1.4)) == pytest.approx(SCALED_NOISE[name], abs=5e-5)


@pytest.mark.parametrize("name", ["sa_solver", "sa_solver_pece"])
def test_sa_solver_ends_with_its_prediction_where_noise_is_left(name: str) -> None:
    x = torch.randn(1, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    sample = declared_samplers()[name].function
    options: dict[str, Any] = {"extra_args": {"seed": 5, "model_options": {}}, "tau_func": lambda sigma: 0.0}
    found = sample(ToyModel(), x, torch.tensor([0.9, 0.6]), **options)
    denoised = ToyModel()(x, torch.tensor([0.9]))
    torch.testing.assert_close(found, denoised + (x - denoised) * 0.6 / 0.9)  # a first step is Euler's


def test_noise_between_levels_that_are_no_numbers_ends() -> None:
    x = torch.zeros(1, 1, 2, 2)
    draw = brownian_noise_sampler(x, torch.tensor(1.0), torch.tensor(1.0), seed=1)
    assert draw(torch.tensor(1.0), torch.tensor(torch.nan)).isnan().all()


def test_lcm_adds_noise_as_the_models_parameterisation_does() -> None:
    model = ToyModel()
    model.model_sampling = DiscreteImageToImageFlow()  # whose levels have no noise
    x = torch.randn(1, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    levels = [0.9, 0.6, 0.3]
    expected = x
    for level in levels:
        expected = model(expected, torch.tensor([level]))
    lcm = declared_samplers()["lcm"].function
    sampled = lcm(model, x, torch.tensor([*levels, 0.0]), extra_args={"seed": 5, "model_options": {}})
    assert torch.equal(sampled, expected)
