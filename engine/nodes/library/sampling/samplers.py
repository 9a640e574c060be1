"""SAMPLER values: every sampler by name, and nodes for those with options."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.ksampler import ksampler, sampler_object
from darkroom.engine.diffusion.sample import Sampler
from darkroom.engine.diffusion.samplers.cfg_pp import sample_euler_cfg_pp_alternative
from darkroom.engine.diffusion.samplers.predictor_corrector import tau_in_interval
from darkroom.engine.diffusion.samplers.stochastic import sample_lcm_upscale
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.sampling import SamplerCombo
from darkroom.engine.nodes.sockets import MODEL, SAMPLER
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int

CATEGORY = "model/sampling/samplers"
MODULE = "comfy_extras.nodes_custom_sampler"
UPSCALE_METHODS = ("bislerp", "nearest-exact", "bilinear", "area", "bicubic")

Factor = Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=False)]
NoiseDevice = Annotated[str, Combo(("gpu", "cpu"))]


def _with_options(name: str, **options: object) -> Sampler:
    return ksampler(name, options)


def _on_device(name: str, noise_device: str) -> str:
    return name if noise_device == "cpu" else f"{name}_gpu"


@node("KSamplerSelect", display_name=None, category=CATEGORY, python_module=MODULE)
def ksampler_select(context: NodeContext, *, sampler_name: Annotated[str, SamplerCombo()]) -> SAMPLER:
    return sampler_object(sampler_name)


@node(
    "SamplerEulerAncestral",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="euler_ancestral"),
    advanced=("eta", "s_noise"),
)
def euler_ancestral(context: NodeContext, *, eta: Factor = 1.0, s_noise: Factor = 1.0) -> SAMPLER:
    return _with_options("euler_ancestral", eta=eta, s_noise=s_noise)


@node(
    "SamplerEulerAncestralCFGPP",
    display_name="SamplerEulerAncestralCFG++",
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="euler_ancestral_cfg_pp"),
)
def euler_ancestral_cfg_pp(
    context: NodeContext,
    *,
    eta: Annotated[float, Float(min=0.0, max=1.0, step=0.01, round=False)] = 1.0,
    s_noise: Annotated[float, Float(min=0.0, max=10.0, step=0.01, round=False)] = 1.0,
) -> SAMPLER:
    return _with_options("euler_ancestral_cfg_pp", eta=eta, s_noise=s_noise)


@node(
    "SamplerLMS",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="lms"),
    advanced=("order",),
)
def lms(context: NodeContext, *, order: Annotated[int, Int(min=1, max=100)] = 4) -> SAMPLER:
    return _with_options("lms", order=order)


@node(
    "SamplerDPMPP_3M_SDE",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="dpmpp_3m_sde"),
    advanced=("eta", "s_noise", "noise_device"),
)
def dpmpp_3m_sde(
    context: NodeContext, *, eta: Factor = 1.0, s_noise: Factor = 1.0, noise_device: NoiseDevice
) -> SAMPLER:
    return _with_options(_on_device("dpmpp_3m_sde", noise_device), eta=eta, s_noise=s_noise)


@node(
    "SamplerDPMPP_2M_SDE",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="dpmpp_2m_sde"),
    advanced=("eta", "s_noise", "noise_device"),
)
def dpmpp_2m_sde(
    context: NodeContext,
    *,
    solver_type: Annotated[str, Combo(("midpoint", "heun"))],
    eta: Factor = 1.0,
    s_noise: Factor = 1.0,
    noise_device: NoiseDevice,
) -> SAMPLER:
    return _with_options(_on_device("dpmpp_2m_sde", noise_device), eta=eta, s_noise=s_noise, solver_type=solver_type)


@node(
    "SamplerDPMPP_SDE",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="dpmpp_sde"),
    advanced=("eta", "s_noise", "r", "noise_device"),
)
def dpmpp_sde(
    context: NodeContext, *, eta: Factor = 1.0, s_noise: Factor = 1.0, r: Factor = 0.5, noise_device: NoiseDevice
) -> SAMPLER:
    return _with_options(_on_device("dpmpp_sde", noise_device), eta=eta, s_noise=s_noise, r=r)


@node(
    "SamplerDPMPP_2S_Ancestral",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="dpmpp_2s_ancestral"),
)
def dpmpp_2s_ancestral(context: NodeContext, *, eta: Factor = 1.0, s_noise: Factor = 1.0) -> SAMPLER:
    return _with_options("dpmpp_2s_ancestral", eta=eta, s_noise=s_noise)


@node(
    "SamplerDPMAdaptative",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="dpm_adaptive"),
    advanced=("order", "rtol", "atol", "h_init", "pcoeff", "icoeff", "dcoeff", "accept_safety", "eta", "s_noise"),
)
def dpm_adaptive(
    context: NodeContext,
    *,
    order: Annotated[int, Int(min=2, max=3)] = 3,
    rtol: Factor = 0.05,
    atol: Factor = 0.0078,
    h_init: Factor = 0.05,
    pcoeff: Factor = 0.0,
    icoeff: Factor = 1.0,
    dcoeff: Factor = 0.0,
    accept_safety: Factor = 0.81,
    eta: Factor = 0.0,
    s_noise: Factor = 1.0,
) -> SAMPLER:
    return _with_options(
        "dpm_adaptive", order=order, rtol=rtol, atol=atol, h_init=h_init, pcoeff=pcoeff, icoeff=icoeff, dcoeff=dcoeff,
        accept_safety=accept_safety, eta=eta, s_noise=s_noise,
    )  # fmt: skip


@node(
    "SamplerER_SDE",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="er_sde"),
    advanced=("max_stage", "eta", "s_noise"),
)
def er_sde(
    context: NodeContext,
    *,
    solver_type: Annotated[str, Combo(("ER-SDE", "Reverse-time SDE", "ODE"))],
    max_stage: Annotated[int, Int(min=1, max=3)] = 3,
    eta: Annotated[float, Float(min=0.0, max=10.0, step=0.01, round=False)] = 1.0,
    s_noise: Factor = 1.0,
) -> SAMPLER:
    """Select ER-SDE with the paper's noise scaler, the one of the reverse-time SDE, or none (ODE).

    `eta` is the exponent of what a scaler adds to sigma; without noise the SDEs are the ODE.
    """
    is_ode = solver_type == "ODE" or eta == 0

    def noise_scaler(sigma: torch.Tensor) -> torch.Tensor:
        if is_ode:
            return sigma
        added = (sigma**0.3).exp() + 10.0 if solver_type == "ER-SDE" else sigma
        return sigma * added**eta

    return _with_options("er_sde", s_noise=0.0 if is_ode else s_noise, noise_scaler=noise_scaler, max_stage=max_stage)


@node(
    "SamplerSASolver",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(sampler="sa_solver"),
    advanced=(
        "eta",
        "sde_start_percent",
        "sde_end_percent",
        "s_noise",
        "predictor_order",
        "corrector_order",
        "use_pece",
        "simple_order_2",
    ),
)
def sa_solver(
    context: NodeContext,
    *,
    model: MODEL,
    eta: Annotated[float, Float(min=0.0, max=10.0, step=0.01, round=False)] = 1.0,
    sde_start_percent: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 0.2,
    sde_end_percent: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 0.8,
    s_noise: Factor = 1.0,
    predictor_order: Annotated[int, Int(min=1, max=6)] = 3,
    corrector_order: Annotated[int, Int(min=0, max=6)] = 4,
    use_pece: Annotated[bool, Flag()],
    simple_order_2: Annotated[bool, Flag()],
) -> SAMPLER:
    sampling = model.get_model_object("model_sampling")
    start, end = (float(sampling.percent_to_sigma(percent)) for percent in (sde_start_percent, sde_end_percent))
    return _with_options(
        "sa_solver", tau_func=tau_in_interval(start, end, eta=eta), s_noise=s_noise, predictor_order=predictor_order,
        corrector_order=corrector_order, use_pece=use_pece, simple_order_2=simple_order_2,
    )  # fmt: skip


@node(
    "SamplerLCMUpscale",
    display_name=None,
    category=CATEGORY,
    python_module="comfy_extras.nodes_advanced_samplers",
    facts=NodeFacts(sampler="lcm"),
    advanced=("scale_ratio", "scale_steps"),
)
def lcm_upscale(
    context: NodeContext,
    *,
    scale_ratio: Annotated[float, Float(min=0.1, max=20.0, step=0.01)] = 1.0,
    scale_steps: Annotated[int, Int(min=-1, max=1000, step=1)] = -1,
    upscale_method: Annotated[str, Combo(UPSCALE_METHODS)],
) -> SAMPLER:
    """Sample with LCM while enlarging the latent. A `scale_steps` of -1 enlarges over the first half of the steps."""

    def grow(x: torch.Tensor, width: int, height: int) -> torch.Tensor:
        return resize(x, width, height, upscale_method)

    options = {"resize": grow, "total_upscale": scale_ratio, "upscale_steps": None if scale_steps < 0 else scale_steps}
    return Sampler(sample_lcm_upscale, extra_options=options)


@node(
    "SamplerEulerCFGpp",
    display_name="SamplerEulerCFG++",
    category="experimental",
    python_module="comfy_extras.nodes_advanced_samplers",
    experimental=True,
    facts=NodeFacts(sampler="euler_cfg_pp"),
    advanced=("version",),
)
def euler_cfg_pp(context: NodeContext, *, version: Annotated[str, Combo(("regular", "alternative"))]) -> SAMPLER:
    if version == "alternative":
        return Sampler(sample_euler_cfg_pp_alternative)
    return _with_options("euler_cfg_pp")


NODES = (
    ksampler_select, euler_ancestral, euler_ancestral_cfg_pp, lms, dpmpp_3m_sde, dpmpp_2m_sde, dpmpp_sde,
    dpmpp_2s_ancestral, dpm_adaptive, er_sde, sa_solver, lcm_upscale, euler_cfg_pp,
)  # fmt: skip
