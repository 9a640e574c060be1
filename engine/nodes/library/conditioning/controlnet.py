"""Nodes that load ControlNets and attach them to conditioning."""

from __future__ import annotations

from typing import Annotated, Any

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, CONTROL_NET, IMAGE, MASK, MODEL, VAE
from darkroom.engine.nodes.widgets import Combo, Float, ModelFile

CATEGORY = "model/conditioning/controlnet"
CONTROL_MODULE = "comfy_extras.nodes_controlnet"

UNION_TYPES = (
    "openpose", "depth", "hed/pidi/scribble/ted", "canny/lineart/anime_lineart/mlsd", "normal", "segment", "tile",
    "repaint",
)  # fmt: skip

Strength = Annotated[float, Float(min=0.0, max=10.0, step=0.01)]
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]
Positive = Annotated[CONDITIONING, Out("positive")]
Negative = Annotated[CONDITIONING, Out("negative")]


@node(
    "ControlNetLoader",
    display_name="Load ControlNet Model",
    category="model/loaders",
    facts=NodeFacts(reads_early=True),
)
def controlnet_loader(
    context: NodeContext, *, control_net_name: Annotated[str, ModelFile("controlnet")]
) -> CONTROL_NET:
    net: CONTROL_NET = context.models.auxiliary.controlnet(control_net_name)
    return net


@node("DiffControlNetLoader", display_name="Load ControlNet Model (diff)", category="model/loaders")
def diff_controlnet_loader(
    context: NodeContext, *, model: MODEL, control_net_name: Annotated[str, ModelFile("controlnet")]
) -> CONTROL_NET:
    net: CONTROL_NET = context.models.auxiliary.controlnet_upon(control_net_name, model)
    return net


@node("ControlNetApply", display_name="Apply ControlNet (DEPRECATED)", category=CATEGORY, deprecated=True)
def controlnet_apply(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    control_net: CONTROL_NET,
    image: IMAGE,
    strength: Strength = 1.0,
) -> CONDITIONING:
    if strength == 0:
        return conditioning
    hint = image.movedim(-1, 1)
    applied = []
    for tokens, options in conditioning:
        net = control_net.copy().set_cond_hint(hint, strength)
        if "control" in options:
            net.set_previous_controlnet(options["control"])
        applied.append([tokens, {**options, "control": net, "control_apply_to_uncond": True}])
    return applied


def apply_to_both(
    positive: Any,
    negative: Any,
    control_net: Any,
    image: Any,
    strength: float,
    start_percent: float,
    end_percent: float,
    vae: Any = None,
    extra_concat: Any = (),
) -> tuple[Any, Any]:
    """Attach a ControlNet to positive and negative conditioning.

    Conditions with the same previous net share one, so that guidance can run them in one batch.
    """
    if strength == 0:
        return positive, negative
    hint = image.movedim(-1, 1)
    nets: dict[int, Any] = {}

    def applied(conditioning: Any) -> list[list[Any]]:
        changed = []
        for tokens, options in conditioning:
            previous = options.get("control")
            if id(previous) not in nets:
                net = control_net.copy().set_cond_hint(
                    hint, strength, (start_percent, end_percent), vae=vae, extra_concat=extra_concat
                )
                nets[id(previous)] = net.set_previous_controlnet(previous)
            net = nets[id(previous)]
            changed.append([tokens, {**options, "control": net, "control_apply_to_uncond": False}])
        return changed

    return applied(positive), applied(negative)


@node("ControlNetApplyAdvanced", display_name="Apply ControlNet", category=CATEGORY)
def controlnet_apply_advanced(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    control_net: CONTROL_NET,
    image: IMAGE,
    strength: Strength = 1.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
    vae: Annotated[VAE | None, Optional()] = None,
) -> tuple[Positive, Negative]:
    return apply_to_both(positive, negative, control_net, image, strength, start_percent, end_percent, vae)


@node(
    "ControlNetApplySD3",
    display_name="Apply Controlnet with VAE",
    category=CATEGORY,
    python_module="comfy_extras.nodes_sd3",
    deprecated=True,
)
def controlnet_apply_sd3(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    control_net: CONTROL_NET,
    vae: VAE,
    image: IMAGE,
    strength: Strength = 1.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> tuple[Positive, Negative]:
    return apply_to_both(positive, negative, control_net, image, strength, start_percent, end_percent, vae)


@node(
    "ControlNetInpaintingAliMamaApply",
    display_name="Apply ControlNet Inpainting (AliMama)",
    category=CATEGORY,
    python_module=CONTROL_MODULE,
    advanced=("start_percent", "end_percent"),
)
def controlnet_inpainting_alimama_apply(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    control_net: CONTROL_NET,
    vae: VAE,
    image: IMAGE,
    mask: MASK,
    strength: Strength = 1.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> tuple[Positive, Negative]:
    extra_concat = []
    if getattr(control_net, "concat_mask", False):
        kept = 1.0 - mask.reshape((-1, 1, mask.shape[-2], mask.shape[-1]))
        seen = resize(kept, image.shape[2], image.shape[1], "bilinear", "center").round()
        image = image * seen.movedim(1, -1)
        extra_concat = [kept]
    return apply_to_both(
        positive, negative, control_net, image, strength, start_percent, end_percent, vae, extra_concat
    )


@node(
    "SetUnionControlNetType", display_name="Set Union ControlNet Type", category=CATEGORY, python_module=CONTROL_MODULE
)
def set_union_controlnet_type(
    context: NodeContext, *, control_net: CONTROL_NET, type: Annotated[str, Combo(("auto", *UNION_TYPES))]
) -> CONTROL_NET:
    net: Any = control_net.copy()
    net.set_extra_arg("control_type", [UNION_TYPES.index(type)] if type in UNION_TYPES else [])
    typed: CONTROL_NET = net
    return typed


NODES = (
    controlnet_loader, diff_controlnet_loader, controlnet_apply, controlnet_apply_advanced, controlnet_apply_sd3,
    controlnet_inpainting_alimama_apply, set_union_controlnet_type,
)  # fmt: skip
