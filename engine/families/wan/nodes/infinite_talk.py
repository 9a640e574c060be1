"""Videos of one or two people who speak, by InfiniteTalk, which goes on for any length.

`L` layers and `A` width of the encoder of audio, `T` its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE
from darkroom.engine.families.wan.infinite_talk import FRAMES_RATIO, InfiniteTalk, speech_windows
from darkroom.engine.families.wan.nodes.audio import at_rate
from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.images import begin_with
from darkroom.engine.families.wan.nodes.latents import MODULE, GivenImage, Length, Seen, Side
from darkroom.engine.families.wan.nodes.talk_patch import KEY, SpeakersPatch, SpeechPatch, talking_run
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoderOutput
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive, Start
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import AUDIO_ENCODER_OUTPUT, CONDITIONING, INT, MODEL, MODEL_PATCH, VAE
from darkroom.engine.nodes.widgets import Float, Int

SPEECH_HZ = 25  # steps of speech, and frames, a second
SECOND = (
    Field("audio_encoder_output_2", Socket("AUDIO_ENCODER_OUTPUT"), is_optional=True),
    Field("mask_1", Socket("MASK"), is_optional=True),
    Field("mask_2", Socket("MASK"), is_optional=True),
)
Mode = DynamicChoice(fields=(("single_speaker", ()), ("two_speakers", SECOND)))


def steps_of(heard: AudioEncoderOutput) -> torch.Tensor:
    """Return the steps [T, L, A] of speech, 25 a second, of all layers but the first. Raises ValueError for a batch."""
    layers = heard["encoded_audio_all_layers"]
    if layers[0].shape[0] != 1:
        raise ValueError(f"audio_encoder_output: a batch of audio; got {layers[0].shape[0]}, expected one")
    return at_rate(torch.cat(layers[1:]), SPEECH_HZ).movedim(0, 1)


def one_after_the_other(speakers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the steps of speakers [T, L, A] with those of each behind the others', and nothing meanwhile."""
    lengths = [speech.shape[0] for speech in speakers]
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    total = sum(lengths)
    return [
        functional.pad(speech, (0, 0, 0, 0, begin, total - begin - speech.shape[0]))
        for begin, speech in zip(begins, speakers, strict=True)
    ]


def _second_speaker(mode: Mapping[str, Any]) -> tuple[AudioEncoderOutput, torch.Tensor] | None:
    """Return the second speaker's audio and both speakers' masks [2, H, W], None for one speaker."""
    if mode["mode"] != "two_speakers":
        return None
    missing = [item.name for item in SECOND if mode.get(item.name) is None]
    if missing:
        raise ValueError(f"mode: two speakers need an audio and a mask each; got no {', '.join(missing)}")
    masks = torch.cat([mode["mask_1"], mode["mask_2"]])
    if masks.shape[0] != 2:
        raise ValueError(f"mask_1 and mask_2: batches of masks; got {masks.shape[0]} masks, expected one each")
    return mode["audio_encoder_output_2"], masks


def _check_patch(model: MODEL, model_patch: MODEL_PATCH, speakers: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for a model patch of another kind or size than the model, or audio of another encoder."""
    talk: Any = model_patch.model
    if not isinstance(talk, InfiniteTalk):
        raise ValueError(f"model_patch: it is none of InfiniteTalk; got {type(talk).__name__}")
    config: Any = getattr(model.model.diffusion_model, "config", None)
    expected = (getattr(config, "width", 0), getattr(config, "num_blocks", 0))
    if talk.config.width != expected[0] or talk.config.num_blocks < expected[1]:
        raise ValueError(
            f"model_patch: it is of another model; got {talk.config.num_blocks} blocks of hidden size "
            f"{talk.config.width}, expected {expected[1]} of {expected[0]}"
        )
    for speech in speakers:
        found = speech.shape[1] * speech.shape[2]
        if found != talk.config.speech_dim:
            raise ValueError(
                f"audio_encoder_output: of another audio encoder than the model patch's; got {speech.shape[1]} layers "
                f"{speech.shape[2]} wide, expected {talk.config.speech_dim} in all"
            )


@node(
    "WanInfiniteTalkToVideo",
    display_name=None,
    category="model/conditioning/wan/infinite talk",
    python_module=MODULE,
    advanced=("motion_frame_count",),
)
def wan_infinite_talk_to_video(
    context: NodeContext,
    *,
    mode: Annotated[Mapping[str, Any], Mode],
    model: MODEL,
    model_patch: MODEL_PATCH,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    clip_vision_output: Seen = None,
    start_image: GivenImage = None,
    audio_encoder_output_1: AUDIO_ENCODER_OUTPUT,
    motion_frame_count: Annotated[int, Int(min=1, max=33, step=1)] = 9,
    audio_scale: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    previous_frames: GivenImage = None,
) -> tuple[Annotated[MODEL, Out("model")], Positive, Negative, Start, Annotated[INT, Out("trim_image")]]:
    """Let the people of an image speak, or go on behind earlier frames, of which `trim_image` come again.

    Raises ValueError for too few earlier frames, neither them nor an image, a length of broken latent frames, and a
    model patch or audio that does not fit.
    """
    if length % FRAMES_RATIO != 1:
        raise ValueError(f"length: frames come in fours behind the first; got {length}, expected 4n + 1")
    if previous_frames is not None and previous_frames.shape[0] < motion_frame_count:
        raise ValueError(
            f"previous_frames: fewer than are gone on from; got {previous_frames.shape[0]}, expected at least "
            f"motion_frame_count, {motion_frame_count}"
        )
    if previous_frames is None and start_image is None:
        raise ValueError("start_image: missing; got neither an image nor previous_frames, expected one of them")
    second = _second_speaker(mode)
    heard = (audio_encoder_output_1,) if second is None else (audio_encoder_output_1, second[0])
    speakers = one_after_the_other([steps_of(item) for item in heard])
    _check_patch(model, model_patch, speakers)
    guide = VideoGuide(positive, negative, vae, width, height, length, 1)
    first = None if start_image is None else begin_with(guide, start_image)
    guide.set_clip_vision(clip_vision_output)
    begin, trimmed = 0, 0
    if previous_frames is not None:
        begin, trimmed = previous_frames.shape[0] - motion_frame_count, motion_frame_count
        earlier = guide.encode(previous_frames[-motion_frame_count:])
    else:
        assert first is not None
        earlier = first[:, :, :1]
    patched = model.clone()
    run = talking_run(earlier, goes_on=previous_frames is not None)
    patched.add_wrapper_with_key(OUTER_SAMPLE, KEY, run)
    patched.set_model_patch(
        SpeechPatch(model_patch, speech_windows(speakers, begin, length), audio_scale), "attn2_patch"
    )
    if second is not None:
        cells = (guide.latent.shape[-2] // 2, guide.latent.shape[-1] // 2)
        masks = functional.interpolate(second[1][None], size=cells, mode="nearest")[0] > 0
        patched.set_model_patch(SpeakersPatch(masks.flatten(1)), "attn1_patch")
    return patched, *guide.outputs, trimmed


NODES = (wan_infinite_talk_to_video,)
