"""A language model that reads pictures among its tokens: Qwen2.5-VL (Bai et al. 2025, arXiv 2502.13923).

`T` tokens, `D` width, `N` tokens of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

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


@dataclass(frozen=True, slots=True)
class SeenPicture:
    """The place of a picture's first token among the others, and its rows and columns of tokens."""

    first: int
    rows: int
    columns: int

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns


def places_among(pictures: Sequence[SeenPicture], num_tokens: int) -> torch.Tensor:
    """Return the places [3, T] of tokens on the axes of time, row and column.

    Text counts on alike on all axes. The tokens of a picture have one time, and rows and columns from there; behind it
    the text goes on as if it had been as long as the picture's longer side.
    """
    places = torch.arange(num_tokens, dtype=torch.float32).expand(3, -1).clone()
    gained = 0  # places that pictures had, less their tokens
    for picture in pictures:
        start, end = picture.first + gained, picture.first + picture.num_tokens
        places[0, picture.first : end] = start
        cells = torch.arange(picture.num_tokens)
        places[1, picture.first : end] = (start + cells // picture.columns).float()
        places[2, picture.first : end] = (start + cells % picture.columns).float()
        longest = max(picture.rows, picture.columns)
        gained += longest - picture.num_tokens
        places[:, end:] = torch.arange(num_tokens - end) + end + gained
    return places
