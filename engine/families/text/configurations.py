"""Configurations of the text encoders that several families share, of the published size and for tests."""

from __future__ import annotations

from engine.layers.clip_text import ClipTextConfig
from engine.layers.t5 import T5Config

CLIP_L_FULL = ClipTextConfig(num_layers=12, width=768, heads=12, inner_width=3072)
CLIP_L_SMALL = ClipTextConfig(num_layers=2, width=64, heads=1, inner_width=128)
CLIP_G_FULL = ClipTextConfig(num_layers=32, width=1280, heads=20, inner_width=5120, activation="gelu")
CLIP_G_SMALL = ClipTextConfig(num_layers=32, width=64, heads=1, inner_width=128, activation="gelu")
T5_XXL_FULL = T5Config(num_layers=24, width=4096, heads=64, inner_width=10240)
T5_XXL_SMALL = T5Config(num_layers=2, width=128, heads=1, inner_width=128)
