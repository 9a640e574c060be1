"""Node classes made for LTX-2: text encoders, guidance of videos with audio, references, audio VAE, upsampler."""

from __future__ import annotations

from darkroom.engine.families.ltx2.nodes import audio_vae, guidance, references, text, upsampler

NODES = (*text.NODES, *guidance.NODES, *references.NODES, *audio_vae.NODES, *upsampler.NODES)
