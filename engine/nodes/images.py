"""Nodes that load, save, make and resize pictures.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1, MASK `[B, H, W]`, 1 where a picture is transparent.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import Annotated, Any, Literal

import torch

from engine.images.decode import EXPECTED, find_damage, read_channel, read_image
from engine.images.encode import metadata_texts, write_animated_png, write_animated_webp, write_png
from engine.images.pixels import IMAGE_METHODS, resize_image
from engine.nodes.base import (
    Choice,
    Combo,
    Flag,
    Float,
    Hidden,
    InputFile,
    Int,
    NodeContext,
    NodeEnvironment,
    Out,
    Shown,
    Socket,
    Text,
    node,
)
from engine.nodes.values import IMAGE, MASK

MAX_SIDE_PX = 16384
PNG_LEVEL, PREVIEW_PNG_LEVEL = 4, 1
WEBP_METHODS = {"default": 4, "fastest": 0, "slowest": 6}

IMAGES_MODULE = "comfy_extras.nodes_images"

Prompt = Annotated[Any, Hidden("PROMPT")]
ExtraPngInfo = Annotated[Any, Hidden("EXTRA_PNGINFO")]
FilenamePrefix = Annotated[str, Text()]
Side = Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)]
Method = Annotated[str, Choice(IMAGE_METHODS)]


# --- files -----------------------------------------------------------------------------------------------------------


def damaged_file(environment: NodeEnvironment, image: Any) -> str | None:
    """What is wrong with a picture's file, so that a prompt is refused before anything runs."""
    if image is None:  # a link: the name is not known yet
        return None
    missing = InputFile("image").complaint(environment, image)
    if missing is not None:
        return missing
    damage = find_damage(environment.input_path(str(image)))
    return None if damage is None else f"Invalid image file: {image} ({damage}; expected {EXPECTED})"


