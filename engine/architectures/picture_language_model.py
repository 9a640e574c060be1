"""Language models that read pictures among their tokens: Qwen2.5-VL and Qwen3-VL (arXiv 2502.13923, 2511.21631)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from engine.architectures.deep_vision_tower import MARK as DEEP_VISION_MARK
from engine.architectures.deep_vision_tower import DeepVisionConfig, DeepVisionTower, deep_vision_config
from engine.architectures.language_model import QWEN3_VL, LanguageModel, LanguageModelConfig
from engine.architectures.language_model_shapes import language_model_config
from engine.architectures.latent_unet_shapes import Shapes
from engine.architectures.vision_tower import MARK as VISION_MARK
from engine.architectures.vision_tower import VisionTower, VisionTowerConfig, vision_tower_config

VISION_PREFIX = "visual."


@dataclass(frozen=True, slots=True)
class PictureLanguageModelConfig:
    """Configuration of both networks; `vision` is None for a file without a picture encoder."""

    language: LanguageModelConfig
    vision: VisionTowerConfig | DeepVisionConfig | None

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.language.width


def picture_language_model_config(shapes: Shapes) -> PictureLanguageModelConfig:
    """Return the configuration of the networks with these tensors (names without prefix).

    Raises:
        KeyError: a tensor is missing.
    """
    seen = {name.removeprefix(VISION_PREFIX): shape for name, shape in shapes.items() if name.startswith(VISION_PREFIX)}
    if DEEP_VISION_MARK in seen:
        return PictureLanguageModelConfig(language_model_config(shapes, QWEN3_VL), deep_vision_config(seen))
    vision = vision_tower_config(seen) if VISION_MARK in seen else None
    return PictureLanguageModelConfig(language_model_config(shapes), vision)


def _picture_encoder(config: VisionTowerConfig | DeepVisionConfig) -> nn.Module:
    return DeepVisionTower(config) if isinstance(config, DeepVisionConfig) else VisionTower(config)


class PictureLanguageModel(LanguageModel):
    """A language model with the encoder of its pictures as `visual`, None where the file has none."""

    def __init__(self, config: PictureLanguageModelConfig) -> None:
        super().__init__(config.language)
        self.visual = None if config.vision is None else _picture_encoder(config.vision)
