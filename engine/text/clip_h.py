"""OpenCLIP ViT-H as a text encoder (Cherti et al. 2022, arXiv 2212.07143).

Its output is the layer before the last, with zeros as padding behind the prompt.
"""

from __future__ import annotations

from darkroom.engine.text.clip_encoding import ClipEncoding

CLIP_H_ENCODING = ClipEncoding(slot="h", embedding_width=1024, pad_token=0, layer=-2, num_layers=24)
