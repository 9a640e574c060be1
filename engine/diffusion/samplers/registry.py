"""Every sampler by its name, in ComfyUI's order. A new one is a function in its family's file and a line there."""

from __future__ import annotations

from engine.diffusion.samplers.cfg_pp import CFG_PP_SAMPLERS
from engine.diffusion.samplers.dpm_solver import DPM_SOLVER_SAMPLERS
from engine.diffusion.samplers.flow import with_flows
from engine.diffusion.samplers.multistep import MULTISTEP_SAMPLERS
from engine.diffusion.samplers.ode import ODE_SAMPLERS, SamplerFunction
from engine.diffusion.samplers.predictor_corrector import PREDICTOR_CORRECTOR_SAMPLERS
from engine.diffusion.samplers.sde import SDE_SAMPLERS
from engine.diffusion.samplers.stochastic import STOCHASTIC_SAMPLERS

SAMPLER_FUNCTIONS: dict[str, SamplerFunction] = with_flows({
    **ODE_SAMPLERS,
    **STOCHASTIC_SAMPLERS,
    **SDE_SAMPLERS,
    **CFG_PP_SAMPLERS,
    **MULTISTEP_SAMPLERS,
    **DPM_SOLVER_SAMPLERS,
    **PREDICTOR_CORRECTOR_SAMPLERS,
})  # fmt: skip

SAMPLER_NAMES = (
    "euler", "euler_cfg_pp", "euler_ancestral", "euler_ancestral_cfg_pp", "heun", "heunpp2", "dpm_2", "dpm_2_ancestral",
    "lms", "dpm_fast", "dpm_adaptive", "dpmpp_2s_ancestral", "dpmpp_2s_ancestral_cfg_pp", "dpmpp_sde", "dpmpp_sde_gpu",
    "dpmpp_2m", "dpmpp_2m_cfg_pp", "dpmpp_2m_sde", "dpmpp_2m_sde_gpu", "dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu",
    "dpmpp_3m_sde", "dpmpp_3m_sde_gpu", "ddpm", "lcm", "ipndm", "ipndm_v", "deis", "res_multistep",
    "res_multistep_cfg_pp", "res_multistep_ancestral", "res_multistep_ancestral_cfg_pp", "gradient_estimation",
    "gradient_estimation_cfg_pp", "er_sde", "seeds_2", "seeds_3", "sa_solver", "sa_solver_pece", "ddim", "uni_pc",
    "uni_pc_bh2",
)  # fmt: skip
