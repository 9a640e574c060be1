"""Text2Audio: makes music or sound effects from a text, and songs from lyrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from darkroom.modifiers.model_files import NetworkFields
from darkroom.modifiers.modifier import LEFT_OUT, RANDOM_INT, Choices, Into, OfFamily, no_boolean
from darkroom.modifiers.sampling_fields import (
    SAMPLER,
    CheckpointName,
    PromptStrength,
    SamplerName,
    SamplerSeed,
    SamplerSteps,
    SchedulerName,
)

# Nodes of the workflow.
LATENT, POSITIVE, NEGATIVE, SAVED, LENGTH = "5", "6", "7", "9", "10"
OF_SECONDS = "EmptyLatentAudio"  # the latent of networks that are given how long the audio is
OF_CODES = "EmptyAceStep1.5LatentAudio"  # that of networks that are given a draft of codes
OF_STATES = "EmptyMiniMaxMusic3LatentAudio"  # that of networks that are given a song of a language model
# Inputs of the node that has a language model write codes, beside tags, lyrics and length: ComfyUI's defaults.
CODES: Mapping[str, Any] = {
    "bpm": 120, "timesignature": "4", "language": "en", "keyscale": "C major", "cfg_scale": 2.0, "temperature": 0.85,
    "top_p": 0.9, "top_k": 0, "min_p": 0.0,
}  # fmt: skip
STATES: Mapping[str, Any] = {"cfg_scale": 1.7, "top_k": 50}  # the model's authors' values of the node that writes it
SAVERS = {"flac": "SaveAudio", "mp3": "SaveAudioMP3", "opus": "SaveAudioOpus"}
QUALITIES = {"mp3": "320k", "opus": "192k"}

Seconds = Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False), BeforeValidator(no_boolean)]
Strength = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), BeforeValidator(no_boolean)]


class Text2Audio(NetworkFields):
    """Make music or sound effects from a text. The checkpoint must be of a family that does, such as ACE-Step.

    Seconds, steps, `cfg_scale`, sampler, scheduler and shift that are left out are those of the model's family.
    """

    workflow_file: ClassVar[str] = "text_to_audio.json"
    example: ClassVar[Mapping[str, Any]] = {"prompt": "calm piano, rain", "seconds": 20}
    draws_videos: ClassVar[bool] = True  # no image comes out

    prompt: Annotated[
        str, Into(POSITIVE, "tags"), Field(description="The music or sound effect: genre, instruments, mood.")
    ]
    lyrics: Annotated[
        str,
        Into(POSITIVE, "lyrics"),
        Field(description="Text to be sung, line by line; `[verse]` marks a part, `[de]` the language of a line."),
    ] = ""
    lyrics_strength: Annotated[
        Strength, Into(POSITIVE, "lyrics_strength"), Field(description="Weight of the lyrics.")
    ] = 1.0
    negative_prompt: Annotated[str, Into(NEGATIVE, "tags"), Field(description="Content to avoid.")] = ""
    seed: SamplerSeed = RANDOM_INT
    steps: SamplerSteps = LEFT_OUT
    cfg_scale: PromptStrength = LEFT_OUT
    sampler_name: SamplerName = LEFT_OUT
    scheduler: SchedulerName = LEFT_OUT
    ckpt_name: CheckpointName = LEFT_OUT
    seconds: Annotated[
        Seconds, Into(LATENT, "seconds"), OfFamily("seconds"), Field(description="Length of the audio.")
    ] = LEFT_OUT
    audio_format: Annotated[Literal["flac", "mp3", "opus"], Field(description="The format of the file.")] = "flac"
    audio_latent: Annotated[
        Literal[
            "EmptyAceStepLatentAudio", "EmptyAceStep1.5LatentAudio", "EmptyLatentAudio", "EmptyMiniMaxMusic3LatentAudio"
        ]
        | None,
        OfFamily("audio_latent"),
        Field(description="The node that makes the empty latent of the family."),
    ] = LEFT_OUT
    max_seconds: Annotated[
        Seconds | None, OfFamily("max_seconds"), Field(description="The longest audio that the family's networks make.")
    ] = LEFT_OUT

    @model_validator(mode="after")
    def _makes_audio(self) -> Self:
        if self.audio_latent is None:
            raise PydanticCustomError(
                "ckpt_name",
                "must be of a family that makes audio from a text; where the engine does not know the family of a "
                "file, `audio_latent` has to be given",
            )
        longest = self.max_seconds
        if self.seconds is not None and longest is not None and self.seconds > longest:
            reason = f"too long for networks of this family; got {self.seconds:g}, expected at most {longest:g}"
            raise PydanticCustomError("seconds", "{reason}", {"reason": reason, "allowed": {"maximum": longest}})
        if self.lyrics and self.audio_latent == OF_SECONDS:
            raise PydanticCustomError("lyrics", "must be left out: networks of this family read no lyrics")
        if self.lyrics_strength != 1.0 and self.audio_latent in (OF_CODES, OF_STATES):
            raise PydanticCustomError("lyrics_strength", "must be left out: networks of this family weigh no lyrics")
        if self.negative_prompt and self.audio_latent == OF_STATES:
            raise PydanticCustomError("negative_prompt", "must be left out: networks of this family avoid nothing")
        return self

    @classmethod
    def example_with(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Any] | None:
        """Return None: by the names of its files alone an engine does not say that one of them makes audio."""
        return None

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        if self.audio_latent == OF_SECONDS:
            self._give_seconds(prompt)
        if self.audio_latent == OF_CODES:
            self._give_codes(prompt)
        if self.audio_latent == OF_STATES:
            self._give_states(prompt)
        saver = prompt[SAVED]
        saver["class_type"] = SAVERS[self.audio_format]
        if self.audio_format in QUALITIES:
            saver["inputs"]["quality"] = QUALITIES[self.audio_format]
        return prompt

    def _give_codes(self, prompt: dict[str, Any]) -> None:
        """Change prompts and latent to those of a network that is given codes, which only the positive prompt needs."""
        prompt[LATENT]["class_type"] = OF_CODES
        for name, has_codes in ((POSITIVE, True), (NEGATIVE, False)):
            old = prompt[name]["inputs"]
            prompt[name]["class_type"] = "TextEncodeAceStepAudio1.5"
            prompt[name]["inputs"] = {
                "clip": old["clip"], "tags": old["tags"], "lyrics": old["lyrics"],
                "seed": prompt[SAMPLER]["inputs"]["seed"], "duration": prompt[LATENT]["inputs"]["seconds"],
                "generate_audio_codes": has_codes, **CODES,
            }  # fmt: skip

    def _give_states(self, prompt: dict[str, Any]) -> None:
        """Change prompts and latent to those of a network that is given a song, which may be shorter than asked for."""
        old = prompt[POSITIVE]["inputs"]
        prompt[POSITIVE]["class_type"] = "MiniMaxMusic3TextEncode"
        prompt[POSITIVE]["inputs"] = {
            "clip": old["clip"], "caption": old["tags"], "lyrics": old["lyrics"],
            "seed": prompt[SAMPLER]["inputs"]["seed"], "max_duration": prompt[LATENT]["inputs"]["seconds"], **STATES,
        }  # fmt: skip
        prompt[NEGATIVE]["class_type"] = "ConditioningZeroOut"
        prompt[NEGATIVE]["inputs"] = {"conditioning": [POSITIVE, 0]}
        prompt[LATENT]["class_type"] = OF_STATES
        prompt[LATENT]["inputs"]["seconds"] = [POSITIVE, 1]

    def _give_seconds(self, prompt: dict[str, Any]) -> None:
        """Change prompts and latent to those of a network that is given how long the audio is."""
        prompt[LATENT]["class_type"] = OF_SECONDS
        for name in (POSITIVE, NEGATIVE):
            old = prompt[name]["inputs"]
            prompt[name]["class_type"] = "CLIPTextEncode"
            prompt[name]["inputs"] = {"text": old["tags"], "clip": old["clip"]}
        inputs = {
            "positive": [POSITIVE, 0], "negative": [NEGATIVE, 0], "seconds_start": 0.0,
            "seconds_total": prompt[LATENT]["inputs"]["seconds"],
        }  # fmt: skip
        title = {"title": "Length"}
        prompt[LENGTH] = {"class_type": "ConditioningStableAudio", "inputs": inputs, "_meta": title}
        prompt[SAMPLER]["inputs"] |= {"positive": [LENGTH, 0], "negative": [LENGTH, 1]}