def content_hash(environment: NodeEnvironment, image: Any) -> str | None:
    """Of the file a picture's name stands for: a result is only reused while the file holds the same bytes."""
    if image is None:
        return None
    with environment.input_path(str(image)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@node("LoadImage", display_name="Load Image", category="image", check=damaged_file, fingerprint=content_hash)
def load_image(
    context: NodeContext, *, image: Annotated[str, InputFile("image", extra={"image_upload": True})]
) -> tuple[IMAGE, MASK]:
    return read_image(context.files.input_path(image))


@node(
    "LoadImageMask", display_name="Load Image (as Mask)", category="mask", check=damaged_file, fingerprint=content_hash
)
def load_image_mask(
    context: NodeContext,
    *,
    image: Annotated[str, InputFile("", extra={"image_upload": True})],
    channel: Annotated[str, Choice(("alpha", "red", "green", "blue"))],
) -> MASK:
    return read_channel(context.files.input_path(image), channel)


@node("SaveImage", display_name="Save Image", category="image", is_output=True)
def save_image(
    context: NodeContext,
    *,
    images: IMAGE,
    filename_prefix: FilenamePrefix = "ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Shown:
    """Save pictures as PNG, with the prompt inside."""
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    return _save_all(context, images, filename_prefix, "output", texts, PNG_LEVEL)


@node("PreviewImage", display_name="Preview Image", category="image", is_output=True)
def preview_image(
    context: NodeContext, *, images: IMAGE, prompt: Prompt = None, extra_pnginfo: ExtraPngInfo = None
) -> Shown:
    """Show pictures: saved to the temporary folder, and less compressed."""
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    return _save_all(context, images, "ComfyUI", "temp", texts, PREVIEW_PNG_LEVEL)


def _save_all(
    context: NodeContext,
    images: torch.Tensor,
    prefix: str,
    kind: Literal["output", "temp"],
    texts: dict[str, str],
    level: int,
) -> Shown:
    shown = []
    height, width = images.shape[1:3]
    pixels = images.detach().cpu()  # once for the batch: the writers must not touch the device
    for index, image in enumerate(pixels):
        output = context.files.save_path(prefix, width, height, kind, batch_index=index)
        context.files.submit(partial(write_png, output.path, image, texts, level))
        shown.append(output.shown())
    return Shown({"images": shown})


@node("SaveAnimatedPNG", category="image/animation", is_output=True, python_module=IMAGES_MODULE)
def save_animated_png(
    context: NodeContext,
    *,
    images: IMAGE,
    filename_prefix: FilenamePrefix = "ComfyUI",
    fps: Annotated[float, Float(min=0.01, max=1000.0, step=0.01)] = 6.0,
    compress_level: Annotated[int, Int(min=0, max=9)] = 4,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Shown:
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    output = context.files.save_path(filename_prefix, images.shape[2], images.shape[1])
    pixels = images.detach().cpu()
    context.files.submit(lambda: write_animated_png(output.path, pixels, texts, fps, compress_level))
    return Shown({"images": [output.shown()], "animated": (True,)})


@node("SaveAnimatedWEBP", category="image/animation", is_output=True, python_module=IMAGES_MODULE)
def save_animated_webp(
    context: NodeContext,
    *,
    images: IMAGE,
    filename_prefix: FilenamePrefix = "ComfyUI",
    fps: Annotated[float, Float(min=0.01, max=1000.0, step=0.01)] = 6.0,
    lossless: Annotated[bool, Flag()] = True,
    quality: Annotated[int, Int(min=0, max=100)] = 80,
    method: Annotated[str, Choice(tuple(WEBP_METHODS))],
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Shown:
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    output = context.files.save_path(filename_prefix, images.shape[2], images.shape[1], suffix=".webp")
    pixels, effort = images.detach().cpu(), WEBP_METHODS[method]
    context.files.submit(
        lambda: write_animated_webp(output.path, pixels, texts, fps, lossless=lossless, quality=quality, method=effort)
    )
    return Shown({"images": [output.shown()], "animated": (images.shape[0] != 1,)})


# --- sizes -----------------------------------------------------------------------------------------------------------


@node("ImageScale", display_name="Upscale Image", category="image/upscaling")
def image_scale(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Method,
    width: Side = 512,
    height: Side = 512,
    crop: Annotated[str, Choice(("disabled", "center"))],
) -> IMAGE:
    """A side of 0 follows from the other; with both 0 the picture stays as it is."""
    if width == 0 and height == 0:
        return image
    old_height, old_width = image.shape[1:3]
    if width == 0:
        width = max(1, round(old_width * height / old_height))
    elif height == 0:
        height = max(1, round(old_height * width / old_width))
    return resize_image(image, width, height, upscale_method, crop)


@node("ImageScaleBy", display_name="Upscale Image By", category="image/upscaling")
def image_scale_by(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Method,
    scale_by: Annotated[float, Float(min=0.01, max=8.0, step=0.01)] = 1.0,
) -> IMAGE:
    old_height, old_width = image.shape[1:3]
    return resize_image(image, round(old_width * scale_by), round(old_height * scale_by), upscale_method)


@node(
    "ImageScaleToTotalPixels",
    display_name=None,
    category="image/upscaling",
    python_module="comfy_extras.nodes_post_processing",
)
def image_scale_to_total_pixels(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Annotated[str, Combo(IMAGE_METHODS)],
    megapixels: Annotated[float, Float(min=0.01, max=16.0, step=0.01)] = 1.0,
) -> IMAGE:
    """The aspect ratio is kept; a megapixel is 1024 x 1024."""
    old_height, old_width = image.shape[1:3]
    scale = math.sqrt(int(megapixels * 1024 * 1024) / (old_width * old_height))
    return resize_image(image, round(old_width * scale), round(old_height * scale), upscale_method)


@node("ImageScaleToMaxDimension", category="image/upscaling", python_module=IMAGES_MODULE)
def image_scale_to_max_dimension(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Annotated[str, Choice(("area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"))],
    largest_size: Side = 512,
) -> IMAGE:
    """The longer side gets `largest_size`, the other keeps the aspect ratio."""
    height, width = image.shape[1:3]
    if height > width:
        return resize_image(image, round((width / height) * largest_size), largest_size, upscale_method)
    if width > height:
        return resize_image(image, largest_size, round((height / width) * largest_size), upscale_method)
    return resize_image(image, largest_size, largest_size, upscale_method)


@node("ImageCrop", display_name="Image Crop", category="image/transform", python_module=IMAGES_MODULE)
def image_crop(
    context: NodeContext,
    *,
    image: IMAGE,
    width: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    height: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    x: Side = 0,
    y: Side = 0,
) -> IMAGE:
    """What lies outside of the picture is left out, but at least one pixel stays."""
    x, y = min(x, image.shape[2] - 1), min(y, image.shape[1] - 1)
    return image[:, y : y + height, x : x + width, :]


# --- pixels and batches ----------------------------------------------------------------------------------------------


@node("ImageInvert", display_name="Invert Image", category="image")
def image_invert(context: NodeContext, *, image: IMAGE) -> IMAGE:
    return 1.0 - image


@node("EmptyImage", category="image")
def empty_image(
    context: NodeContext,
    *,
    width: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    height: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
    color: Annotated[int, Int(min=0, max=0xFFFFFF, step=1, extra={"display": "color"})] = 0,
) -> IMAGE:
    channels = torch.tensor([color >> shift & 0xFF for shift in (16, 8, 0)], dtype=torch.float64) / 255
    return channels.float().expand(batch_size, height, width, 3).clone()


@node("ImageBatch", display_name="Batch Images", category="image")
def image_batch(context: NodeContext, *, image1: IMAGE, image2: IMAGE) -> IMAGE:
    """The second picture takes the size of the first, its sides cut off to fit."""
    if image1.shape[1:] != image2.shape[1:]:
        image2 = resize_image(image2, image1.shape[2], image1.shape[1], "bilinear", "center")
    return torch.cat((image1, image2), dim=0)


@node("RepeatImageBatch", category="image/batch", python_module=IMAGES_MODULE)
def repeat_image_batch(
    context: NodeContext, *, image: IMAGE, amount: Annotated[int, Int(min=1, max=4096)] = 1
) -> IMAGE:
    return image.repeat((amount, 1, 1, 1))


@node("ImageFromBatch", category="image/batch", python_module=IMAGES_MODULE)
def image_from_batch(
    context: NodeContext,
    *,
    image: IMAGE,
    batch_index: Annotated[int, Int(min=0, max=4095)] = 0,
    length: Annotated[int, Int(min=1, max=4096)] = 1,
) -> IMAGE:
    first = min(image.shape[0] - 1, batch_index)
    return image[first : first + length].clone()


@node("ImageFlip", category="image/transform", python_module=IMAGES_MODULE)
def image_flip(
    context: NodeContext,
    *,
    image: IMAGE,
    flip_method: Annotated[str, Choice(("x-axis: vertically", "y-axis: horizontally"))],
) -> IMAGE:
    return torch.flip(image, dims=[1 if flip_method.startswith("x") else 2])


@node("ImageRotate", category="image/transform", python_module=IMAGES_MODULE)
def image_rotate(
    context: NodeContext,
    *,
    image: IMAGE,
    rotation: Annotated[str, Choice(("none", "90 degrees", "180 degrees", "270 degrees"))],
) -> IMAGE:
    """Clockwise."""
    quarter_turns = 0 if rotation == "none" else int(rotation.split()[0]) // 90
    return torch.rot90(image, k=quarter_turns, dims=[2, 1])


@node("GetImageSize", display_name="Get Image Size", category="image", python_module=IMAGES_MODULE)
def get_image_size(
    context: NodeContext, *, image: IMAGE, unique_id: Annotated[Any, Hidden("UNIQUE_ID")] = None
) -> tuple[
    Annotated[int, Socket("INT"), Out("width")],
    Annotated[int, Socket("INT"), Out("height")],
    Annotated[int, Socket("INT"), Out("batch_size")],
]:
    """Width and height in pixels, and the number of pictures."""
    return image.shape[2], image.shape[1], image.shape[0]


# --- masks -----------------------------------------------------------------------------------------------------------


@node("MaskToImage", display_name="Convert Mask to Image", category="mask", python_module="comfy_extras.nodes_mask")
def mask_to_image(context: NodeContext, *, mask: MASK) -> IMAGE:
    return mask.reshape((-1, 1, mask.shape[-2], mask.shape[-1])).movedim(1, -1).expand(-1, -1, -1, 3)


@node("ImageToMask", display_name="Convert Image to Mask", category="mask", python_module="comfy_extras.nodes_mask")
def image_to_mask(
    context: NodeContext, *, image: IMAGE, channel: Annotated[str, Choice(("red", "green", "blue", "alpha"))]
) -> MASK:
    return image[:, :, :, ("red", "green", "blue", "alpha").index(channel)]


@node("ImagePadForOutpaint", display_name="Pad Image for Outpainting", category="image")
def image_pad_for_outpaint(
    context: NodeContext,
    *,
    image: IMAGE,
    left: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    top: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    right: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    bottom: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    feathering: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 40,
) -> tuple[IMAGE, MASK]:
    """The picture on a larger grey ground, and a mask of what is to be painted, soft towards the padded sides."""
    batch, height, width, channels = image.shape
    padded = torch.full((batch, height + top + bottom, width + left + right, channels), 0.5)
    padded[:, top : top + height, left : left + width] = image
    mask = torch.ones(height + top + bottom, width + left + right)
    mask[top : top + height, left : left + width] = _feather(height, width, (left, top, right, bottom), feathering)
    return padded, mask.unsqueeze(0)


def _feather(height: int, width: int, sides: tuple[int, int, int, int], feathering: int) -> torch.Tensor:
    """[H, W]: 1 at a padded border, falling with the square to 0 over `feathering` pixels; 0 where that is too wide."""
    left, top, right, bottom = sides
    if not 0 < feathering * 2 < min(height, width):
        return torch.zeros(height, width)
    rows, columns = torch.arange(height), torch.arange(width)
    far_rows, far_columns = torch.full_like(rows, height), torch.full_like(columns, width)
    from_top_or_bottom = torch.minimum(rows if top else far_rows, height - rows if bottom else far_rows)
    from_left_or_right = torch.minimum(columns if left else far_columns, width - columns if right else far_columns)
    distance = torch.minimum(from_top_or_bottom[:, None], from_left_or_right[None, :])
    return ((feathering - distance).clamp(min=0) / feathering) ** 2


NODES = (
    save_image,
    preview_image,
    load_image,
    load_image_mask,
    image_scale,
    image_scale_by,
    image_invert,
    image_batch,
    image_pad_for_outpaint,
    empty_image,
    image_scale_to_total_pixels,
    mask_to_image,
    image_to_mask,
    image_crop,
    repeat_image_batch,
    image_from_batch,
    save_animated_webp,
    save_animated_png,
    get_image_size,
    image_rotate,
    image_flip,
    image_scale_to_max_dimension,
)
