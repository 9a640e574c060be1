"""Nodes of later releases of ComfyUI that save images: with more bits a channel, or two to compare."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch

from darkroom.engine.images.encode import metadata_texts, write_png
from darkroom.engine.media.deep_images import EXR_FORMATS, PNG_FORMATS, write_exr, write_png16
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import PREVIEW_PNG_LEVEL, ExtraPngInfo, Prompt, save_all
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Choice, Combo, FilePrefix

VERSION = "0.30.0"
PNG_LEVEL = 4
ADVANCED: Mapping[str, Any] = {"advanced": True}
FORMATS = (
    (
        "png",
        (
            Field("bit_depth", Combo(("8-bit", "16-bit"), extra=ADVANCED), "8-bit"),
            Field("input_color_space", Combo(("sRGB",), extra=ADVANCED), "sRGB"),
        ),
    ),
    (
        "exr",
        (
            Field("bit_depth", Combo(("32-bit float",), extra=ADVANCED), "32-bit float"),
            Field("input_color_space", Combo(("sRGB", "HDR", "linear"), extra=ADVANCED), "sRGB"),
        ),
    ),
)


class ComparedView(Choice):
    """The page's own widget, which sends nothing that matters."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "IMAGECOMPARE"


@node("SaveImageAdvanced", display_name="Save Image (Advanced)", category="image", is_output=True,
      python_module="comfy_extras.nodes_images", comfyui_version=VERSION, essentials_category="Basics")  # fmt: skip
def save_image_advanced(
    context: NodeContext,
    *,
    images: IMAGE,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "ComfyUI",
    format: Annotated[Mapping[str, str], DynamicChoice(fields=FORMATS)],
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("IMAGE"), Out("images")]:
    """Save images as PNG of 8 or 16 bits a channel, or as OpenEXR of 32-bit floats, with the prompt in each."""
    height, width, channels = images.shape[1:]
    known = EXR_FORMATS if format["format"] == "exr" else PNG_FORMATS
    if channels not in known:
        allowed = ", ".join(map(str, known))
        raise ValueError(
            f"images: {format['format']} of {channels} channels; got {list(images.shape)}, expected {allowed}"
        )
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    shown = []
    for index, image in enumerate(images.detach().cpu()):
        output = context.files.save_path(
            filename_prefix, width, height, "output", suffix=f".{format['format']}", batch_index=index
        )
        if format["format"] == "exr":
            write = partial(write_exr, output.path, image, texts, format["input_color_space"])
        elif format["bit_depth"] == "16-bit":
            write = partial(write_png16, output.path, image, texts)
        else:
            write = partial(write_png, output.path, image, texts, PNG_LEVEL)
        context.files.submit(write)
        shown.append(output.shown())
    return NodeOutput({"images": shown}, result=(images,))


@node(
    "ImageCompare",
    display_name="Compare Images",
    category="image",
    is_output=True,
    experimental=True,
    python_module="comfy_extras.nodes_image_compare",
    comfyui_version=VERSION,
    essentials_category="Image Tools",
)
def image_compare(
    context: NodeContext,
    *,
    compare_view: Annotated[object, ComparedView(extra={"socketless": True})],
    image_a: Annotated[torch.Tensor | None, Socket("IMAGE"), Optional()] = None,
    image_b: Annotated[torch.Tensor | None, Socket("IMAGE"), Optional()] = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    """Show two batches of images beside each other."""
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    shown: dict[str, list[Any]] = {}
    for side, images in (("a", image_a), ("b", image_b)):
        shown[f"{side}_images"] = []
        if images is not None and len(images) > 0:
            saved = save_all(context, images, f"comfy.compare.{side}", "temp", texts, PREVIEW_PNG_LEVEL)
            shown[f"{side}_images"].extend(saved.ui["images"])
    return NodeOutput(shown)


NODES = (save_image_advanced, image_compare)
