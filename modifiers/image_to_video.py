"""Image2Video: generates a video that begins with an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.modifier import LEFT_OUT, Into, Name, OfFamily
from darkroom.modifiers.sampling_fields import CHECKPOINT
from darkroom.modifiers.video_fields import IMAGE, READS_PROMPT, VAE_OUTPUT, VideoFields

VAE = [CHECKPOINT, VAE_OUTPUT]
START = [IMAGE, 0]


class Image2Video(VideoFields):
    """Draw a video that begins with `input_image`, cut to the size of the video.

    The checkpoint must be of a family that draws videos from images, such as Wan or LTX-Video.
    """

    workflow_file: ClassVar[str] = "image_to_video.json"
    example: ClassVar[Mapping[str, Any]] = {"prompt": "waves roll in", "input_image": EXAMPLE_IMAGE, "frames": 49}
    latent_inputs: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CosmosImageToVideoLatent": {"vae": VAE, "start_image": START},
        "CosmosPredict2ImageToVideoLatent": {"vae": VAE, "start_image": START},
        "HunyuanImageToVideo": {"vae": VAE, "start_image": START, "guidance_type": "v1 (concat)"},
        "Kandinsky5ImageToVideo": {"vae": VAE, "start_image": START},
        "HunyuanVideo15ImageToVideo": {"vae": VAE, "start_image": START},
        "WanImageToVideo": {"vae": VAE, "start_image": START},
        "Wan22ImageToVideoLatent": {"vae": VAE, "start_image": START},
        "LTXVImgToVideo": {"vae": VAE, "image": START, "strength": 1.0},
        "MiniMaxH3ImageToVideo": {"vae": VAE, "first_frame": START},
    }

    input_image: Annotated[
        Name,
        Into(IMAGE, "image"),
        Field(description="An http(s) URL, a data: URI, base64, or a file of the input folder."),
    ]
    video_start: Annotated[
        Literal[
            "CosmosImageToVideoLatent",
            "CosmosPredict2ImageToVideoLatent",
            "HunyuanImageToVideo",
            "Kandinsky5ImageToVideo",
            "HunyuanVideo15ImageToVideo",
            "LTXVImgToVideo",
            "MiniMaxH3ImageToVideo",
            "Wan22ImageToVideoLatent",
            "WanImageToVideo",
        ]
        | None,
        OfFamily("video_start"),
        Field(description="The node that lets a video of the family begin with an image."),
    ] = LEFT_OUT

    @model_validator(mode="after")
    def _begins_with_images(self) -> Self:
        if self.video_start is None:
            raise PydanticCustomError(
                "ckpt_name",
                "must be of a family that draws videos from images; where the engine does not know the family of a "
                "file, `video_start` has to be given",
            )
        if self.guidance is not None and self.video_start in READS_PROMPT:
            raise PydanticCustomError("guidance", "must be left out: networks of this family are given none")
        return self

    def latent_class(self) -> str:
        return str(self.video_start)
