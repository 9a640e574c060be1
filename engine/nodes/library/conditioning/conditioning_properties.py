"""Nodes that set several properties of CONDITIONING at once, for one conditioning or for a positive and negative pair.

New entries get hooks, a mask and a range of steps, each only when given, and join what is there already; `default`
entries are used where no other entry of the image has a say.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_mask, with_options
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, HOOKS, MASK, TIMESTEPS_RANGE, Conditioning
from darkroom.engine.nodes.widgets import Choice, Float

Strength = Annotated[float, Float(min=0.0, max=10.0, step=0.01)]
Share = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]
Area = Annotated[str, Choice(("default", "mask bounds"))]
OptionalMask = Annotated[MASK | None, Optional()]
OptionalHooks = Annotated[HOOKS, Optional()]
OptionalTimesteps = Annotated[TIMESTEPS_RANGE | None, Optional()]
Positive = Annotated[CONDITIONING, Out("positive")]
Negative = Annotated[CONDITIONING, Out("negative")]


def with_hooks(conditionings: tuple[Conditioning, ...], hooks: object | None) -> tuple[Conditioning, ...]:
    """Return copies whose entries have `hooks` after those they have already.

    Entries that shared a group of hooks share the combined one too, so that guidance can run them in one batch.
    """
    if hooks is None:
        return conditionings
    combined: dict[int, Any] = {}

    def joined(old: Any | None) -> Any:
        if old is None:
            return hooks
        if id(old) not in combined:
            combined[id(old)] = old.clone_and_combine(hooks)
        return combined[id(old)]

    return tuple(
        [[tokens, {**options, "hooks": joined(options.get("hooks"))}] for tokens, options in conditioning]
        for conditioning in conditionings
    )


def with_properties(
    conditionings: tuple[Conditioning, ...],
    strength: float,
    set_cond_area: str,
    mask: torch.Tensor | None,
    hooks: object | None,
    timesteps: tuple[float, float] | None,
) -> tuple[Conditioning, ...]:
    """Return entries with mask, hooks and step range set, each only when given.

    `strength` is the mask's; without a mask it has no effect.
    """
    changed = with_hooks(conditionings, hooks)
    if mask is not None:
        changed = tuple(with_mask(item, mask, strength, set_cond_area) for item in changed)
    if timesteps is not None:
        start, end = timesteps
        changed = tuple(with_options(item, start_percent=start, end_percent=end) for item in changed)
    return changed


@node(
    "ConditioningSetProperties",
    display_name="Cond Set Props",
    category="advanced/hooks/cond single",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def conditioning_set_properties(
    context: NodeContext,
    *,
    cond_NEW: CONDITIONING,  # noqa: N803 - ComfyUI's name, as are the others in capitals
    strength: Strength = 1.0,
    set_cond_area: Area,
    mask: OptionalMask = None,
    hooks: OptionalHooks = None,
    timesteps: OptionalTimesteps = None,
) -> CONDITIONING:
    return with_properties((cond_NEW,), strength, set_cond_area, mask, hooks, timesteps)[0]


@node(
    "ConditioningSetPropertiesAndCombine",
    display_name="Cond Set Props Combine",
    category="advanced/hooks/cond single",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def conditioning_set_properties_and_combine(
    context: NodeContext,
    *,
    cond: CONDITIONING,
    cond_NEW: CONDITIONING,  # noqa: N803
    strength: Strength = 1.0,
    set_cond_area: Area,
    mask: OptionalMask = None,
    hooks: OptionalHooks = None,
    timesteps: OptionalTimesteps = None,
) -> CONDITIONING:
    return cond + with_properties((cond_NEW,), strength, set_cond_area, mask, hooks, timesteps)[0]


@node(
    "PairConditioningSetProperties",
    display_name="Cond Pair Set Props",
    category="advanced/hooks/cond pair",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def pair_conditioning_set_properties(
    context: NodeContext,
    *,
    positive_NEW: CONDITIONING,  # noqa: N803
    negative_NEW: CONDITIONING,  # noqa: N803
    strength: Strength = 1.0,
    set_cond_area: Area,
    mask: OptionalMask = None,
    hooks: OptionalHooks = None,
    timesteps: OptionalTimesteps = None,
) -> tuple[Positive, Negative]:
    positive, negative = with_properties((positive_NEW, negative_NEW), strength, set_cond_area, mask, hooks, timesteps)
    return positive, negative


@node(
    "PairConditioningSetPropertiesAndCombine",
    display_name="Cond Pair Set Props Combine",
    category="advanced/hooks/cond pair",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def pair_conditioning_set_properties_and_combine(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    positive_NEW: CONDITIONING,  # noqa: N803
    negative_NEW: CONDITIONING,  # noqa: N803
    strength: Strength = 1.0,
    set_cond_area: Area,
    mask: OptionalMask = None,
    hooks: OptionalHooks = None,
    timesteps: OptionalTimesteps = None,
) -> tuple[Positive, Negative]:
    new_positive, new_negative = with_properties(
        (positive_NEW, negative_NEW), strength, set_cond_area, mask, hooks, timesteps
    )
    return positive + new_positive, negative + new_negative


@node(
    "PairConditioningCombine",
    display_name="Cond Pair Combine",
    category="advanced/hooks/cond pair",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def pair_conditioning_combine(
    context: NodeContext,
    *,
    positive_A: CONDITIONING,  # noqa: N803
    negative_A: CONDITIONING,  # noqa: N803
    positive_B: CONDITIONING,  # noqa: N803
    negative_B: CONDITIONING,  # noqa: N803
) -> tuple[Positive, Negative]:
    return positive_A + positive_B, negative_A + negative_B


@node(
    "ConditioningSetDefaultCombine",
    display_name="Cond Set Default Combine",
    category="advanced/hooks/cond single",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def conditioning_set_default_combine(
    context: NodeContext,
    *,
    cond: CONDITIONING,
    cond_DEFAULT: CONDITIONING,  # noqa: N803
    hooks: OptionalHooks = None,
) -> CONDITIONING:
    return cond + with_options(with_hooks((cond_DEFAULT,), hooks)[0], default=True)


@node(
    "PairConditioningSetDefaultCombine",
    display_name="Cond Pair Set Default Combine",
    category="advanced/hooks/cond pair",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def pair_conditioning_set_default_combine(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    positive_DEFAULT: CONDITIONING,  # noqa: N803
    negative_DEFAULT: CONDITIONING,  # noqa: N803
    hooks: OptionalHooks = None,
) -> tuple[Positive, Negative]:
    default_positive, default_negative = with_hooks((positive_DEFAULT, negative_DEFAULT), hooks)
    return positive + with_options(default_positive, default=True), negative + with_options(
        default_negative, default=True
    )


@node(
    "ConditioningTimestepsRange",
    display_name="Timesteps Range",
    category="advanced/hooks",
    python_module="comfy_extras.nodes_hooks",
    experimental=True,
)
def conditioning_timesteps_range(
    context: NodeContext, *, start_percent: Share = 0.0, end_percent: Share = 1.0
) -> tuple[
    TIMESTEPS_RANGE, Annotated[TIMESTEPS_RANGE, Out("BEFORE_RANGE")], Annotated[TIMESTEPS_RANGE, Out("AFTER_RANGE")]
]:
    """Return a range of the noise schedule, the range before it and the range after it, as fractions."""
    return (start_percent, end_percent), (0.0, start_percent), (end_percent, 1.0)


NODES = (
    conditioning_set_properties,
    conditioning_set_properties_and_combine,
    pair_conditioning_set_properties,
    pair_conditioning_set_properties_and_combine,
    pair_conditioning_combine,
    conditioning_set_default_combine,
    pair_conditioning_set_default_combine,
    conditioning_timesteps_range,
)
