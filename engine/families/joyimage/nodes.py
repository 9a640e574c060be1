"""Node classes made for JoyAI-Image: an instruction with the images that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, VAE
from darkroom.engine.nodes.widgets import PromptText

MAX_IMAGES = 6
UNIT_PX, BASE_PX = 64, 1024
# By a side of 512 px upwards: the shortest and the longest other side of the sizes of about a megapixel that the
# network was trained on. All multiples of 64 px between them are such sizes.
OTHER_SIDES = {
    512: (1792, 2048), 576: (1600, 1792), 640: (1472, 1600), 704: (1344, 1472), 768: (1216, 1344), 832: (1152, 1216),
    896: (1088, 1152), 960: (1024, 1088), 1024: (960, 1024), 1088: (896, 960), 1152: (832, 896), 1216: (768, 832),
    1280: (768, 768), 1344: (704, 768), 1408: (704, 704), 1472: (640, 704), 1536: (640, 640), 1600: (576, 640),
    1664: (576, 576), 1728: (576, 576), 1792: (512, 576), 1856: (512, 512), 1920: (512, 512), 1984: (512, 512),
    2048: (512, 512),
}  # fmt: skip
SIZES = tuple(
    (height, width)
    for height, (shortest, longest) in OTHER_SIDES.items()
    for width in range(shortest, longest + 1, UNIT_PX)
)

IMAGES = Growing(item=Field("image", Socket("IMAGE")), prefix="image", min=0, max=MAX_IMAGES)


@node("TextEncodeJoyImageEdit", display_name=None, category="model/conditioning/joyimage",
      python_module="comfy_extras.nodes_joyimage")  # fmt: skip
def text_encode_joyimage_edit(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    vae: Annotated[VAE | None, Optional()] = None,
    images: Annotated[Mapping[str, torch.Tensor], IMAGES, Optional()],
) -> CONDITIONING:
    """Encode an instruction with up to six images, which a VAE also makes reference images.

    Raises ValueError for a batch of images at one input.
    """
    seen = [_resized(name, image) for name, image in images.items()]
    conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(prompt, images=seen))
    for image in seen if vae is not None else ():
        assert vae is not None
        conditioning = with_appended(conditioning, "reference_latents", vae.encode(image))
    return conditioning


def nearest_size(height: int, width: int) -> tuple[int, int]:
    """Return the height and width of about a megapixel, of those in training, whose ratio is nearest to an image's."""
    return min(SIZES, key=lambda size: abs(size[0] / size[1] - height / width))


def _resized(name: str, image: torch.Tensor) -> torch.Tensor:
    """Return an image [1, H, W, 3] cropped and resized to one of the sizes."""
    if image.shape[0] != 1:
        raise ValueError(f"images.{name}: an input takes one image; got a batch of {image.shape[0]}, expected 1")
    height, width = nearest_size(image.shape[1], image.shape[2])
    return resize_image(image, width, height, "bilinear", "center")[..., :3]


NODES = (text_encode_joyimage_edit,)
