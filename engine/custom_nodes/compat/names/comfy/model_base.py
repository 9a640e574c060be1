"""`comfy.model_base`: the network with its parameterisation."""

from __future__ import annotations

from engine.diffusion.denoiser import Denoiser as BaseModel

__all__ = ["BaseModel"]
