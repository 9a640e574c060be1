"""OPTICAL_FLOW: a network that estimates how pixels move from one frame to another."""

from __future__ import annotations

import torch

from darkroom.engine.models.kinds.optical_flow.raft import CELL_PX
from darkroom.engine.models.network_value import NetworkAsModel

SMALLEST_SIDE_PX = 16 * CELL_PX  # the coarsest correlations have two cells a side
VALUE_BYTES = 4
PIXEL_BYTES = 2000  # of working memory beside the correlations


class FlowEstimator(NetworkAsModel):
    """A network that estimates optical flow."""

    @torch.no_grad()
    def flow(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the flow [B, 2, H, W] in pixels (right, down) from images [B, 3, H, W] of 0..1 to others, on the CPU.

        Raises ValueError for sides that are no multiples of 8 or too small.
        """
        height, width = first.shape[2:]
        if height % CELL_PX or width % CELL_PX or min(height, width) < SMALLEST_SIDE_PX:
            raise ValueError(
                f"images: got {width}x{height} px, expected multiples of {CELL_PX} px, at least {SMALLEST_SIDE_PX} px"
            )
        num_cells = height * width // CELL_PX**2
        working_bytes = first.shape[0] * (2 * num_cells**2 * VALUE_BYTES + height * width * PIXEL_BYTES)
        with self.patcher.in_use(working_bytes=working_bytes) as network:
            images = (image.to(self.load_device, torch.float32) * 2 - 1 for image in (first, second))
            estimated: torch.Tensor = network(*images)
        return estimated.cpu()
