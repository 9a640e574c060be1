"""OpenCLIP ViT-bigG as a text encoder (Cherti et al. 2022, arXiv 2212.07143).

Its output is the layer before the last without the final norm, its pooled output is projected, and zeros are the
padding behind the prompt.
"""

from __future__ import annotations

from darkroom.engine.text.clip_encoding import ClipEncoding

CLIP_G_ENCODING = ClipEncoding(slot="g", embedding_width=1280, pad_token=0, layer=-2, normalises_layer=False)
