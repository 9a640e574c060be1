"""`comfy.conds`: tensors of a condition, and their batching."""

from __future__ import annotations

from engine.diffusion.conditions import ConstantInput as CONDConstant
from engine.diffusion.conditions import CrossAttentionInput as CONDCrossAttn
from engine.diffusion.conditions import NoiseShapedInput as CONDNoiseShape
from engine.diffusion.conditions import RegularInput as CONDRegular

__all__ = ["CONDConstant", "CONDCrossAttn", "CONDNoiseShape", "CONDRegular"]
