"""Audio of a speaker whose voice a video has, and the duration that a prompt asks for."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.ltx2.duration import DurationHead, frames_of
from darkroom.engine.families.ltx2.guidance import REFERENCE, away_from, noise_range, without_reference
from darkroom.engine.families.ltx2.nodes.audio_vae import ltx2_audio_vae_of
from darkroom.engine.families.ltx2.text_projection import UNPROCESSED
from darkroom.engine.families.ltx2.transformer import Ltx2Transformer
from darkroom.engine.media.resample import resample
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive
from darkroom.engine.nodes.markers import Labelled, Out
from darkroom.engine.nodes.sockets import AUDIO, CONDITIONING, FLOAT, INT, MODEL, MODEL_PATCH
from darkroom.engine.nodes.widgets import Float

MODULE = "comfy_extras.nodes_lt"
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]
Seconds = Annotated[float, Float(min=0.5, max=120.0, step=0.1)]


@node(
    "LTXVReferenceAudio",
    display_name="LTXV Reference Audio (ID-LoRA)",
    category="model/conditioning/ltxv",
    python_module=MODULE,
    advanced=("start_percent", "end_percent"),
)
def ltxv_reference_audio(
    context: NodeContext,
    *,
    model: MODEL,
    positive: CONDITIONING,
    negative: CONDITIONING,
    reference_audio: AUDIO,
    audio_vae: Annotated[Vae, Labelled("VAE", "Audio VAE")],
    identity_guidance_scale: Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=0.01)] = 3.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> tuple[MODEL, Positive, Negative]:
    """Give a video's audio the voice of a speaker, and guide away from the network without it.

    Raises ValueError for a VAE that encodes no audio.
    """
    own = ltx2_audio_vae_of(audio_vae)
    waveform = resample(reference_audio["waveform"], int(reference_audio["sample_rate"]), own.input_rate_hz)
    latent: torch.Tensor = own.encode(waveform.movedim(1, -1))  # [B, 8, L, 16]
    given = {REFERENCE: {"tokens": latent.transpose(1, 2).flatten(2)}}
    patched = model.clone()
    levels = noise_range(model.get_model_object("model_sampling"), start_percent, end_percent)
    patched.set_model_sampler_post_cfg_function(away_from(without_reference, identity_guidance_scale, levels))
    return patched, with_options(positive, **given), with_options(negative, **given)


@node(
    "LTXVDurationPredictor",
    display_name="LTXV Duration Predictor",
    category="conditioning/video_models",
    python_module=MODULE,
)
def ltxv_duration_predictor(
    context: NodeContext,
    *,
    model: MODEL,
    positive: CONDITIONING,
    duration_head: MODEL_PATCH,
    frame_rate: Annotated[float, Float(min=1.0, max=120.0, step=0.01)] = 24.0,
    min_seconds: Seconds = 1.0,
    max_seconds: Seconds = 20.0,
) -> tuple[Annotated[INT, Out("num_frames")], Annotated[FLOAT, Out("seconds")]]:
    """Predict how long the shot of a prompt lasts: its frames, 8n + 1, within a range, and the seconds predicted.

    Raises ValueError for a model patch of another kind, and for a model of another family.
    """
    if not isinstance(duration_head.model, DurationHead):
        raise ValueError("duration_head: the model patch is not an LTX duration head")
    tokens, options = positive[0]
    with model.in_use() as denoiser, duration_head.in_use() as head, torch.no_grad():
        network = denoiser.diffusion_model
        if not isinstance(network, Ltx2Transformer):
            raise ValueError(f"model: it has no connectors of text; got {type(network).__name__}, expected LTX-2")
        given = tokens[:1].to(device=model.load_device, dtype=denoiser.get_dtype_inference())
        text = network.preprocess_text_embeds(given, unprocessed=bool(options.get(UNPROCESSED, False))).float()
        size = network.config.hidden_size
        seconds = float(head(text[..., :size], text[..., size:])[0])
    return frames_of(seconds, frame_rate, min_seconds, max_seconds), seconds


NODES = (ltxv_reference_audio, ltxv_duration_predictor)
