"""Node classes made for HiDream-O1: empty images, reference images, and a patch against seams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.engine.diffusion.wrappers import DIFFUSION_MODEL
from darkroom.engine.families.hidream_o1.seams import LEVELS, PATTERNS, SeamSmoothing
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT, MODEL
from darkroom.engine.nodes.widgets import Combo, Float, Int

MODULE = "comfy_extras.nodes_hidream_o1"
KEY = "hidream_o1_patch_seam_smoothing"
BLENDS = ("average", "window", "median")

Side = Annotated[int, Int(min=64, max=4096, step=32)]
Share = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]
IMAGES = Growing(item=Field("image", Socket("IMAGE")), names=tuple(f"image_{i}" for i in range(1, 11)), min=1)


@node("EmptyHiDreamO1LatentImage", display_name="Empty HiDream-O1 Latent Image", category="model/latent/hidream",
      python_module=MODULE)  # fmt: skip
def empty_hidream_o1_latent_image(
    context: NodeContext,
    *,
    width: Side = 2048,
    height: Side = 2048,
    batch_size: Annotated[int, Int(min=1, max=64)] = 1,
) -> LATENT:
    """Return an empty image as a latent of its pixels. The model was trained with images of four megapixels."""
    return {"samples": torch.zeros([batch_size, 3, height, width])}


@node("HiDreamO1ReferenceImages", display_name="HiDream-O1 Reference Images", category="model/conditioning/hidream",
      python_module=MODULE)  # fmt: skip
def hidream_o1_reference_images(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    images: Annotated[Mapping[str, torch.Tensor], IMAGES],
) -> tuple[Annotated[CONDITIONING, Out("positive")], Annotated[CONDITIONING, Out("negative")]]:
    """Add an image to edit, or up to ten images of subjects, to what is drawn and to what is kept away from."""
    for _, image in sorted(images.items(), key=lambda item: int(item[0].rpartition("_")[2])):
        positive, negative = (with_appended(item, "reference_latents", image) for item in (positive, negative))
    return positive, negative


@node("HiDreamO1PatchSeamSmoothing", display_name="HiDream-O1 Patch Seam Smoothing", category="model/patch/hidream",
      python_module=MODULE, experimental=True)  # fmt: skip
def hidream_o1_patch_seam_smoothing(
    context: NodeContext,
    *,
    model: MODEL,
    start_percent: Share = 0.8,
    end_percent: Share = 1.0,
    pattern: Annotated[str, Combo(tuple(PATTERNS))] = "single_shift",
    passes: Annotated[str, Combo(tuple(LEVELS))] = "2",
    blend: Annotated[str, Combo(BLENDS)] = "average",
    strength: Share = 1.0,
) -> MODEL:
    """Average the predictions of images shifted against the grid of patches, in the last part of the steps."""
    if strength <= 0.0 or end_percent <= start_percent:
        return model
    sampling = model.get_model_object("model_sampling")
    highest, lowest = (float(sampling.percent_to_sigma(percent)) for percent in (start_percent, end_percent))
    smoothing = SeamSmoothing(
        [PATTERNS[pattern][count] for count in LEVELS[passes]], blend, strength, highest=highest, lowest=lowest
    )
    patched = model.clone()
    patched.add_wrapper_with_key(DIFFUSION_MODEL, KEY, smoothing.wrap)
    return patched


NODES = (empty_hidream_o1_latent_image, hidream_o1_reference_images, hidream_o1_patch_seam_smoothing)
