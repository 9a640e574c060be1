"""Token merging for Stable Diffusion: Bolya and Hoffman 2023 (ToMe SD, arXiv 2303.17604).

Tokens `[B, N, C]` of an image of `h` by `w` cells. In each 2 by 2 region one token, drawn at random, is a destination;
of all others the `r` most similar to a destination are merged into it before attention and copied back behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from darkroom.engine.layers.call_options import CallOptions

STRIDE = 2
MAX_DOWNSAMPLE = 1  # only the transformers at full size have tokens worth merging


@dataclass(frozen=True, slots=True)
class Matching:
    """Selection of merging tokens: places in the image [1, *, 1], and places among the sources [B, *, 1]."""

    num_tokens: int
    sources: torch.Tensor  # places of the tokens that may merge
    destinations: torch.Tensor
    kept: torch.Tensor  # among the sources
    merged: torch.Tensor  # among the sources
    into: torch.Tensor  # among the destinations, for each merged

    def merge(self, x: torch.Tensor) -> torch.Tensor:
        """Merge [B, N, C] to [B, N - r, C]: kept sources, then destinations, each averaged with its merged tokens."""
        sources, destinations = _pick(x, self.sources), _pick(x, self.destinations)
        index = self.into.expand(-1, -1, x.shape[-1])
        destinations = destinations.scatter_reduce(1, index, _pick(sources, self.merged), reduce="mean")
        return torch.cat([_pick(sources, self.kept), destinations], dim=1)

    def unmerge(self, x: torch.Tensor) -> torch.Tensor:
        """Expand [B, N - r, C] to [B, N, C]: merged tokens get the value of their destination."""
        kept, destinations = x[:, : self.kept.shape[1]], x[:, self.kept.shape[1] :]
        out = x.new_zeros(x.shape[0], self.num_tokens, x.shape[-1])
        sources = self.sources.expand(x.shape[0], -1, 1)
        for places, tokens in (
            (self.destinations, destinations),
            (sources.gather(1, self.kept), kept),
            (sources.gather(1, self.merged), _pick(destinations, self.into)),
        ):
            out.scatter_(1, places.expand(x.shape[0], -1, x.shape[-1]), tokens)
        return out


def _pick(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return x.gather(1, places.expand(x.shape[0], -1, x.shape[-1]))


def match_tokens(metric: torch.Tensor, height: int, width: int, num_merged: int) -> Matching:
    """Compute the bipartite soft matching of [B, N, C] by cosine similarity. Draws with torch's global generator."""
    rows, columns = height // STRIDE, width // STRIDE
    drawn = torch.randint(STRIDE * STRIDE, size=(rows, columns, 1), device=metric.device)
    region = torch.zeros(rows, columns, STRIDE * STRIDE, device=metric.device, dtype=torch.int64)
    region.scatter_(2, drawn, -torch.ones_like(drawn))  # -1 sorts before 0: destinations first
    grid = torch.zeros(height, width, device=metric.device, dtype=torch.int64)  # odd sides leave a rest of sources
    grid[: rows * STRIDE, : columns * STRIDE] = (
        region.view(rows, columns, STRIDE, STRIDE).transpose(1, 2).reshape(rows * STRIDE, columns * STRIDE)
    )
    order = grid.reshape(1, -1, 1).argsort(dim=1)
    destinations, sources = order[:, : rows * columns], order[:, rows * columns :]
    metric = metric / metric.norm(dim=-1, keepdim=True)
    scores = _pick(metric, sources) @ _pick(metric, destinations).transpose(-1, -2)
    best, best_place = scores.max(dim=-1)
    ranked = best.argsort(dim=-1, descending=True)[..., None]
    merged = ranked[:, : min(sources.shape[1], num_merged)]
    kept = ranked[:, merged.shape[1] :]
    into = best_place[..., None].gather(1, merged)
    return Matching(height * width, sources, destinations, kept, merged, into)


@dataclass(slots=True)
class TokenMerging:
    """Two patches of a UNet: `merge` the queries before self-attention and `unmerge` the result.

    The authors merge all of a block's input by the input's similarity; ComfyUI's reading, kept, takes queries alone.
    """

    ratio: float
    matching: Matching | None = None  # between merge and unmerge

    def merge(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: CallOptions
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.matching = None
        height, width = options["original_shape"][-2:]
        downsample = math.ceil(math.sqrt(height * width // q.shape[1]))
        num_merged = int(q.shape[1] * self.ratio)
        if downsample > MAX_DOWNSAMPLE or num_merged <= 0 or height == 1 or width == 1:
            return q, k, v
        self.matching = match_tokens(q, height, width, num_merged)
        return self.matching.merge(q), k, v

    def unmerge(self, out: torch.Tensor, options: Mapping[str, object]) -> torch.Tensor:
        return out if self.matching is None else self.matching.unmerge(out)
