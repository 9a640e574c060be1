"""The node that loads networks which other nodes attach to a MODEL."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL_PATCH
from darkroom.engine.nodes.widgets import ModelFile


@node(
    "ModelPatchLoader",
    display_name="Load Model Patch",
    category="model/loaders",
    python_module="comfy_extras.nodes_model_patch",
    experimental=True,
)
def model_patch_loader(context: NodeContext, *, name: Annotated[str, ModelFile("model_patches")]) -> MODEL_PATCH:
    """Load a model patch."""
    loaded: MODEL_PATCH = context.models.auxiliary.model_patch(name)
    return loaded


NODES = (model_patch_loader,)
