"""`comfy.conds`: a condition's tensors, and how those of one batch go together."""

from __future__ import annotations

from engine.diffusion.conditions import ConstantInput as CONDConstant
from engine.diffusion.conditions import CrossAttentionInput as CONDCrossAttn
from engine.diffusion.conditions import NoiseShapedInput as CONDNoiseShape
from engine.diffusion.conditions import RegularInput as CONDRegular

__all__ = ["CONDConstant", "CONDCrossAttn", "CONDNoiseShape", "CONDRegular"]
