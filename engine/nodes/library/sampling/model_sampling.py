"""Nodes that change how MODEL is sampled: interpretation of its output, noise levels, computation type."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.latent_format import PlaygroundLatentFormat
from darkroom.engine.diffusion.model_sampling import (
    X0,
    ContinuousEdmSchedule,
    ContinuousVSchedule,
    DiscreteSchedule,
    EdmContinuous,
    EdmVContinuous,
    Eps,
    VPrediction,
)
from darkroom.engine.diffusion.model_sampling_variants import (
    ContinuousCosmos,
    DiscreteImageToImage,
    DiscreteImageToImageFlow,
    DistilledSchedule,
    Flow,
    Lcm,
)
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Choice, Flag, Float

MODEL_CATEGORY = "model/patch"
MODEL_MODULE = "comfy_extras.nodes_model_advanced"

Level = Annotated[float, Float(min=0.0, max=1000.0, step=0.001, round=False)]


class DiscreteV(DiscreteSchedule, VPrediction):
    pass


class DiscreteEps(DiscreteSchedule, Eps):
    pass


class DiscreteX0(DiscreteSchedule, X0):
    pass


class DistilledLcm(DistilledSchedule, Lcm):
    pass


class ContinuousEps(ContinuousEdmSchedule, Eps):
    pass


class ContinuousV(ContinuousVSchedule, VPrediction):
    pass


DISCRETE: dict[str, type[Any]] = {
    "eps": DiscreteEps,
    "v_prediction": DiscreteV,
    "lcm": DistilledLcm,
    "x0": DiscreteX0,
    "img_to_img": DiscreteImageToImage,
    "img_to_img_flow": DiscreteImageToImageFlow,
}
# class, deviation of the data
CONTINUOUS: dict[str, tuple[type[Any], float]] = {
    "v_prediction": (EdmVContinuous, 1.0),
    "edm": (EdmContinuous, 0.5),
    "edm_playground_v2.5": (EdmContinuous, 0.5),
    "eps": (ContinuousEps, 1.0),
    "cosmos_rflow": (ContinuousCosmos, 1.0),
}
COMPUTE_TYPES = {"default": None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def sampled_with(model: Model, sampling: object) -> Model:
    """Return a clone of a model that is sampled with another parameterisation."""
    patched = model.clone()
    patched.add_object_patch("model_sampling", sampling)
    return patched


def sampled_with_flow(model: Model, shift: float, multiplier: float) -> Model:
    """Return a clone of a model that is sampled with a flow of its scale of noise, with another shift.

    The network takes the noise level times `multiplier`.
    """
    flow = Flow(shift, multiplier)
    flow.noise_scale = getattr(model.get_model_object("model_sampling"), "noise_scale", flow.noise_scale)
    return sampled_with(model, flow)


@node(
    "ModelSamplingDiscrete",
    category=MODEL_CATEGORY,
    python_module=MODEL_MODULE,
    facts=NodeFacts(items="alike"),
    advanced=("zsnr",),
)
def model_sampling_discrete(
    context: NodeContext,
    *,
    model: MODEL,
    sampling: Annotated[str, Choice(tuple(DISCRETE))],
    zsnr: Annotated[bool, Flag()] = False,
) -> MODEL:
    return sampled_with(model, DISCRETE[sampling](model.model.model_config, zsnr=zsnr))


@node(
    "ModelSamplingContinuousEDM",
    category=MODEL_CATEGORY,
    python_module=MODEL_MODULE,
    advanced=("sigma_max", "sigma_min"),
)
def model_sampling_continuous_edm(
    context: NodeContext,
    *,
    model: MODEL,
    sampling: Annotated[str, Choice(tuple(CONTINUOUS))],
    sigma_max: Level = 120.0,
    sigma_min: Level = 0.002,
) -> MODEL:
    kind, sigma_data = CONTINUOUS[sampling]
    levels = kind(model.model.model_config)
    levels.set_parameters(sigma_min, sigma_max, sigma_data)
    patched = sampled_with(model, levels)
    if sampling == "edm_playground_v2.5":
        patched.add_object_patch("latent_format", PlaygroundLatentFormat())
    return patched


@node(
    "ModelSamplingContinuousV", category=MODEL_CATEGORY, python_module=MODEL_MODULE, advanced=("sigma_max", "sigma_min")
)
def model_sampling_continuous_v(
    context: NodeContext,
    *,
    model: MODEL,
    sampling: Annotated[str, Choice(("v_prediction",))],
    sigma_max: Level = 500.0,
    sigma_min: Level = 0.03,
) -> MODEL:
    levels = ContinuousV(model.model.model_config)
    levels.set_parameters(sigma_min, sigma_max, 1.0)
    return sampled_with(model, levels)


@node("ModelComputeDtype", category="advanced/debug", python_module=MODEL_MODULE, advanced=("dtype",))
def model_compute_dtype(
    context: NodeContext, *, model: MODEL, dtype: Annotated[str, Choice(tuple(COMPUTE_TYPES))]
) -> MODEL:
    patched = model.clone()
    patched.set_model_compute_dtype(COMPUTE_TYPES[dtype])
    return patched


NODES = (
    model_sampling_discrete, model_sampling_continuous_edm, model_sampling_continuous_v, model_compute_dtype,
)  # fmt: skip
