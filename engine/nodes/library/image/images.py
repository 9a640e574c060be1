"""Nodes that load and save images.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1, MASK `[B, H, W]`, 1 where an image is transparent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.animations import Frames, write_animated_png
from darkroom.engine.images.decode import EXPECTED, find_damage, read_channel, read_image
from darkroom.engine.images.encode import metadata_texts, write_animated_webp, write_png
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_content import content_hash
from darkroom.engine.nodes.markers import Hidden, Out, Socket
from darkroom.engine.nodes.sockets import FRAMES, IMAGE, MASK
from darkroom.engine.nodes.widgets import Choice, Combo, FilePrefix, Flag, Float, InputFile, Int

PNG_LEVEL, PREVIEW_PNG_LEVEL = 4, 1
WEBP_METHODS = {"default": 4, "fastest": 0, "slowest": 6}

EXPECTED_MARK = "; expected "

IMAGES_MODULE = "comfy_extras.nodes_images"

Prompt = Annotated[Any, Hidden("PROMPT")]
ExtraPngInfo = Annotated[Any, Hidden("EXTRA_PNGINFO")]
FilenamePrefix = Annotated[str, FilePrefix()]


def damaged_file(environment: NodeEnvironment, image: object) -> str | None:
    """Return the reason why an image's file cannot be read, so that a prompt is refused before anything runs."""
    if image is None:  # a link: the name is not known yet
        return None
    missing = InputFile("image").complaint(environment, image)
    if missing is not None:
        return missing
    damage = find_damage(environment.input_path(str(image)), environment.max_pixels())
    if damage is None:
        return None
    return (
        f"Invalid image file: {image} ({damage if EXPECTED_MARK in damage else f'{damage}{EXPECTED_MARK}{EXPECTED}'})"
    )


def _image_content(environment: NodeEnvironment, image: object) -> str | None:
    return content_hash(environment, image)


@node(
    "LoadImage",
    display_name="Load Image",
    category="image",
    check=damaged_file,
    fingerprint=_image_content,
    essentials_category="Basics",
)
def load_image(
    context: NodeContext, *, image: Annotated[str, InputFile("image", extra={"image_upload": True})]
) -> tuple[IMAGE, MASK]:
    return read_image(context.files.input_path(image), context.files.max_pixels())


@node(
    "LoadImageMask",
    display_name="Load Image (as Mask)",
    category="image",
    check=damaged_file,
    fingerprint=_image_content,
    essentials_category="Image Tools",
)
def load_image_mask(
    context: NodeContext,
    *,
    image: Annotated[str, InputFile("", extra={"image_upload": True})],
    channel: Annotated[str, Choice(("alpha", "red", "green", "blue"))],
) -> MASK:
    return read_channel(context.files.input_path(image), channel, context.files.max_pixels())


class OutputFolderImage(InputFile):
    """An image in the server's output folder. Clients list it themselves, so no names are declared."""

    def type_in(self, environment: NodeEnvironment) -> str:  # type: ignore[override]
        return "COMBO"


@node(
    "LoadImageOutput",
    display_name="Load Image (from Outputs)",
    category="image",
    check=damaged_file,
    fingerprint=_image_content,
    experimental=True,
    essentials_category="Basics",
)
def load_image_output(
    context: NodeContext,
    *,
    image: Annotated[
        str,
        OutputFolderImage(
            "image",
            extra={
                "image_upload": True,
                "image_folder": "output",
                "remote": {
                    "route": "/internal/files/output",
                    "refresh_button": True,
                    "control_after_refresh": "first",
                },
            },
        ),
    ],
) -> tuple[IMAGE, MASK]:
    """Load an image by a name such as `x.png [output]`."""
    return read_image(context.files.input_path(image), context.files.max_pixels())


PassedImages = Annotated[NodeOutput, Socket("IMAGE"), Out("images")]


