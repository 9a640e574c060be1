"""Nodes that show 3D models in ComfyUI's page."""

from __future__ import annotations

from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext, NodeOutput, Optional, Socket, Text, node

MODULE = "comfy_extras.nodes_load_3d"

ModelPath = Annotated[str, Text(multiline=False)]
Camera = Annotated[Any, Socket("LOAD3D_CAMERA"), Optional()]


@node("Preview3D", display_name="Preview 3D", category="3d", python_module=MODULE, is_output=True, experimental=True)
def preview_3d(context: NodeContext, *, model_file: ModelPath = "", camera_info: Camera = None) -> NodeOutput:
    """Show a model that another node has saved."""
    return NodeOutput({"result": [model_file, camera_info]})


@node("Preview3DAnimation", display_name="Preview 3D - Animation", category="3d", python_module=MODULE,
      is_output=True, experimental=True)  # fmt: skip
def preview_3d_animation(context: NodeContext, *, model_file: ModelPath = "", camera_info: Camera = None) -> NodeOutput:
    """Show an animated model that another node has saved."""
    return NodeOutput({"result": [model_file, camera_info]})


NODES = (preview_3d, preview_3d_animation)
