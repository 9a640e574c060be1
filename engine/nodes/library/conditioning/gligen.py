"""Nodes that describe by text the content of a box of the image (GLIGEN)."""

from __future__ import annotations

from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, GLIGEN
from darkroom.engine.nodes.widgets import Int, ModelFile, PromptText

Side = Annotated[int, Int(min=8, max=MAX_SIDE_PX, step=8)]
Place = Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)]


@node("GLIGENLoader", display_name="Load GLIGEN Model", category="model/loaders")
def gligen_loader(context: NodeContext, *, gligen_name: Annotated[str, ModelFile("gligen")]) -> GLIGEN:
    loaded: GLIGEN = context.models.auxiliary.gligen(gligen_name)
    return loaded


@node("GLIGENTextBoxApply", display_name="Apply GLIGEN Text Box", category="model/conditioning/gligen")
def gligen_text_box_apply(
    context: NodeContext,
    *,
    conditioning_to: CONDITIONING,
    clip: CLIP,
    gligen_textbox_model: GLIGEN,
    text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    width: Side = 64,
    height: Side = 64,
    x: Place = 0,
    y: Place = 0,
) -> CONDITIONING:
    """Add one box to each entry; sizes in pixels, stored in latent cells (8 px)."""
    _, pooled = clip.encode_from_tokens(clip.tokenize(text), return_pooled="unprojected")
    box = (pooled, height // 8, width // 8, y // 8, x // 8)
    placed: list[list[Any]] = []
    for tokens, options in conditioning_to:
        before = options["gligen"][2] if "gligen" in options else []
        placed.append([tokens, {**options, "gligen": ("position", gligen_textbox_model, [*before, box])}])
    return placed


NODES = (gligen_loader, gligen_text_box_apply)
