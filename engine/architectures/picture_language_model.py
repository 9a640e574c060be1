"""A language model that reads pictures among its tokens: Qwen2.5-VL (Bai et al. 2025, arXiv 2502.13923)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.architectures.language_model import LanguageModel, LanguageModelConfig
from engine.architectures.language_model_shapes import language_model_config
from engine.architectures.latent_unet_shapes import Shapes
from engine.architectures.vision_tower import MARK as VISION_MARK
from engine.architectures.vision_tower import VisionTower, VisionTowerConfig, vision_tower_config

VISION_PREFIX = "visual."


@dataclass(frozen=True, slots=True)
class PictureLanguageModelConfig:
    """Configuration of both networks; `vision` is None for a file without a picture encoder."""

    language: LanguageModelConfig
    vision: VisionTowerConfig | None

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.language.width


def picture_language_model_config(shapes: Shapes) -> PictureLanguageModelConfig:
    """Return the configuration of the networks with these tensors (names without prefix)."""
    seen = {name.removeprefix(VISION_PREFIX): shape for name, shape in shapes.items() if name.startswith(VISION_PREFIX)}
    vision = vision_tower_config(seen) if VISION_MARK in seen else None
    return PictureLanguageModelConfig(language_model_config(shapes), vision)


class PictureLanguageModel(LanguageModel):
    """A language model with the encoder of its pictures as `visual`, None where the file has none."""

    def __init__(self, config: PictureLanguageModelConfig) -> None:
        super().__init__(config.language)
        self.visual = None if config.vision is None else VisionTower(config.vision)
