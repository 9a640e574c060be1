"""Node classes made for LTX-2: text encoders, prompts, guidance of videos with audio, audio VAE, upsampler."""

from __future__ import annotations

from darkroom.engine.families.ltx2.nodes import audio_vae, guidance, prompts, references, text, upsampler

NODES = (*text.NODES, *prompts.NODES, *guidance.NODES, *references.NODES, *audio_vae.NODES, *upsampler.NODES)
