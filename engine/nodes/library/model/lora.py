"""Nodes that apply a LoRA to a model or its text encoder."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.lora_names import LoraTarget, target_name
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.clip import Clip
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.lora_keys import (
    TEXT_STARTS,
    denoiser_lora_keys,
    lora_misfit,
    renamed_lora,
    text_lora_keys,
)
from darkroom.engine.models.patching.patcher_registries import LORA_METADATA
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, MODEL
from darkroom.engine.nodes.widgets import Float, ModelFile

Strength = Annotated[float, Float(min=-100.0, max=100.0, step=0.01)]
LoraName = Annotated[str, ModelFile("loras")]

log = logging.getLogger(__name__)


def with_lora(
    model: Model | None,
    clip: Clip | None,
    lora: Mapping[str, torch.Tensor],
    strength_model: float,
    strength_clip: float,
    source: Hashable = None,
    metadata: Mapping[str, str] | None = None,
) -> tuple[Model | None, Clip | None]:
    """Return clones that carry the LoRA. Keys that name a weight of neither are left out, and reported as a warning.

    Those for text encoders are expected where there is none.

    `source` identifies the content of a LoRA that others read too: runs with the same one share their steps.
    `metadata` of its file is attached to the clones, where nodes for IC-LoRAs and packs find it.

    Raises ValueError for a LoRA whose layers have other widths than the model's.
    """
    keys: dict[str, LoraTarget] = {}
    if model is not None:
        keys |= denoiser_lora_keys(model.model)
    lora = renamed_lora(None if model is None else model.model, lora)
    if clip is not None:
        keys |= text_lora_keys(clip.cond_stage_model)
    patches = lora_patches(lora, keys, ignored=TEXT_STARTS if clip is None else ())
    if not patches and lora:
        report_warning(log, "lora_without_effect", _unfit(model, lora))
    misfit = None if model is None else lora_misfit(model.model, patches)
    if misfit is not None:
        raise ValueError(f"lora_name: it is made for another model; got {misfit}, as LoRAs for {_label(model)} have it")
    taken: set[Any] = set()
    if source is not None:  # the names in a LoRA are looked up in both networks
        source = (source, *(None if item is None else _entry_id(item) for item in (model, clip)))
    if model is not None:
        model = model.clone()
        taken |= set(model.add_patches(patches, strength_model, source=source))
        if metadata:
            model.set_attachments(LORA_METADATA, metadata)
    if clip is not None:
        clip = clip.clone()
        taken |= set(clip.add_patches(patches, strength_clip, source=source))
        if metadata:
            clip.patcher.set_attachments(LORA_METADATA, metadata)
    for name in patches:
        if name not in taken:
            report_warning(log, "lora_keys_left_out", f"LoRA: its change of {target_name(name)} is left out")
    return model, clip


def _entry_id(value: Model | Clip) -> object:
    patcher = value.patcher if isinstance(value, Clip) else value
    return getattr(patcher.weights, "entry_id", None)


def _unfit(model: Model | None, lora: Mapping[str, torch.Tensor]) -> str:
    """Return the message for a LoRA that changes nothing."""
    return (
        f"lora_name: it has no effect, since none of its keys is a weight of the model; got {next(iter(lora))!r}, "
        f"expected a LoRA for {_label(model)}"
    )


def _label(model: Model | None) -> str:
    family = None if model is None else model.model.model_config.family
    return "the model" if family is None else f"a model of {family.label}"


@node(
    "LoraLoader",
    display_name="Load LoRA (Model and CLIP)",
    category="model/loaders",
    output_tooltips=["The modified diffusion model.", "The modified CLIP model."],
    facts=NodeFacts(items="alike"),
    essentials_category="Image Generation",
)
def lora_loader(
    context: NodeContext,
    *,
    model: MODEL,
    clip: CLIP,
    lora_name: LoraName,
    strength_model: Strength = 1.0,
    strength_clip: Strength = 1.0,
) -> tuple[MODEL, CLIP]:
    """LoRAs are used to modify diffusion and CLIP models, altering the way in which latents are denoised such as
    applying styles. Multiple LoRA nodes can be linked together."""  # noqa: D205 - ComfyUI's words
    if strength_model == 0 and strength_clip == 0:
        return model, clip
    source = context.models.files.state("loras", lora_name)
    tensors, metadata = context.models.files.tensors_and_metadata("loras", lora_name)
    patched, patched_clip = with_lora(model, clip, tensors, strength_model, strength_clip, source, metadata)
    assert patched is not None and patched_clip is not None
    return patched, patched_clip


@node(
    "LoraLoaderModelOnly",
    display_name="Load LoRA",
    category="model/loaders",
    facts=NodeFacts(items="alike"),
    essentials_category="Image Generation",
)
def lora_loader_model_only(
    context: NodeContext, *, model: MODEL, lora_name: LoraName, strength_model: Strength = 1.0
) -> MODEL:
    """LoRAs are used to modify diffusion and CLIP models, altering the way in which latents are denoised such as
    applying styles. Multiple LoRA nodes can be linked together."""  # noqa: D205 - ComfyUI's words
    if strength_model == 0:
        return model
    source = context.models.files.state("loras", lora_name)
    tensors, metadata = context.models.files.tensors_and_metadata("loras", lora_name)
    patched, _ = with_lora(model, None, tensors, strength_model, 0.0, source, metadata)
    assert patched is not None
    return patched


NODES = (lora_loader, lora_loader_model_only)
