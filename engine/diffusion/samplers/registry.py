"""Every built-in sampler by its name, found in the files of this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Final

from darkroom.engine.diffusion import samplers as package
from darkroom.engine.diffusion.samplers.declaration import SamplerDeclaration, declarations_of

COMFYUI_ORDER: Final = (
    "euler", "euler_cfg_pp", "euler_ancestral", "euler_ancestral_cfg_pp", "heun", "heunpp2", "exp_heun_2_x0",
    "exp_heun_2_x0_sde", "dpm_2", "dpm_2_ancestral", "lms", "dpm_fast", "dpm_adaptive", "dpmpp_2s_ancestral",
    "dpmpp_2s_ancestral_cfg_pp", "dpmpp_sde", "dpmpp_sde_gpu", "dpmpp_2m", "dpmpp_2m_cfg_pp", "dpmpp_2m_sde",
    "dpmpp_2m_sde_gpu", "dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu", "dpmpp_3m_sde", "dpmpp_3m_sde_gpu", "ddpm",
    "lcm", "ipndm", "ipndm_v", "deis", "res_multistep", "res_multistep_cfg_pp", "res_multistep_ancestral",
    "res_multistep_ancestral_cfg_pp", "gradient_estimation", "gradient_estimation_cfg_pp", "er_sde", "seeds_2",
    "seeds_3", "sa_solver", "sa_solver_pece", "ddim", "uni_pc", "uni_pc_bh2",
)  # fmt: skip
"""Order in which ComfyUI's nodes offer the samplers. Those of other names follow, by name."""


@cache
def declared_samplers() -> Mapping[str, SamplerDeclaration]:
    """Return the built-in samplers by name, in the order in which nodes offer them.

    Raises ValueError for a name that is declared twice.
    """
    found: dict[str, SamplerDeclaration] = {}
    for item in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(item.name)
        own = (value for value in vars(module).values() if getattr(value, "__module__", "") == item.name)
        for declaration in (declaration for value in own for declaration in declarations_of(value)):
            if declaration.name in found:
                raise ValueError(f"sampler {declaration.name}: declared twice; got {item.name}, expected a new name")
            found[declaration.name] = declaration
    places = {name: place for place, name in enumerate(COMFYUI_ORDER)}
    return {name: found[name] for name in sorted(found, key=lambda name: (places.get(name, len(places)), name))}
