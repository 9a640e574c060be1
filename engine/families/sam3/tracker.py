"""The networks that follow objects through a video.

`N` objects in `G` groups of `M`, `h w` cells, `R` remembered tokens, `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.sam3.layers import ReluMlp, cells_of, tokens_of
from darkroom.engine.families.sam3.mask_decoder import GroupMaskDecoder, ImageLevels, MaskDecoderConfig, best_masks
from darkroom.engine.families.sam3.memory import MemoryAttention, MemoryEncoder, Remembered
from darkroom.engine.families.sam3.prompt_encoder import FourierPositions
from darkroom.engine.families.sam3.segmenter import Segmented, where_there
from darkroom.engine.layers.basic import Conv2d, Linear

MASK_SCALE, MASK_BIAS = 2.0, -1.0
TEMPERATURE = 10000.0
POOLED_PX = 4


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """Configuration of memory and decoder. A frame is remembered for `num_frames` - 1 frames."""

    decoder: MaskDecoderConfig = MaskDecoderConfig()
    group_size: int = 16
    num_frames: int = 7
    memory_intermediate_size: int = 2048
    memory_layers: int = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a frame: its tokens [1, h w, D], features of its masks [G, h w, D], pointers to objects [G, M, D]."""

    frame: torch.Tensor
    masks: torch.Tensor | None
    pointers: torch.Tensor


