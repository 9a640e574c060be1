"""Node classes made for MiniMax H3: latents of videos with audio, what they begin with or refer to, noise levels."""

from __future__ import annotations

from darkroom.engine.families.minimax_h3.nodes import guides, references, videos

NODES = (*videos.NODES, *guides.NODES, *references.NODES)
