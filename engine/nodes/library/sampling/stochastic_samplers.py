"""SAMPLER values of methods with fresh noise that have options of their own: LCM and SEEDS-2."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.ksampler import ksampler
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import SAMPLER
from darkroom.engine.nodes.widgets import Combo, Float

CATEGORY = "model/sampling/samplers"
ADVANCED = {"advanced": True}

NoiseFactor = Annotated[float, Float(min=0.0, max=64.0, step=0.01)]
Factor = Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=False, extra=ADVANCED)]


@node(
    "SamplerLCM",
    display_name=None,
    category=CATEGORY,
    python_module="comfy_extras.nodes_advanced_samplers",
    facts=NodeFacts(sampler="lcm"),
)
def sampler_lcm(
    context: NodeContext,
    *,
    s_noise: NoiseFactor = 1.0,
    s_noise_end: NoiseFactor = 1.0,
    noise_clip_std: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 0.0,
) -> SAMPLER:
    """Select LCM with noise scaled from the first step to the last, and clamped to standard deviations."""
    return ksampler("lcm", {"s_noise": s_noise, "s_noise_end": s_noise_end, "noise_clip_std": noise_clip_std})


@node(
    "SamplerSEEDS2",
    display_name=None,
    category=CATEGORY,
    python_module="comfy_extras.nodes_custom_sampler",
    facts=NodeFacts(sampler="seeds_2"),
)
def sampler_seeds_2(
    context: NodeContext,
    *,
    solver_type: Annotated[str, Combo(("phi_1", "phi_2"))],
    eta: Factor = 1.0,
    s_noise: Factor = 1.0,
    r: Annotated[float, Float(min=0.01, max=1.0, step=0.01, round=False, extra=ADVANCED)] = 0.5,
) -> SAMPLER:
    """Select SEEDS-2; with `phi_2` and an `r` of 1 it is the exponential form of Heun's method."""
    return ksampler("seeds_2", {"eta": eta, "s_noise": s_noise, "r": r, "solver_type": solver_type})


NODES = (sampler_lcm, sampler_seeds_2)
