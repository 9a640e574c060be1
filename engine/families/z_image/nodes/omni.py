"""The node class made for Z-Image Omni: a prompt with up to three images that it is about."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.families.z_image.denoiser import SEEN, TEXTS
from darkroom.engine.images.pixels import resize_to_area
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CLIP_VISION, CONDITIONING, IMAGE, VAE
from darkroom.engine.nodes.widgets import Flag, PromptText

REFERENCE_AREA_PX, CELL_PX = 1024 * 1024, 8
FIRST = "<|im_start|>user\n<|vision_start|>"  # the text before the first image
BETWEEN = "<|vision_end|><|vision_start|>"
LAST = "<|vision_end|><|im_end|>"  # behind the image that is generated
TEMPLATE = "<|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n<|vision_start|>"  # of the prompt, behind all images
UNCHANGED = "{}"


@node(
    "TextEncodeZImageOmni",
    display_name=None,
    category="model/conditioning/z-image",
    python_module="comfy_extras.nodes_zimage",
    experimental=True,
    advanced=("auto_resize_images",),
)
def text_encode_z_image_omni(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    auto_resize_images: Annotated[bool, Flag()] = True,
    image_encoder: Annotated[CLIP_VISION | None, Optional()] = None,
    vae: Annotated[VAE | None, Optional()] = None,
    image1: Annotated[IMAGE | None, Optional()] = None,
    image2: Annotated[IMAGE | None, Optional()] = None,
    image3: Annotated[IMAGE | None, Optional()] = None,
) -> CONDITIONING:
    """Encode a prompt with images, which a VAE makes reference images and SigLIP 2 tokens.

    Without a VAE the images change the prompt's template alone. With `auto_resize_images` references have about a
    megapixel.
    """
    images = [image for image in (image1, image2, image3) if image is not None]
    tokens = clip.tokenize(prompt, llama_template=TEMPLATE if images else None)
    conditioning = clip.encode_from_tokens_scheduled(tokens)
    for image in images:
        if vae is not None:
            latent = vae.encode(resize_to_area(image, REFERENCE_AREA_PX, CELL_PX) if auto_resize_images else image)
            conditioning = with_appended(conditioning, "reference_latents", latent)
        if image_encoder is not None:
            conditioning = with_appended(conditioning, SEEN, image_encoder.encode_image(image))
    for text in (FIRST, *[BETWEEN] * (len(images) - 1), LAST) if images else ():
        encoded = clip.encode_from_tokens_scheduled(clip.tokenize(text, llama_template=UNCHANGED))
        conditioning = with_appended(conditioning, TEXTS, encoded[0][0])
    return conditioning


NODES = (text_encode_z_image_omni,)
