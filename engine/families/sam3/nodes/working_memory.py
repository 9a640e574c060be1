"""Working memory of SAM 3's network."""

from __future__ import annotations

from darkroom.engine.families.sam3.network import Sam3
from darkroom.engine.models.vision_model import VisionModel

ENCODER_VALUES, DETECTOR_VALUES = 12, 128  # in memory for each cell: times the hidden size
MEMORY_CELL_VALUES = 12288  # for each cell and group of objects, while masks are remembered


def working_bytes(model: VisionModel, num_groups: int = 0) -> int:
    """Return the bytes that an image takes, and groups of tracked objects."""
    network: Sam3 = model.model.diffusion_model
    image, detector = network.config.image, network.config.detector
    values = ENCODER_VALUES * image.hidden_size + 2 * image.intermediate_size + DETECTOR_VALUES * detector.hidden_size
    itemsize: int = model.model.compute_dtype.itemsize
    return image.side**2 * (values + num_groups * MEMORY_CELL_VALUES) * itemsize
