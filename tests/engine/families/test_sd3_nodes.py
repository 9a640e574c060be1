"""Node classes made for Stable Diffusion 3."""

from __future__ import annotations

from typing import Any

from darkroom.engine.families.sd3 import nodes

CONTEXT: Any = None  # the node uses nothing of it


def test_an_empty_latent_has_the_channels_of_the_family() -> None:
    latent = nodes.empty_sd3_latent_image(CONTEXT, width=64, height=32, batch_size=2)
    assert latent["samples"].shape == (2, 16, 4, 8)
