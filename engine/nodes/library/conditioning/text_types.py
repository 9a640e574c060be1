"""Text encoder types that ComfyUI's nodes offer, independent of the families supported here."""

from __future__ import annotations

CLIP_TYPES = (
    "stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv", "pixart", "cosmos", "lumina2", "wan",
    "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image",
)  # fmt: skip
DUAL_TYPES = ("sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image")
TRIPLE_TYPE = "sd3"
