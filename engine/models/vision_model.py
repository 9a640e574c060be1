"""MODEL of a network that reads images and denoises nothing: it detects or segments what is in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from darkroom.engine.diffusion.stored_dtype import stored_dtype
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.models.load import LoadedVision
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher


class VisionConfig:
    """Description of a network that reads images, with the member of ComfyUI's that loaders of LoRAs read."""

    def __init__(self, family: VisionFamily) -> None:
        self.family = family
        self.unet_config: dict[str, Any] = {"image_model": family.label}


class VisionNetwork(nn.Module):
    """Holder of such a network under ComfyUI's name for it, `diffusion_model`."""

    def __init__(self, loaded: LoadedVision) -> None:
        super().__init__()
        self.diffusion_model = loaded.network
        self.model_config = VisionConfig(loaded.family)
        loaded.network.compute_dtype = self.manual_cast_dtype = loaded.computed

    def get_dtype(self) -> torch.dtype:
        """Return the type that the weights are stored in."""
        return stored_dtype(self.diffusion_model)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Type of the computation."""
        return self.manual_cast_dtype or self.get_dtype()


class VisionModel(Model):
    """Value of such a network. What samples asks for its `model_sampling`, and is refused by name."""

    @property
    def family(self) -> VisionFamily:
        family: VisionFamily = self.model.model_config.family
        return family

    def get_model_object(self, name: str) -> Any:
        try:
            return super().get_model_object(name)
        except AttributeError as error:
            raise ValueError(
                f"model: got {self.family.label}, which reads images and denoises nothing; expected a diffusion model"
            ) from error


def vision_model(model: ModulePatcher, family: str) -> VisionModel:
    """Return a MODEL whose network is of that vision family. Raises ValueError for another one."""
    if isinstance(model, VisionModel) and model.family.name == family:
        return model
    config = getattr(model.model, "model_config", None)
    label = getattr(getattr(config, "family", None), "label", "another network")
    raise ValueError(f"model: got {label}, expected a model of the family {family!r}")
