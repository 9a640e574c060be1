"""Text2Video: generates a video from a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from darkroom.modifiers.modifier import LEFT_OUT, OfFamily
from darkroom.modifiers.sampling_fields import CHECKPOINT
from darkroom.modifiers.video_fields import VAE_OUTPUT, VideoFields


class Text2Video(VideoFields):
    """Draw a video from a text. The checkpoint must be of a family that draws videos, such as Wan or LTX-Video."""

    workflow_file: ClassVar[str] = "text_to_video.json"
    example: ClassVar[Mapping[str, Any]] = {"prompt": "a sailing boat in a storm", "frames": 49}
    latent_inputs: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "Wan22ImageToVideoLatent": {"vae": [CHECKPOINT, VAE_OUTPUT]}
    }

    video_latent: Annotated[
        Literal[
            "EmptyCosmosLatentVideo",
            "EmptyHunyuanLatentVideo",
            "EmptyHunyuanVideo15Latent",
            "EmptyLTXVLatentVideo",
            "EmptyMiniMaxH3LatentAV",
            "EmptyMochiLatentVideo",
            "Wan22ImageToVideoLatent",
        ]
        | None,
        OfFamily("video_latent"),
        Field(description="The node that makes the empty latent of the family."),
    ] = LEFT_OUT

    @model_validator(mode="after")
    def _draws_videos(self) -> Self:
        if self.video_latent is None:
            raise PydanticCustomError(
                "ckpt_name",
                "must be of a family that draws videos from a text; where the engine does not know the family of a "
                "file, `video_latent` has to be given",
            )
        return self

    def latent_class(self) -> str:
        return str(self.video_latent)
