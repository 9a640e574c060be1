"""Parameters of generating a video, and the nodes of its latent, which depend on the family of the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from darkroom.modifiers.model_files import NetworkFields
from darkroom.modifiers.modifier import LEFT_OUT, RANDOM_INT, Choices, Into, OfFamily, Pixels, no_boolean
from darkroom.modifiers.sampling_fields import (
    SAMPLER,
    CheckpointName,
    PromptStrength,
    SamplerName,
    SamplerSeed,
    SamplerSteps,
    SchedulerName,
)

# Nodes of the workflows.
LATENT, POSITIVE, NEGATIVE, SAVED, IMAGE, RATED, VIDEO = "5", "6", "7", "9", "10", "11", "12"
VAE_OUTPUT = 2  # of the loader of a checkpoint
READS_FRAME_RATE = ("EmptyLTXVLatentVideo", "LTXVImgToVideo")  # latents of networks that are given the frame rate
GIVES_CONDITIONING = ("HunyuanVideo15ImageToVideo", "LTXVImgToVideo", "WanImageToVideo")
"""Nodes that return both prompts, then the latent."""
GIVES_POSITIVE = ("HunyuanImageToVideo",)  # nodes that return the prompt, then the latent
READS_PROMPT = ("MiniMaxH3ImageToVideo",)  # the same, of nodes that encode the prompt themselves
MAKES_ONE = ("EmptyMiniMaxH3LatentAV", "MiniMaxH3ImageToVideo")  # nodes without a size of batches

Frames = Annotated[int, Field(ge=1, le=16_384), BeforeValidator(no_boolean)]
FrameRate = Annotated[float, Field(ge=1, le=120, allow_inf_nan=False), BeforeValidator(no_boolean)]
Link = list[Any]


class VideoFields(NetworkFields):
    """Parameters of generating a video.

    Size, frames, frame rate, steps, `cfg_scale`, sampler, scheduler and shift that are left out are those of the
    model's family. Frames that its network cannot draw (other than 1 + 4n or 1 + 8n) are reduced to the next number
    that it can.
    """

    draws_videos: ClassVar[bool] = True

    prompt: Annotated[str, Into(POSITIVE, "text"), Field(description="Content of the video.")]
    negative_prompt: Annotated[str, Into(NEGATIVE, "text"), Field(description="Content to avoid.")] = ""
    seed: SamplerSeed = RANDOM_INT
    steps: SamplerSteps = LEFT_OUT
    cfg_scale: PromptStrength = LEFT_OUT
    sampler_name: SamplerName = LEFT_OUT
    scheduler: SchedulerName = LEFT_OUT
    ckpt_name: CheckpointName = LEFT_OUT
    width: Annotated[
        Pixels, Into(LATENT, "width"), OfFamily("width"), Field(description="Pixels; cut to whole cells of the VAE.")
    ] = LEFT_OUT
    height: Annotated[
        Pixels, Into(LATENT, "height"), OfFamily("height"), Field(description="Pixels; cut to whole cells of the VAE.")
    ] = LEFT_OUT
    frames: Annotated[Frames, Into(LATENT, "length"), OfFamily("frames"), Field(description="Frames of the video.")] = (
        LEFT_OUT
    )
    fps: Annotated[FrameRate, Into(VIDEO, "fps"), OfFamily("frame_rate"), Field(description="Frames a second.")] = (
        LEFT_OUT
    )

    latent_inputs: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further inputs of the nodes that make the latent, by class."""

    @classmethod
    def example_with(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Any] | None:
        """Return None: by the names of its files alone an engine does not say that one of them draws videos."""
        return None

    @abstractmethod
    def latent_class(self) -> str:
        """Return the node that makes the latent."""

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        kind, old = self.latent_class(), prompt[LATENT]["inputs"]
        size = {name: old[name] for name in ("width", "height", "length")}
        prompt[LATENT]["class_type"] = kind
        batch = {} if kind in MAKES_ONE else {"batch_size": 1}
        prompt[LATENT]["inputs"] = {**size, **batch, **self.latent_inputs.get(kind, {})}
        prompts: list[Link] = [[POSITIVE, 0], [NEGATIVE, 0]]
        latent: Link = [LATENT, 0]
        if kind in GIVES_CONDITIONING:
            prompt[LATENT]["inputs"] |= {"positive": prompts[0], "negative": prompts[1]}
            prompts, latent = [[LATENT, 0], [LATENT, 1]], [LATENT, 2]
        if kind in GIVES_POSITIVE:
            prompt[LATENT]["inputs"]["positive"] = prompts[0]
            prompts, latent = [[LATENT, 0], prompts[1]], [LATENT, 1]
        if kind in READS_PROMPT:
            written = prompt.pop(POSITIVE)["inputs"]
            prompt[LATENT]["inputs"] |= {"prompt": written["text"], "clip": written["clip"]}
            prompts, latent = [[LATENT, 0], prompts[1]], [LATENT, 1]
        if kind in READS_FRAME_RATE:
            rate = prompt[VIDEO]["inputs"]["fps"]
            inputs = {"positive": prompts[0], "negative": prompts[1], "frame_rate": rate}
            prompt[RATED] = {"class_type": "LTXVConditioning", "inputs": inputs, "_meta": {"title": "Frame rate"}}
            prompts = [[RATED, 0], [RATED, 1]]
        prompt[SAMPLER]["inputs"] |= {"positive": prompts[0], "negative": prompts[1], "latent_image": latent}
        return prompt
