"""`comfy_extras.chainner_models.model_loading`: upscaling networks from tensors by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.tensor_files import as_file
from darkroom.engine.models.kinds.upscaler_value import UpscaleModel


def load_state_dict(state_dict: Mapping[str, torch.Tensor]) -> UpscaleModel:
    """Load an upscaling network. Raises `BadModelFile`."""
    return HOST.get().engine.models.auxiliary.upscaler_of(as_file("upscaling network", state_dict))
