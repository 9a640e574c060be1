"""`comfy.supported_models`: classes of models' configurations, for `isinstance` checks."""

from __future__ import annotations

from darkroom.engine.comfy.family_classes import CONFIGURATIONS, family_classes
from darkroom.engine.comfy.names.comfy import supported_models_base
from darkroom.engine.comfy.names.comfy.supported_models_base import BASE, configured_kind

__all__ = [*CONFIGURATIONS, "supported_models_base"]  # noqa: PLE0604 - they are texts

globals().update(family_classes("comfy.supported_models", CONFIGURATIONS, BASE, configured_kind))
