"""`comfy.clip_vision`: CLIP's image encoder. Files are named by their path and must lie in a model folder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.comfy.host import HOST
from darkroom.engine.images.vision_pixels import DEVIATION, MEAN, vision_pixels
from darkroom.engine.models.kinds.clip_vision_value import ClipVision as ClipVisionModel
from darkroom.engine.models.kinds.clip_vision_value import ClipVisionOutput as Output

__all__ = ["ClipVisionModel", "Output", "clip_preprocess", "load"]


def clip_preprocess(
    image: torch.Tensor,
    size: int = 224,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = DEVIATION,
    crop: bool = True,
) -> torch.Tensor:
    return vision_pixels(image, size, mean, std, crop=crop)


def load(ckpt_path: str) -> ClipVisionModel:
    return HOST.get().engine.models.auxiliary.clip_vision(ckpt_path)
