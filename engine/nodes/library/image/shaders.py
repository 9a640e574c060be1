"""The node that computes images with a fragment shader of the prompt.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]`, here not limited to 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import torch

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.images.curves import STRAIGHT, Curve
from darkroom.engine.images.shaders.shader import (
    MAX_CURVES,
    MAX_FLAGS,
    MAX_IMAGES,
    MAX_NUMBERS,
    Shader,
    run_shader,
    unavailable,
)
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import PREVIEW_PNG_LEVEL, save_all
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.parameters import DynamicChoice, Field, Growing
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Flag, Float, Int, Text

MODULE = "comfy_extras.nodes_glsl"
MAX_SIDE_PX = 16384
LINKED: Final[ValueDict] = {"forceInput": True}
INPUT_PREFIX, OUTPUT_PREFIX = "GLSLShader_input", "GLSLShader_output"
# The default that /object_info of ComfyUI declares, which clients compare.
COPY = """#version 300 es
precision highp float;

uniform sampler2D u_image0;
uniform vec2 u_resolution;

in vec2 v_texCoord;
layout(location = 0) out vec4 fragColor0;

void main() {
    fragColor0 = texture(u_image0, v_texCoord);
}
"""
SIDE = Int(min=1, max=MAX_SIDE_PX)
SIZE_MODES = DynamicChoice(
    fields=(("from_input", ()), ("custom", (Field("width", SIDE, 512), Field("height", SIDE, 512)))),
)
FLOATS = Growing(item=Field("float", Float(extra=LINKED), 0.0), prefix="u_float", min=0, max=MAX_NUMBERS)
INTS = Growing(item=Field("int", Int(extra=LINKED), 0), prefix="u_int", min=0, max=MAX_NUMBERS)
BOOLS = Growing(item=Field("bool", Flag(extra=LINKED), False), prefix="u_bool", min=0, max=MAX_FLAGS)
CURVES = Growing(
    item=Field("curve", PageWidget("CURVE", extra={**WITHOUT_SOCKET, **LINKED}), STRAIGHT),
    prefix="u_curve",
    min=0,
    max=MAX_CURVES,
)


def _complaint(environment: NodeEnvironment, fragment_shader: str) -> str | None:
    """Return why no shader can run here."""
    return unavailable()


@node("GLSLShader", display_name="GLSL Shader", category="image/shader", python_module=MODULE, experimental=True,
      has_intermediate_output=True, check=_complaint)  # fmt: skip
def glsl_shader(
    context: NodeContext,
    *,
    fragment_shader: Annotated[str, Text(multiline=True)] = COPY,
    size_mode: Annotated[Mapping[str, Any], SIZE_MODES],
    images: Annotated[
        Mapping[str, torch.Tensor], Growing(item=Field("image", Socket("IMAGE")), prefix="image", min=1, max=MAX_IMAGES)
    ],
    floats: Annotated[Mapping[str, float], FLOATS],
    ints: Annotated[Mapping[str, int], INTS],
    bools: Annotated[Mapping[str, bool], BOOLS],
    curves: Annotated[Mapping[str, object], CURVES],
) -> Annotated[
    NodeOutput,
    tuple[
        Annotated[IMAGE, Out("IMAGE0")],
        Annotated[IMAGE, Out("IMAGE1")],
        Annotated[IMAGE, Out("IMAGE2")],
        Annotated[IMAGE, Out("IMAGE3")],
    ],
]:
    """Run a fragment shader for each pixel of the first image's size, or of its own, and for each image of the batch.

    Values are numbered in the order in which the prompt has them. What a shader reads and writes is in `v_texCoord`,
    `u_resolution`, `u_pass`, `u_image0`…, `u_float0`…, `u_int0`…, `u_bool0`…, `u_curve0`… and `fragColor0`….
    """
    given = list(images.values())
    height, width = given[0].shape[1:3]
    if size_mode["size_mode"] == "custom":
        width, height = size_mode["width"], size_mode["height"]
    shader = Shader(
        text=fragment_shader,
        floats=list(floats.values()),
        ints=list(ints.values()),
        flags=list(bools.values()),
        curves=[Curve.from_raw(curve).to_lut().tolist() for curve in curves.values()],
    )
    made = run_shader(shader, given, width, height, context.files.max_pixels(), context.cancel.check)
    read = [
        item
        for image in given
        for item in save_all(context, image, INPUT_PREFIX, "temp", {}, PREVIEW_PNG_LEVEL).ui["images"]
    ]
    written = save_all(context, made[0], OUTPUT_PREFIX, "temp", {}, PREVIEW_PNG_LEVEL).ui["images"]
    return NodeOutput({"input_images": read, "images": written}, tuple(made))


NODES = (glsl_shader,)
