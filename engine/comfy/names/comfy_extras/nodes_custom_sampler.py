"""`comfy_extras.nodes_custom_sampler`: noise and guiders as values."""

from __future__ import annotations

from darkroom.engine.diffusion.guiders import BasicGuider as Guider_Basic
from darkroom.engine.diffusion.guiders import DualCfgGuider
from darkroom.engine.nodes.library.sampling.custom_sampling import EmptyNoise as Noise_EmptyNoise
from darkroom.engine.nodes.library.sampling.custom_sampling import RandomNoise as Noise_RandomNoise

__all__ = ["Guider_Basic", "Guider_DualCFG", "Noise_EmptyNoise", "Noise_RandomNoise"]


class Guider_DualCFG(DualCfgGuider):
    def set_cfg(self, cfg1: float, cfg2: float, nested: bool = False) -> None:  # type: ignore[override]
        """Set the two guidance scales; `nested` may be given by position."""
        super().set_cfg(cfg1, cfg2, nested=nested)
