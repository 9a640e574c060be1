"""The schedule of sparse attention: noise levels, numbers of tokens and blocks in which a network attends sparsely."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options

LAST_BLOCK = 1 << 20
NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


def block_ranges(text: str) -> tuple[range, ...]:
    """Return the blocks that a text names by numbers and ranges: `0, 1, 47-49`. Other characters separate them."""
    found = [
        [min(int(number[:9]), LAST_BLOCK) for number in match.groups() if number] for match in NUMBERS.finditer(text)
    ]
    return tuple(range(min(item), max(item) + 1) for item in found)


@dataclass(frozen=True, slots=True)
class SparseSchedule:
    """Noise levels from `highest` to `lowest`, `min_tokens`, and blocks that always attend to all tokens."""

    highest: float
    lowest: float
    min_tokens: int
    dense_blocks: Sequence[range] = ()

    def is_sparse(self, options: Options, num_tokens: int, block_index: int | None) -> bool:
        """Return True where attention of so many tokens is sparse. A block without a number is none of the dense."""
        sigmas: torch.Tensor | None = options.get("sigmas")
        if sigmas is not None and not self.lowest <= float(on_host(sigmas)[0]) <= self.highest:
            return False
        return num_tokens >= self.min_tokens and not any(block_index in blocks for blocks in self.dense_blocks)
