"""MODEL with guidance away from its network without some blocks."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.skip_layers import SkippedLayers, layer_numbers
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Float, Text

GUIDANCE_CATEGORY = "advanced/guidance"
MODULE = "comfy_extras.nodes_slg"

Layers = Annotated[str, Text(multiline=False)]
Scale = Annotated[float, Float(min=0.0, max=10.0, step=0.1)]
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]


def skipped_layers(model: Model, double: str, single: str, start_percent: float, end_percent: float) -> SkippedLayers:
    """Return the layers to skip, by their numbers as text ("7, 8, 9"), and the noise levels between which they are."""
    sampling = model.get_model_object("model_sampling")
    highest, lowest = (sampling.percent_to_sigma(percent) for percent in (start_percent, end_percent))
    return SkippedLayers(layer_numbers(double), layer_numbers(single), highest, lowest)


def guided_away(model: Model, skipped: SkippedLayers, scale: float, rescaling: float = 0.0) -> Model:
    """Return a clone that is guided away from its network without the layers, the model itself where there are none."""
    if not (skipped.double or skipped.single):
        return model
    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(lambda args: skipped.guide(args, scale, rescaling))
    return patched


@node(
    "SkipLayerGuidanceDiT",
    display_name=None,
    category=GUIDANCE_CATEGORY,
    python_module=MODULE,
    experimental=True,
    advanced=("double_layers", "single_layers", "start_percent", "end_percent"),
)
def skip_layer_guidance_dit(
    context: NodeContext,
    *,
    model: MODEL,
    double_layers: Layers = "7, 8, 9",
    single_layers: Layers = "7, 8, 9",
    scale: Scale = 3.0,
    start_percent: Percent = 0.01,
    end_percent: Percent = 0.15,
    rescaling_scale: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 0.0,
) -> MODEL:
    """Generic version of SkipLayerGuidance node that can be used on every DiT model."""  # noqa: D401 - ComfyUI's words
    skipped = skipped_layers(model, double_layers, single_layers, start_percent, end_percent)
    return guided_away(model, skipped, scale, rescaling_scale)


@node("SkipLayerGuidanceDiTSimple", display_name=None, category=GUIDANCE_CATEGORY, python_module=MODULE,
      experimental=True, advanced=("double_layers", "single_layers", "start_percent", "end_percent"))  # fmt: skip
def skip_layer_guidance_dit_simple(
    context: NodeContext,
    *,
    model: MODEL,
    double_layers: Layers = "7, 8, 9",
    single_layers: Layers = "7, 8, 9",
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> MODEL:
    """Simple version of the SkipLayerGuidanceDiT node that only modifies the uncond pass."""  # noqa: D401 - ComfyUI's
    skipped = skipped_layers(model, double_layers, single_layers, start_percent, end_percent)
    if not (skipped.double or skipped.single):
        return model
    patched = model.clone()
    patched.set_model_sampler_calc_cond_batch_function(skipped.sides)
    return patched


NODES = (skip_layer_guidance_dit, skip_layer_guidance_dit_simple)
