"""`comfy_extras.nodes_perpneg`: the perpendicular-negative guider as a value."""

from __future__ import annotations

from darkroom.engine.diffusion.guiders import PerpNegGuider as Guider_PerpNeg

__all__ = ["Guider_PerpNeg"]
