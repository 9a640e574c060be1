"""`comfy.supported_models_base`: the class that every model's configuration is of."""

from __future__ import annotations

from darkroom.engine.comfy.family_classes import FamilyClass, Kind
from darkroom.engine.diffusion.denoiser import ModelConfig


def configured_kind(value: object) -> Kind | None:
    """Return family and variant of a model's configuration, None for another value."""
    if not isinstance(value, ModelConfig):
        return None
    return getattr(value.family, "name", ""), value.variant


class BASE(metaclass=FamilyClass):
    """Configuration of any model."""

    entries = frozenset[str]()
    read_kind = staticmethod(configured_kind)