@node(
    "SaveImage",
    display_name="Save Image",
    category="image",
    is_output=True,
    facts=NodeFacts(items="alone"),
    essentials_category="Basics",
)
def save_image(
    context: NodeContext,
    *,
    images: IMAGE,
    filename_prefix: FilenamePrefix = "ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedImages:
    """Save images as PNG with the prompt in their metadata."""
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    return save_all(context, images, filename_prefix, "output", texts, PNG_LEVEL).passing_on(images)


@node(
    "PreviewImage",
    display_name="Preview Image",
    category="image",
    is_output=True,
    facts=NodeFacts(items="alone"),
    essentials_category="Basics",
)
def preview_image(
    context: NodeContext, *, images: IMAGE, prompt: Prompt = None, extra_pnginfo: ExtraPngInfo = None
) -> PassedImages:
    """Show images: save them to the temporary folder with less compression."""
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    return save_all(context, images, "ComfyUI", "temp", texts, PREVIEW_PNG_LEVEL).passing_on(images)


def save_all(
    context: NodeContext,
    images: torch.Tensor,
    prefix: str,
    kind: Literal["output", "temp"],
    texts: dict[str, str],
    level: int,
) -> NodeOutput:
    """Save images [B, H, W, C] as PNG, each to its own file, with `texts` in their metadata."""
    shown = []
    height, width = images.shape[1:3]
    pixels = images.detach().cpu()  # once for the batch: the writers must not touch the device
    for index, image in enumerate(pixels):
        output = context.files.save_path(prefix, width, height, kind, batch_index=index)
        context.files.submit(partial(write_png, output.path, image, texts, level))
        shown.append(output.shown())
    return NodeOutput({"images": shown})


def _shown_animation(output: Any, images: torch.Tensor | FrameStream) -> dict[str, Any]:
    """Return the entries of a saved animation in the run's result; that of one image counts as an image."""
    return {"images": [output.shown()], **({"animated": (True,)} if images.shape[0] > 1 else {})}


def _write_animation(
    context: NodeContext, output: Any, images: torch.Tensor | FrameStream, write: Callable[[Frames], None]
) -> None:
    """Write frames to a new file beside what runs next, or here and now where they are decoded as they are written."""
    if isinstance(images, FrameStream):
        context.files.write_now(output, partial(write, images))
    else:
        context.files.submit(partial(write, images.detach().cpu()))  # writers must not touch the device


@node(
    "SaveAnimatedPNG",
    display_name="Save Animated PNG",
    category="image",
    is_output=True,
    python_module=IMAGES_MODULE,
    advanced=("compress_level",),
)
def save_animated_png(
    context: NodeContext,
    *,
    images: FRAMES,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "ComfyUI",
    fps: Annotated[float, Float(min=0.01, max=1000.0, step=0.01)] = 6.0,
    compress_level: Annotated[int, Int(min=0, max=9)] = 4,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedImages:
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    output = context.files.save_path(filename_prefix, images.shape[2], images.shape[1])
    _write_animation(
        context, output, images, lambda frames: write_animated_png(output.path, frames, texts, fps, compress_level)
    )
    return NodeOutput(_shown_animation(output, images), (images,))


@node(
    "SaveAnimatedWEBP", display_name="Save Animated WEBP", category="image", is_output=True, python_module=IMAGES_MODULE
)
def save_animated_webp(
    context: NodeContext,
    *,
    images: FRAMES,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "ComfyUI",
    fps: Annotated[float, Float(min=0.01, max=1000.0, step=0.01)] = 6.0,
    lossless: Annotated[bool, Flag()] = True,
    quality: Annotated[int, Int(min=0, max=100)] = 80,
    method: Annotated[str, Combo(tuple(WEBP_METHODS))],
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedImages:
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    output = context.files.save_path(filename_prefix, images.shape[2], images.shape[1], suffix=".webp")
    options: dict[str, Any] = {"lossless": lossless, "quality": quality, "method": WEBP_METHODS[method]}
    _write_animation(
        context, output, images, lambda frames: write_animated_webp(output.path, frames, texts, fps, **options)
    )
    return NodeOutput(_shown_animation(output, images), (images,))


NODES = (
    save_image,
    preview_image,
    load_image,
    load_image_mask,
    load_image_output,
    save_animated_webp,
    save_animated_png,
)
