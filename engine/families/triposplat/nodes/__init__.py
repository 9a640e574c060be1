"""Node classes made for TripoSplat (VAST AI Research 2026), which makes splats of an image."""

from darkroom.engine.families.triposplat.nodes.preparation import triposplat_preprocess_image
from darkroom.engine.families.triposplat.nodes.splats import (
    triposplat_conditioning,
    triposplat_sampling_preview,
    vae_decode_triposplat,
)

NODES = (
    triposplat_preprocess_image, triposplat_conditioning, vae_decode_triposplat, triposplat_sampling_preview,
)  # fmt: skip
