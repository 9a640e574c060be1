"""Nodes that merge models and text encoders, weight by weight.

Nothing is computed here: the merged model is a clone of the first whose weights are patched with those of the second
when it is used, each with the patches it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.contract.graph.spec import OutputSpec
from darkroom.engine.families.registry import families
from darkroom.engine.models.clip import Clip
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.parameters import Parameter
from darkroom.engine.nodes.sockets import CLIP, MODEL
from darkroom.engine.nodes.widgets import Float

CATEGORY = "advanced/model_merging"
MERGING_MODULE = "comfy_extras.nodes_model_merging"
UNET_PREFIX = "diffusion_model."
NOT_MERGED = (".position_ids", ".logit_scale")

Ratio = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]
Multiplier = Annotated[float, Float(min=-10.0, max=10.0, step=0.01)]


def merged_model(first: Model, second: Model, strength_second: float, strength_first: float) -> Model:
    merged = first.clone()
    merged.add_patches(second.get_borrowed_patches(UNET_PREFIX), strength_second, strength_first)
    return merged


def merged_blocks(first: Model, second: Model, ratios: Mapping[str, float]) -> Model:
    """Merge each weight by the ratio of the longest name it starts with, or by the first ratio if none matches."""
    merged = first.clone()
    default = next(iter(ratios.values()))
    groups: dict[float, dict[str, Any]] = {}
    for name, patches in second.get_borrowed_patches(UNET_PREFIX).items():
        inner = name.removeprefix(UNET_PREFIX)
        fitting = [start for start in ratios if inner.startswith(start)]
        ratio = ratios[max(fitting, key=len)] if fitting else default
        groups.setdefault(ratio, {})[name] = patches
    for ratio, group in groups.items():
        merged.add_patches(group, 1.0 - ratio, ratio)
    return merged


def merged_clip(first: Clip, second: Clip, strength_second: float, strength_first: float) -> Clip:
    merged = first.clone()
    patches = {
        name: entry for name, entry in second.patcher.get_borrowed_patches().items() if not name.endswith(NOT_MERGED)
    }
    merged.add_patches(patches, strength_second, strength_first)
    return merged


@node("ModelMergeSimple", category="model/merging", python_module=MERGING_MODULE)
def model_merge_simple(context: NodeContext, *, model1: MODEL, model2: MODEL, ratio: Ratio = 1.0) -> MODEL:
    return merged_model(model1, model2, 1.0 - ratio, ratio)


@node("ModelMergeBlocks", category="model/merging", python_module=MERGING_MODULE)
def model_merge_blocks(
    context: NodeContext, *, model1: MODEL, model2: MODEL, input: Ratio = 1.0, middle: Ratio = 1.0, out: Ratio = 1.0
) -> MODEL:
    return merged_blocks(model1, model2, {"input": input, "middle": middle, "out": out})


@node("ModelMergeSubtract", category="model/merging", python_module=MERGING_MODULE)
def model_merge_subtract(context: NodeContext, *, model1: MODEL, model2: MODEL, multiplier: Multiplier = 1.0) -> MODEL:
    return merged_model(model1, model2, -multiplier, multiplier)


@node("ModelMergeAdd", category="model/merging", python_module=MERGING_MODULE)
def model_merge_add(context: NodeContext, *, model1: MODEL, model2: MODEL) -> MODEL:
    return merged_model(model1, model2, 1.0, 1.0)


@node("CLIPMergeSimple", category="model/merging", python_module=MERGING_MODULE)
def clip_merge_simple(context: NodeContext, *, clip1: CLIP, clip2: CLIP, ratio: Ratio = 1.0) -> CLIP:
    return merged_clip(clip1, clip2, 1.0 - ratio, ratio)


@node("CLIPMergeSubtract", category="model/merging", python_module=MERGING_MODULE)
def clip_merge_subtract(context: NodeContext, *, clip1: CLIP, clip2: CLIP, multiplier: Multiplier = 1.0) -> CLIP:
    return merged_clip(clip1, clip2, -multiplier, multiplier)


@node("CLIPMergeAdd", category="model/merging", python_module=MERGING_MODULE)
def clip_merge_add(context: NodeContext, *, clip1: CLIP, clip2: CLIP) -> CLIP:
    return merged_clip(clip1, clip2, 1.0, 1.0)


def _merge_blocks(context: NodeContext, *, model1: Model, model2: Model, **ratios: float) -> Model:
    return merged_blocks(model1, model2, ratios)


def _merging_node(class_type: str, blocks: tuple[str, ...]) -> FunctionNode:
    """Make a node whose inputs are named after blocks ("input_blocks.0."), which function parameters cannot be."""
    return FunctionNode(
        class_type=class_type,
        function=_merge_blocks,
        display_name=class_type,
        category="model/merging/model specific",
        is_output=False,
        python_module="comfy_extras.nodes_model_merging_model_specific",
        is_idempotent=True,
        extra={},
        parameters=(
            Parameter("model1", "required", Socket("MODEL")),
            Parameter("model2", "required", Socket("MODEL")),
            *(Parameter(block, "required", Float(min=0.0, max=1.0, step=0.01), 1.0) for block in blocks),
        ),
        outputs=(OutputSpec("MODEL", "MODEL", False),),
    )


MODEL_SPECIFIC = tuple(
    _merging_node(class_type, blocks)
    for family in families()
    for class_type, blocks in family.comfyui.merge_nodes.items()
)

NODES = (
    model_merge_simple, model_merge_blocks, model_merge_subtract, model_merge_add, clip_merge_simple,
    clip_merge_subtract, clip_merge_add, *MODEL_SPECIFIC,
)  # fmt: skip
