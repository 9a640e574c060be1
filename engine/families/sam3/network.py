"""SAM 3 and SAM 3.1 (Carion et al., "SAM 3: Segment Anything with Concepts", arXiv 2511.16719).

One image encoder, and three things that read its cells: a detector of what a text describes, a segmenter of what a
point, box or mask shows, and (of 3.1) a tracker of objects through videos. `B` images, `h w` cells, `D` hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from darkroom.engine.families.sam3.detector import Detections, Detector, DetectorConfig, TextPrompt
from darkroom.engine.families.sam3.image_encoder import ImageEncoder, ImageEncoderConfig, Pyramid
from darkroom.engine.families.sam3.layers import cell_positions
from darkroom.engine.families.sam3.mask_decoder import ImageLevels, MaskDecoderConfig
from darkroom.engine.families.sam3.segmenter import Segmenter
from darkroom.engine.families.sam3.tracker import Tracker, TrackerConfig
from darkroom.engine.layers.basic import Linear

LEVELS, LEVELS_WITHOUT_TRACKER = 3, 4


@dataclass(frozen=True, slots=True)
class Sam3Config:
    """Configuration of all parts. `tracker` is that of SAM 3.1, None for SAM 3, whose pyramids have a level more."""

    image: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    decoder: MaskDecoderConfig = field(default_factory=MaskDecoderConfig)
    tracker: TrackerConfig | None = field(default_factory=TrackerConfig)


class Sam3(nn.Module):
    """The network. Images are squares of `config.image.image_px`, of 0..1."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        self.config = config
        channels, size = config.image.hidden_size, config.detector.hidden_size
        num_levels = LEVELS_WITHOUT_TRACKER if config.tracker is None else LEVELS
        self.image_encoder = ImageEncoder(config.image)
        self.detector_levels = Pyramid(channels, size, num_levels)
        self.segmenter_levels = Pyramid(channels, size, LEVELS)
        self.text_projection = Linear(config.detector.text_size, size)
        self.detector = Detector(config.detector)
        self.segmenter = Segmenter(config.decoder, config.image.image_px, config.image.side)
        if config.tracker is not None:
            self.tracker_levels = Pyramid(channels, size, LEVELS)
            self.tracker = Tracker(config.tracker)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode images [B, 3, H, W] as cells [B, C, h, w]."""
        out: torch.Tensor = self.image_encoder(pixels)
        return out

    def positions(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return the positions [1, h w, D] of the cells of an image."""
        side, size = self.config.image.side, self.config.detector.hidden_size
        return cell_positions(side, side, size, device).to(dtype)

    def text(self, embeddings: torch.Tensor, is_seen: torch.Tensor) -> TextPrompt:
        """Return a text as the detector reads it, from embeddings [1, P, width] of the text encoder."""
        return TextPrompt(self.text_projection(embeddings), is_seen)

    def detected(
        self, cells: torch.Tensor, positions: torch.Tensor, text: TextPrompt, boxes: torch.Tensor | None = None
    ) -> Detections:
        """Detect what a text describes in encoded images."""
        out: Detections = self.detector(self.detector_levels(cells), positions, text, boxes)
        return out

    def segmentable(self, cells: torch.Tensor) -> ImageLevels:
        """Return an encoded image as `segmenter` reads it."""
        finest, finer, same = self.segmenter_levels(cells)
        return self.segmenter.of_image(finest, finer, same)

    def trackable(self, cells: torch.Tensor) -> ImageLevels:
        """Return an encoded frame as `tracker` reads it."""
        finest, finer, same = self.tracker_levels(cells)
        return ImageLevels(same, finer, finest)
