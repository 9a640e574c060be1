"""`comfy.sampler_helpers`: preparation of conditioning, masks and models for samplers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from darkroom.engine.comfy.replaceable_names import bound
from darkroom.engine.diffusion import conditions, sample

convert_cond = bound(conditions.convert_conditioning)
prepare_mask = bound(sample.prepare_mask)


def get_models_from_cond(cond: Sequence[Mapping[str, Any]], model_type: str) -> list[Any]:
    """Return the models that the conditions hold under that name: one model or several each."""
    found = [condition[model_type] for condition in cond if model_type in condition]
    return [model for item in found for model in (item if isinstance(item, list) else [item])]


def get_additional_models(conds: Mapping[str, Sequence[Mapping[str, Any]]], dtype: Any) -> tuple[list[Any], int]:
    """Return the models that conditions need besides the sampled one, and the bytes of extra working memory."""
    controls = {id(item): item for cond in conds.values() for item in get_models_from_cond(cond, "control")}
    gligen = [item[1] for cond in conds.values() for item in get_models_from_cond(cond, "gligen")]
    others = [item for cond in conds.values() for item in get_models_from_cond(cond, "additional_models")]
    models = [model for control in controls.values() for model in control.get_models()]
    num_bytes = sum(control.inference_memory_requirements(dtype) for control in controls.values())
    return [*models, *gligen, *others], num_bytes


def cleanup_additional_models(models: Iterable[object]) -> None:
    for model in models:
        if hasattr(model, "cleanup"):
            model.cleanup()
