"""`comfy.conds`: tensors of a condition, and their batching."""

from __future__ import annotations

from darkroom.engine.diffusion.conditions import ConstantInput as CONDConstant
from darkroom.engine.diffusion.conditions import CrossAttentionInput as CONDCrossAttn
from darkroom.engine.diffusion.conditions import NoiseShapedInput as CONDNoiseShape
from darkroom.engine.diffusion.conditions import RegularInput as CONDRegular

__all__ = ["CONDConstant", "CONDCrossAttn", "CONDNoiseShape", "CONDRegular"]
