"""Node classes made for Flux.1: prompts, guidance, noise levels, sizes and reference images of Kontext."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.model_sampling_variants import FluxFlow
from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE, with_option_for_run
from darkroom.engine.families.flux.reference_keys import OPTION, ReferenceKeys
from darkroom.engine.families.flux.uso_files import StyleTokens, layer_outputs
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.sampling.model_sampling import MODEL_MODULE, sampled_with
from darkroom.engine.nodes.sockets import CLIP, CLIP_VISION_OUTPUT, CONDITIONING, IMAGE, MODEL, MODEL_PATCH
from darkroom.engine.nodes.widgets import Float, Int, LongText, OpenCombo

MODULE = "comfy_extras.nodes_flux"
CATEGORY = "model/conditioning/flux"
KEEPING_FAMILIES = ("flux", "flux2", "longcat_image")  # whose blocks keep keys of reference images
# Widths and heights that Flux Kontext was trained with.
KONTEXT_SIZES_PX = (
    (672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184), (944, 1104),
    (1024, 1024), (1104, 944), (1184, 880), (1248, 832), (1328, 800), (1392, 752), (1456, 720), (1504, 688),
    (1568, 672),
)  # fmt: skip

Shift = Annotated[float, Float(min=0.0, max=100.0, step=0.01)]


@node("CLIPTextEncodeFlux", display_name=None, category=CATEGORY, python_module=MODULE, facts=NodeFacts(items="alike"))
def clip_text_encode_flux(
    context: NodeContext,
    *,
    clip: CLIP,
    clip_l: LongText,
    t5xxl: LongText,
    guidance: Annotated[float, Float(min=0.0, max=100.0, step=0.1)] = 3.5,
) -> CONDITIONING:
    """Encode a prompt for each of two text encoders, with the scale of guidance."""
    tokens = {**clip.tokenize(clip_l), "t5xxl": clip.tokenize(t5xxl)["t5xxl"]}
    return clip.encode_from_tokens_scheduled(tokens, add_dict={"guidance": guidance})


@node("FluxGuidance", display_name=None, category=CATEGORY, python_module=MODULE, facts=NodeFacts(items="alike"))
def flux_guidance(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    guidance: Annotated[float, Float(min=0.0, max=100.0, step=0.1)] = 3.5,
) -> CONDITIONING:
    return with_options(conditioning, guidance=guidance)


@node("FluxDisableGuidance", display_name=None, category=CATEGORY, python_module=MODULE)
def flux_disable_guidance(context: NodeContext, *, conditioning: CONDITIONING) -> CONDITIONING:
    return with_options(conditioning, guidance=None)


@node("FluxKontextImageScale", display_name=None, category=CATEGORY, python_module=MODULE)
def flux_kontext_image_scale(context: NodeContext, *, image: IMAGE) -> IMAGE:
    """Scale and crop an image to the size of Flux Kontext with the nearest aspect ratio."""
    aspect = image.shape[2] / image.shape[1]
    width, height = min(KONTEXT_SIZES_PX, key=lambda size: (abs(aspect - size[0] / size[1]), size))
    return resize_image(image, width, height, "lanczos", "center")


REFERENCE_METHODS = ("offset", "index", "uxo/uno", "index_timestep_zero")
FORMER_METHODS = ("uso", "uxo", "uno")  # which published workflows have, and ComfyUI takes


def _unknown_method(environment: NodeEnvironment, reference_latents_method: object) -> str | None:
    if reference_latents_method is None or reference_latents_method in (*REFERENCE_METHODS, *FORMER_METHODS):
        return None
    return f"unknown method; got {reference_latents_method!r}, expected one of {', '.join(REFERENCE_METHODS)}"


@node(
    "FluxKontextMultiReferenceLatentMethod",
    display_name="Edit Model Reference Method",
    category=CATEGORY,
    python_module=MODULE,
    experimental=True,
    check=_unknown_method,
    advanced=("reference_latents_method",),
)
def flux_kontext_multi_reference_latent_method(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    reference_latents_method: Annotated[str, OpenCombo(REFERENCE_METHODS)],
) -> CONDITIONING:
    is_behind = "uxo" in reference_latents_method or "uso" in reference_latents_method
    method = "uxo" if is_behind else reference_latents_method
    return with_options(conditioning, reference_latents_method=method)


@node(
    "ModelSamplingFlux",
    category="model/patch/flux",
    python_module=MODEL_MODULE,
    facts=NodeFacts(items="alike"),
    advanced=("max_shift", "base_shift"),
)
def model_sampling_flux(
    context: NodeContext,
    *,
    model: MODEL,
    max_shift: Shift = 1.15,
    base_shift: Shift = 0.5,
    width: Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=8)] = 1024,
    height: Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=8)] = 1024,
) -> MODEL:
    """Set a shift that is linear in the number of 16 px patches: `base_shift` at 256, `max_shift` at 4096."""
    slope = (max_shift - base_shift) / (4096 - 256)
    shift = (width * height / 256) * slope + base_shift - slope * 256
    return sampled_with(model, FluxFlow(shift))


@node("USOStyleReference", display_name="Apply USO Style Reference", category="model/patch/flux",
      python_module="comfy_extras.nodes_model_patch", experimental=True)  # fmt: skip
def uso_style_reference(
    context: NodeContext, *, model: MODEL, model_patch: MODEL_PATCH, clip_vision_output: CLIP_VISION_OUTPUT
) -> MODEL:
    """Let the style of an image guide the model, by tokens before those of the prompt."""
    styled = model.clone()
    styled.set_additional_models("style_reference", [model_patch])
    styled.set_model_post_input_patch(StyleTokens(model_patch, layer_outputs(clip_vision_output)))
    return styled


@node("FluxKVCache", display_name="Flux KV Cache", category="experimental", python_module=MODULE, experimental=True)
def flux_kv_cache(context: NodeContext, *, model: MODEL) -> MODEL:
    """Keep the keys and values of reference images from the first step on, and see them as if their time was 0.

    They are kept on the device while it has room, else in RAM.

    Raises ValueError for a model that is none of Flux's kind.
    """
    family = model.model.model_config.family
    if family.name not in KEEPING_FAMILIES:
        raise ValueError(
            f"model: it keeps no keys of reference images; got {family.label}, expected Flux.1, Flux.2 or LongCat-Image"
        )
    keeping = model.clone()
    keeping.remove_wrappers_with_key(OUTER_SAMPLE, OPTION)
    keeping.add_wrapper_with_key(OUTER_SAMPLE, OPTION, with_option_for_run(OPTION, ReferenceKeys))
    return keeping


NODES = (
    clip_text_encode_flux, flux_guidance, flux_disable_guidance, flux_kontext_image_scale,
    flux_kontext_multi_reference_latent_method, model_sampling_flux, uso_style_reference, flux_kv_cache,
)  # fmt: skip
