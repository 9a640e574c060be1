"""Obstacles to answering the evaluations of a sampling run from a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from darkroom.engine.diffusion.conditions import Condition
from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.wrappers import APPLY_MODEL, CALC_COND_BATCH, DIFFUSION_MODEL

BELOW_RECORD = (CALC_COND_BATCH, APPLY_MODEL, DIFFUSION_MODEL)  # wrappers that a recorded answer leaves out
OWN_CODE = "darkroom.engine."
REMEMBERING = "darkroom.engine.diffusion.step_cache"


def obstacle_to_record(options: Options, conditions: Sequence[Sequence[Condition]]) -> str:
    """Return the reason that something below the record may keep state between evaluations, or "".

    What nodes of ours put there remembers nothing, but for EasyCache. Of a pack's code it is not known.
    """
    if any(condition.get("hooks") is not None for side in conditions for condition in side):
        return "conditions have hooks, which follow the steps"
    inner = options.get("transformer_options", {})
    for kind in BELOW_RECORD:
        wrappers = [wrapper for found in inner.get("wrappers", {}).get(kind, {}).values() for wrapper in found]
        if any(not _is_own(wrapper) or _module_of(wrapper) == REMEMBERING for wrapper in wrappers):
            return f"the model has wrappers of {kind}"
    wrapper = options.get("model_function_wrapper")
    patches = [patch for found in inner.get("patches", {}).values() for patch in found]
    replaced = [patch for found in inner.get("patches_replace", {}).values() for patch in found.values()]
    for function in (wrapper, *patches, *replaced):
        if function is not None and not _is_own(function):
            return "a node pack has put a function into the network"
    return ""


def _is_own(function: Any) -> bool:
    return _module_of(function).startswith(OWN_CODE)


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)
