"""Each sampler of a rectified flow, on a toy model, against values recorded from ComfyUI 0.3.64 with the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.model_sampling_variants import Flow
from darkroom.engine.diffusion.samplers.registry import declared_samplers

RECORDED = {
    "euler_cfg_pp": (0.58930, -0.17067, -0.67630, 0.30829),
    "euler_ancestral": (0.17150, 0.15368, -0.56914, 0.13826),
    "euler_ancestral_cfg_pp": (0.03374, 0.18663, -0.48507, 0.03769),
    "dpm_2_ancestral": (0.17795, 0.15776, -0.59234, 0.14908),
    "dpmpp_2s_ancestral": (0.17416, 0.15644, -0.58093, 0.14338),
    "dpmpp_sde": (-0.41257, -0.27174, 0.00356, -0.13956),
    "dpmpp_2m_sde": (-0.41050, -0.19325, -0.07172, 0.18706),
    "dpmpp_2m_sde_heun": (-0.42036, -0.19646, -0.10068, 0.23715),
    "dpmpp_3m_sde": (-0.41792, -0.21043, -0.14682, 0.29285),
    "lcm": (0.07828, 0.09662, -0.41265, 0.04146),
    "er_sde": (-0.17981, 0.17836, -0.54375, 0.15223),
    "seeds_2": (-0.15081, -0.11359, 0.17944, -0.10190),
    "seeds_3": (-0.47945, -0.18714, 0.37943, -0.46349),
    "sa_solver": (-0.18485, 0.59515, -0.56368, -0.23993),
    "sa_solver_pece": (-0.17855, 0.61275, -0.57313, -0.27730),
    "uni_pc": (0.61116, -0.17748, -0.69847, 0.32027),
}


class ToyModel:
    """A guided prediction that knows it is read as a flow."""

    def __init__(self) -> None:
        self.inner_model = self
        self.model_patcher = self
        self.model_sampling = Flow(3.0, multiplier=1000)

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


@pytest.mark.parametrize("name", RECORDED)
def test_flows_are_sampled_as_in_comfyui(name: str) -> None:
    model = ToyModel()
    x = torch.randn(1, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    sigmas = torch.tensor([1.0, 0.9, 0.6, 0.3, 0.0])
    sampled = declared_samplers()[name].function(model, x, sigmas, extra_args={"seed": 5, "model_options": {}})
    assert sampled.flatten().tolist() == pytest.approx(RECORDED[name], abs=5e-4)
