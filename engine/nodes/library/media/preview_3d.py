"""Nodes that show 3D models in ComfyUI's page."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from darkroom.engine.images.encode import write_png
from darkroom.engine.media.file_3d import KINDS, File3D
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import PREVIEW_PNG_LEVEL
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.sockets import IMAGE, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import Text

MODULE = "comfy_extras.nodes_load_3d"

ModelPath = Annotated[str, Text(multiline=False)]
Camera = Annotated[Any, Socket("LOAD3D_CAMERA"), Optional()]
SHOWN = ("glb", "gltf", "fbx", "obj", "stl", "usdz")


class PathOrModel(Text):
    """The path of a 3D model in the output folder, or a model from a link."""

    def type_in(self, environment: NodeEnvironment) -> str:
        return ",".join(("STRING", *(KINDS[name] for name in SHOWN), "FILE_3D"))


@node(
    "Preview3D",
    display_name="Preview 3D & Animation",
    category="3d",
    python_module=MODULE,
    is_output=True,
    experimental=True,
    advanced=("camera_info", "bg_image"),
)
def preview_3d(
    context: NodeContext,
    *,
    model_file: Annotated[str | File3D, PathOrModel(multiline=False, extra={"widgetType": "STRING"})] = "",
    camera_info: Camera = None,
    bg_image: Annotated[IMAGE | None, Optional()] = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    """Show a model that another node has saved, or one from a link, before an image."""
    if isinstance(model_file, File3D):
        output = context.files.save_path("preview3d", suffix=model_file.suffix)
        context.files.submit(partial(model_file.save_to, str(output.path)))
        model_file = output.path.name
    background = None
    if bg_image is not None:
        shown = context.files.save_path("bg", kind="temp")
        context.files.submit(partial(write_png, shown.path, bg_image[0].detach().cpu(), {}, PREVIEW_PNG_LEVEL))
        background = f"temp/{shown.path.name}"
    return NodeOutput({"result": [model_file, camera_info, background]})


@node("Preview3DAnimation", display_name="Preview 3D - Animation", category="3d", python_module=MODULE,
      is_output=True, experimental=True)  # fmt: skip
def preview_3d_animation(context: NodeContext, *, model_file: ModelPath = "", camera_info: Camera = None) -> NodeOutput:
    """Show an animated model that another node has saved."""
    return NodeOutput({"result": [model_file, camera_info]})


NODES = (preview_3d, preview_3d_animation)
