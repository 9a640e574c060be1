"""Empty latents of Stable Audio, and where in audio its conditionings are."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.stable_audio.transformer import START, TOTAL
from darkroom.engine.families.stable_audio.vae import SAMPLES_PER_CELL
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT
from darkroom.engine.nodes.widgets import Float, Int

MODULE = "comfy_extras.nodes_audio"
CHANNELS, RATE_HZ = 64, 44100
MAX_SECONDS = 1000.0


@node(
    "EmptyLatentAudio",
    display_name="Empty Latent Audio",
    category="model/latent",
    python_module=MODULE,
    essentials_category="Audio",
)
def empty_latent_audio(
    context: NodeContext,
    *,
    seconds: Annotated[float, Float(min=1.0, max=MAX_SECONDS, step=0.1)] = 47.6,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Return an empty latent of audio of this length in seconds, an even number of cells."""
    length = round(seconds * RATE_HZ / SAMPLES_PER_CELL / 2) * 2
    samples = torch.zeros([batch_size, CHANNELS, length])  # [B, C, L]
    return {"samples": samples, "type": "audio", "downscale_ratio_temporal": SAMPLES_PER_CELL}


@node("ConditioningStableAudio", display_name=None, category="model/conditioning/stable audio", python_module=MODULE)
def conditioning_stable_audio(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    seconds_start: Annotated[float, Float(min=0.0, max=MAX_SECONDS, step=0.1)] = 0.0,
    seconds_total: Annotated[float, Float(min=0.0, max=MAX_SECONDS, step=0.1)] = 47.0,
) -> tuple[Annotated[CONDITIONING, Out("positive")], Annotated[CONDITIONING, Out("negative")]]:
    """Set the start of the generated audio within audio of `seconds_total`."""
    options = {START: seconds_start, TOTAL: seconds_total}
    return with_options(positive, **options), with_options(negative, **options)


NODES = (empty_latent_audio, conditioning_stable_audio)
