"""Language models that read images among their tokens: Qwen2.5-VL and Qwen3-VL (arXiv 2502.13923, 2511.21631)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from darkroom.engine.layers.language_model import QWEN3_VL, LanguageModel, LanguageModelConfig, language_model_config
from darkroom.engine.layers.qwen3_vl_vision import MARK as DEEP_VISION_MARK
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVision, Qwen3VlVisionConfig, qwen3_vl_vision_config
from darkroom.engine.layers.qwen25_vl_vision import MARK as VISION_MARK
from darkroom.engine.layers.qwen25_vl_vision import Qwen25VlVision, Qwen25VlVisionConfig, qwen25_vl_vision_config
from darkroom.engine.layers.shapes import Shapes

VISION_PREFIX = "visual."


@dataclass(frozen=True, slots=True)
class VisionLanguageModelConfig:
    """Configuration of both networks; `vision` is None for a file without an image encoder."""

    language: LanguageModelConfig
    vision: Qwen25VlVisionConfig | Qwen3VlVisionConfig | None

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.language.width


def vision_language_model_config(shapes: Shapes) -> VisionLanguageModelConfig:
    """Return the configuration of the networks with these tensors (names without prefix).

    Raises:
        KeyError: a tensor is missing.
    """
    seen = {name.removeprefix(VISION_PREFIX): shape for name, shape in shapes.items() if name.startswith(VISION_PREFIX)}
    if DEEP_VISION_MARK in seen:
        return VisionLanguageModelConfig(language_model_config(shapes, QWEN3_VL), qwen3_vl_vision_config(seen))
    vision = qwen25_vl_vision_config(seen) if VISION_MARK in seen else None
    return VisionLanguageModelConfig(language_model_config(shapes), vision)


def _image_encoder(config: Qwen25VlVisionConfig | Qwen3VlVisionConfig) -> nn.Module:
    return Qwen3VlVision(config) if isinstance(config, Qwen3VlVisionConfig) else Qwen25VlVision(config)


class VisionLanguageModel(LanguageModel):
    """A language model with the encoder of its images as `visual`, None where the file has none."""

    def __init__(self, config: VisionLanguageModelConfig) -> None:
        super().__init__(config.language)
        self.visual = None if config.vision is None else _image_encoder(config.vision)
