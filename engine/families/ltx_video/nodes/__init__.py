"""Node classes made for LTX-Video: latents, noise levels, images that a video begins with or passes through."""

from __future__ import annotations

from darkroom.engine.families.ltx_video.nodes import audio_streams, context, guides, ic_lora, sampling, videos

NODES = (*videos.NODES, *audio_streams.NODES, *guides.NODES, *sampling.NODES, *context.NODES, *ic_lora.NODES)
