"""CLIP ViT-L as a text encoder (Radford et al. 2021, arXiv 2103.00020): its last layer, pooled output unprojected."""

from __future__ import annotations

from darkroom.engine.text.clip_encoding import ClipEncoding

CLIP_L_ENCODING = ClipEncoding(slot="l", embedding_width=768, projects_pooled=False)
