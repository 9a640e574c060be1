"""Nodes that change options of MODEL: attention, positions, the noise of its training."""

from __future__ import annotations

import copy
from typing import Annotated, Any

from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow
from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.model_sampling import MODEL_MODULE, sampled_with
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Float, OpenChoice

CATEGORY = "model/patch"
BACKENDS = ("pytorch attention",)
ADVANCED = {"advanced": True}

Scale = Annotated[float, Float(min=0.0, max=100.0, step=0.1, extra=ADVANCED)]
Shift = Annotated[float, Float(min=-256.0, max=256.0, step=0.1, extra=ADVANCED)]


@node("ModelNoiseScale", category=CATEGORY, python_module=MODEL_MODULE)
def model_noise_scale(
    context: NodeContext, *, model: MODEL, noise_scale: Annotated[float, Float(min=0.0, max=64.0, step=0.01)] = 1.0
) -> MODEL:
    """Set the standard deviation of the noise that a flow was trained with.

    Raises ValueError for a model that is no flow.
    """
    sampling: Any = model.get_model_object("model_sampling")
    if not isinstance(sampling, RectifiedFlow):
        raise ValueError(
            f"model: only flows have a scale of noise; got {type(sampling).__name__}, expected a model as SD3 or Wan"
        )
    changed = copy.copy(sampling)
    changed.noise_scale = noise_scale
    return sampled_with(model, changed)


@node("ModelAttentionBackend", category=CATEGORY, python_module=MODEL_MODULE)
def model_attention_backend(
    context: NodeContext, *, model: MODEL, attention: Annotated[str, OpenChoice(BACKENDS)]
) -> MODEL:
    """Return a clone of the model, which computes with PyTorch's attention, or what was measured to be faster.

    Which backends ComfyUI offers depends on the machine; the names of others are taken and change nothing.
    """
    return model.clone()


@node(
    "ScaleROPE",
    display_name=None,
    category=CATEGORY,
    python_module="comfy_extras.nodes_rope",
    experimental=True,
)
def scale_rope(
    context: NodeContext,
    *,
    model: MODEL,
    scale_x: Scale = 1.0,
    shift_x: Shift = 0.0,
    scale_y: Scale = 1.0,
    shift_y: Shift = 0.0,
    scale_t: Scale = 1.0,
    shift_t: Shift = 0.0,
) -> MODEL:
    """Scale and shift the positions of image tokens: of Flux, Lumina 2, Z-Image and Wan."""
    patched = model.clone()
    patched.model_options["transformer_options"][ROPE_OPTIONS] = {
        "scale_x": scale_x, "scale_y": scale_y, "scale_t": scale_t,
        "shift_x": shift_x, "shift_y": shift_y, "shift_t": shift_t,
    }  # fmt: skip
    return patched


NODES = (model_noise_scale, model_attention_backend, scale_rope)
