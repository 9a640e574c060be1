"""Kinds of networks by what they predict, and over which noise levels (ComfyUI's `ModelType`)."""

from __future__ import annotations

from enum import Enum

from darkroom.engine.diffusion.model_sampling import (
    ContinuousEdmSchedule,
    ContinuousVSchedule,
    Edm,
    UnscaledV,
    VPrediction,
)
from darkroom.engine.diffusion.model_sampling_variants import (
    CascadeSchedule,
    CosmosFlow,
    FluxSchedule,
    ImageToImage,
    ImageToImageFlow,
    RectifiedFlow,
)


class ModelType(Enum):
    """The kinds of parameterisation, numbered as in ComfyUI."""

    EPS = 1
    V_PREDICTION = 2
    V_PREDICTION_EDM = 3
    STABLE_CASCADE = 4
    EDM = 5
    FLOW = 6
    V_PREDICTION_CONTINUOUS = 7
    FLUX = 8
    IMG_TO_IMG = 9
    FLOW_COSMOS = 10
    IMG_TO_IMG_FLOW = 11
    V_PREDICTION_DDPM = 12


# The first row whose classes all fit decides: derived classes come before their bases.
PARTS: tuple[tuple[ModelType, tuple[type, ...]], ...] = (
    (ModelType.FLOW_COSMOS, (CosmosFlow,)),
    (ModelType.IMG_TO_IMG_FLOW, (ImageToImageFlow,)),
    (ModelType.FLUX, (RectifiedFlow, FluxSchedule)),
    (ModelType.FLOW, (RectifiedFlow,)),
    (ModelType.V_PREDICTION_DDPM, (UnscaledV,)),
    (ModelType.IMG_TO_IMG, (ImageToImage,)),
    (ModelType.STABLE_CASCADE, (CascadeSchedule,)),
    (ModelType.EDM, (Edm,)),
    (ModelType.V_PREDICTION_CONTINUOUS, (VPrediction, ContinuousVSchedule)),
    (ModelType.V_PREDICTION_EDM, (VPrediction, ContinuousEdmSchedule)),
    (ModelType.V_PREDICTION, (VPrediction,)),
)


def model_type_of(sampling: object) -> ModelType:
    """Return the kind of a parameterisation; noise prediction over trained timesteps if no other fits."""
    fitting = (kind for kind, classes in PARTS if all(isinstance(sampling, part) for part in classes))
    return next(fitting, ModelType.EPS)