def grouped(x: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return values [N, ...] of objects as groups [G, M, ...], the last one filled up with zeros."""
    num_groups = -(-len(x) // group_size)
    padded = x.new_zeros(num_groups * group_size, *x.shape[1:])
    padded[: len(x)] = x
    return padded.view(num_groups, group_size, *x.shape[1:])


def with_groups(x: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Return values [g, ...] of groups with zeros for those that came later, [G, ...]."""
    if len(x) >= num_groups:
        return x
    return torch.cat((x, x.new_zeros(num_groups - len(x), *x.shape[1:])))


class Tracker(nn.Module):
    """Networks of the tracker of SAM 3.1, which follows up to 16 objects at once."""

    def __init__(self, config: TrackerConfig) -> None:
        super().__init__()
        self.config = config
        size, count = config.decoder.hidden_size, config.group_size
        self.memory_attention = MemoryAttention(size, config.memory_intermediate_size, config.memory_layers)
        self.memory_encoder = MemoryEncoder(size, 2 * count)
        self.mask_decoder = GroupMaskDecoder(config.decoder, count)
        self.frame_positions = nn.Parameter(torch.empty(config.num_frames, 1, 1, size))
        self.absent = nn.Parameter(torch.empty(count, size))
        self.used, self.unused = (nn.Parameter(torch.empty(count, size)) for _ in range(2))
        self.pointer = ReluMlp(size, size, size, size)
        self.mask_pointer = ReluMlp(size, size, size, size)
        self.absent_pointer = Linear(size, size)
        self.pointer_positions = Linear(size, size)
        self.mask_pooling = Conv2d(1, 1, POOLED_PX, stride=POOLED_PX)
        self.positions = FourierPositions(size)

    def propagated(self, levels: ImageLevels, tokens: torch.Tensor, num_objects: int) -> tuple[Segmented, torch.Tensor]:
        """Decode the masks of all objects in a frame, as `tokens` [G, h w, D] have it with what is remembered.

        Returns the masks, and the pointers [G, M, D] to the objects.
        """
        height, width = levels.cells.shape[2:]
        cells = cells_of(tokens, height, width)
        is_used = grouped(tokens.new_ones(num_objects, 1), self.config.group_size)
        of_objects = is_used * self.used.to(tokens) + (1 - is_used) * self.unused.to(tokens)
        positions = self.positions.cells(height, width).to(tokens)
        decoded = self.mask_decoder(ImageLevels(cells, levels.double, levels.quadruple), positions, of_objects)
        masks, qualities, of_masks, presence = (
            item.flatten(0, 1)[:num_objects]
            for item in (decoded.masks, decoded.qualities, decoded.tokens, decoded.presence)
        )
        best, _ = best_masks(masks, qualities)
        found = Segmented(where_there(best, presence), of_masks, presence)
        return found, self._pointers(self.pointer(of_masks), presence)

    def pointers_of_masks(self, segmented: Segmented) -> torch.Tensor:
        """Return the pointers [G, M, D] to objects whose masks were given."""
        return self._pointers(self.mask_pointer(segmented.tokens), segmented.presence)

    def _pointers(self, pointers: torch.Tensor, presence: torch.Tensor) -> torch.Tensor:
        absent = self.absent_pointer(pointers)
        return grouped(torch.where(presence > 0, pointers, absent), self.config.group_size)

    def remembered_masks(
        self, frame: torch.Tensor, masks: torch.Tensor, is_there: torch.Tensor, is_given: torch.Tensor
    ) -> torch.Tensor:
        """Return the features [G, h w, D] that are remembered of masks [N, 1, H, W] (logits) in a frame [1, D, h, w].

        `is_there` and `is_given` [N] are 1 for objects that are seen, and whose mask is sure.
        """
        count = self.config.group_size
        values = grouped(torch.sigmoid(masks[:, 0]) * MASK_SCALE + MASK_BIAS, count)
        sure = grouped(is_given.to(values), count)[..., None, None].expand_as(values)
        cells = self.memory_encoder(frame, torch.cat((values, sure), dim=1))
        missing = (1 - grouped(is_there.to(cells), count)) * self.absent.to(cells)  # [G, M, D]
        return tokens_of(cells + missing.sum(dim=1)[..., None, None])

    def recalled(
        self,
        given: Sequence[tuple[int, Memory]],
        recent: Sequence[tuple[int, Memory]],
        num_groups: int,
        positions: torch.Tensor,
        num_pointers: int,
    ) -> Remembered:
        """Join the memories of frames, each with how many frames ago it was.

        `given` are frames with given masks, `recent` those after them, the last one first. Pointers reach further back
        than masks: `num_pointers` frames at most. `positions` [1, h w, D] are those of cells.
        """
        with_masks = [
            (ago, memory, ago - 1)
            for ago, memory in reversed(recent)
            if memory.masks is not None and ago < self.config.num_frames
        ]
        last = self.config.num_frames - 1
        spatial = [(memory, last - ago if 0 < ago <= last else last) for ago, memory in given]
        spatial += [(memory, index) for _, memory, index in with_masks]
        tokens = [with_groups(memory.masks, num_groups) for memory, _ in spatial if memory.masks is not None]
        frames = [memory.frame for memory, _ in spatial]
        places = [positions + self.frame_positions[index].to(positions) for _, index in spatial]
        pointed = [*given, *((ago, memory) for ago, memory in recent if ago < num_pointers)]
        pointers = torch.stack([with_groups(memory.pointers, num_groups) for _, memory in pointed], dim=1)
        of_pointers = self._pointer_positions([ago for ago, _ in pointed], num_pointers, positions)
        of_pointers = of_pointers.repeat_interleave(self.config.group_size, dim=0)[None]
        flat = pointers.flatten(1, 2)  # [G, R, D]
        return Remembered(
            torch.cat((*tokens, flat), dim=1),
            torch.cat((*frames, torch.zeros_like(flat[:1])), dim=1),
            torch.cat((*places, of_pointers), dim=1),
        )

    def _pointer_positions(self, ago: Sequence[int], num_pointers: int, like: torch.Tensor) -> torch.Tensor:
        size = self.config.decoder.hidden_size // 2
        times = torch.tensor(ago, dtype=torch.float32).to(like.device) / max(num_pointers - 1, 1)
        steps = torch.arange(size, dtype=torch.float32, device=like.device)
        waves = times[:, None] / TEMPERATURE ** (2 * (steps // 2) / size)
        out: torch.Tensor = self.pointer_positions(torch.cat((waves.sin(), waves.cos()), dim=-1).to(like.dtype))
        return out
