"""`comfy.model_base`: networks with their parameterisation, one class a kind of network.

The classes of families are found by the name that each of them gives as its ComfyUI one.
"""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.engine.comfy.family_classes import NETWORKS, Kind, family_classes
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.diffusion import model_sampling as levels
from darkroom.engine.diffusion import model_sampling_variants as variants
from darkroom.engine.diffusion.denoiser import Denoiser as BaseModel
from darkroom.engine.diffusion.model_type import ModelType

__all__ = ["BaseModel", "ModelType", "model_sampling"]

PARTS: dict[ModelType, tuple[type, type]] = {
    ModelType.EPS: (levels.DiscreteSchedule, levels.Eps),
    ModelType.V_PREDICTION: (levels.DiscreteSchedule, levels.VPrediction),
    ModelType.V_PREDICTION_EDM: (levels.ContinuousEdmSchedule, levels.VPrediction),
    ModelType.V_PREDICTION_CONTINUOUS: (levels.ContinuousVSchedule, levels.VPrediction),
    ModelType.EDM: (levels.ContinuousEdmSchedule, levels.Edm),
    ModelType.IMG_TO_IMG: (levels.DiscreteSchedule, variants.ImageToImage),
    ModelType.V_PREDICTION_DDPM: (levels.DiscreteSchedule, levels.UnscaledV),
    ModelType.IMG_TO_IMG_FLOW: (levels.DiscreteSchedule, variants.ImageToImageFlow),
}
"""Schedule and prediction of the kinds whose settings a `model_config` gives."""


def model_sampling(model_config: object, model_type: ModelType) -> object:
    """Return a parameterisation of that kind with the `sampling_settings` of a configuration."""
    if model_type not in PARTS:
        raise not_supported(f"comfy.model_base.model_sampling of {model_type.name}")
    return type("ModelSampling", PARTS[model_type], {})(model_config)


def _kinds(base: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _network_kind(value: object) -> Kind | None:
    if not isinstance(value, BaseModel):
        return None
    return getattr(value.model_config.family, "name", ""), value.model_config.variant


_OF_FAMILIES = family_classes("comfy.model_base", NETWORKS, object, _network_kind)


def __getattr__(name: str) -> type:
    """Return the class of a family's networks, such as `SDXL`.

    Of one that others extend there and not here, it is the class whose instances all of them are.
    """
    if name in {parent for parent, _ in NETWORKS.values()} & _OF_FAMILIES.keys():
        return _OF_FAMILIES[name]
    for kind in _kinds():
        if vars(kind).get("comfy_name") == name:
            return kind
    if name in _OF_FAMILIES:
        return _OF_FAMILIES[name]
    raise AttributeError(name)
