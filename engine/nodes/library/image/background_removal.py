"""Nodes that tell the foreground of images from their background."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import BACKGROUND_REMOVAL, IMAGE, MASK
from darkroom.engine.nodes.widgets import ModelCombo

MODULE = "comfy_extras.nodes_bg_removal"


@node(
    "LoadBackgroundRemovalModel",
    display_name="Load Background Removal Model",
    category="model/loaders",
    python_module=MODULE,
    facts=NodeFacts(items="alike"),
)
def load_background_removal_model(
    context: NodeContext, *, bg_removal_name: Annotated[str, ModelCombo("background_removal")]
) -> Annotated[BACKGROUND_REMOVAL, Out("bg_model")]:
    """Load a network that removes backgrounds: BiRefNet."""
    loaded: BACKGROUND_REMOVAL = context.models.vision.background_remover(bg_removal_name)
    return loaded


@node(
    "RemoveBackground",
    display_name="Remove Background",
    category="image/background removal",
    python_module=MODULE,
    facts=NodeFacts(items="alone"),
)
def remove_background(
    context: NodeContext, *, bg_removal_model: BACKGROUND_REMOVAL, image: IMAGE
) -> Annotated[MASK, Out("mask")]:
    """Compute a mask of the foreground of images, 1 where it is."""

    def on_image(done: int) -> None:
        context.cancel.check()
        context.report_progress(done, len(image))

    return bg_removal_model.encode_image(image, on_image)


NODES = (load_background_removal_model, remove_background)
