"""Node classes made for HunyuanVideo: a prompt with an image, and a video that begins with an image."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.hunyuan_video.text import TURN
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Positive, Start
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CLIP_VISION_OUTPUT, CONDITIONING, IMAGE, VAE
from darkroom.engine.nodes.widgets import Combo, Int, PromptText

MODULE = "comfy_extras.nodes_hunyuan"
CHANNELS, CELL_PX, FRAMES_RATIO = 16, 8, 4
CONCAT, REPLACE, CUSTOM = "v1 (concat)", "v2 (replace)", "custom"
IMAGE_TEMPLATE = (  # what the network was trained with (Tencent's code of HunyuanVideo from images)
    TURN.format("system")
    + "<image>\nDescribe the video by detailing the following aspects according to the reference image: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>\n\n"
    + TURN.format("user") + "{}<|eot_id|>" + TURN.format("assistant")
)  # fmt: skip

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]


@node(
    "TextEncodeHunyuanVideo_ImageToVideo",
    display_name=None,
    category="model/conditioning/hunyuan video",
    python_module=MODULE,
    advanced=("image_interleave",),
)
def text_encode_hunyuan_video_image_to_video(
    context: NodeContext,
    *,
    clip: CLIP,
    clip_vision_output: CLIP_VISION_OUTPUT,
    prompt: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    image_interleave: Annotated[
        int,
        Int(
            min=1,
            max=512,
            extra={
                "tooltip": "How much the image influences things vs the text prompt. "
                "Higher number means more influence from the text prompt."
            },
        ),
    ] = 2,
) -> CONDITIONING:
    """Encode a prompt with what an image encoder of LLaVA saw. Raises ValueError for another image encoder."""
    seen = getattr(clip_vision_output, "mm_projected", None)
    if seen is None:
        raise ValueError(
            "clip_vision_output: its image encoder does not make tokens of a language model; got none, expected "
            "that of LLaVA (llava_llama3_vision)"
        )
    tokens = clip.tokenize(prompt, llama_template=IMAGE_TEMPLATE, image_embeds=seen, image_interleave=image_interleave)
    return clip.encode_from_tokens_scheduled(tokens)


@node(
    "HunyuanImageToVideo",
    display_name=None,
    category="model/conditioning/hunyuan video",
    python_module=MODULE,
    advanced=("guidance_type",),
)
def hunyuan_image_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    vae: VAE,
    width: Side = 848,
    height: Side = 480,
    length: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 53,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
    guidance_type: Annotated[str, Combo((CONCAT, REPLACE, CUSTOM))],
    start_image: Annotated[IMAGE | None, Optional()] = None,
) -> tuple[Positive, Start]:
    """Let a video begin with images: beside the noise, in its place, or as a reference."""
    frames = (length - 1) // FRAMES_RATIO + 1
    latent = torch.zeros([batch_size, CHANNELS, frames, height // CELL_PX, width // CELL_PX])
    if start_image is None:
        return positive, {"samples": latent}
    given: torch.Tensor = vae.encode(resize_image(start_image[:length, :, :, :3], width, height, "bilinear", "center"))
    mask = torch.ones((1, 1, frames, *given.shape[-2:]))
    mask[:, :, : (start_image.shape[0] - 1) // FRAMES_RATIO + 1] = 0.0
    if guidance_type == CONCAT:
        return with_options(positive, concat_latent_image=given, concat_mask=mask), {"samples": latent}
    if guidance_type == REPLACE:
        latent[:, :, : given.shape[2]] = given
        return with_options(positive, guiding_frame_index=0), {"samples": latent, "noise_mask": mask}
    return with_options(positive, ref_latent=given), {"samples": latent}


NODES = (text_encode_hunyuan_video_image_to_video, hunyuan_image_to_video)
