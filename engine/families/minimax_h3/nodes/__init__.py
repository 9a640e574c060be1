"""Node classes made for MiniMax H3: latents of videos with audio, guides, references, levels, sparse attention."""

from __future__ import annotations

from darkroom.engine.families.minimax_h3.nodes import fun_control, guides, references, sparse_attention, videos

NODES = (*videos.NODES, *guides.NODES, *references.NODES, *sparse_attention.NODES, *fun_control.NODES)
