"""Attention of tiles of tokens to the tiles that score highest for them, instead of to all.

Each tile of queries attends in full to a share of the tiles of keys, by the product of both tiles' means, to its own
and its two neighbours, and to those that always count. Of the other tiles it attends to nothing (Video Sparse
Attention: Zhang et al. 2025, arXiv 2505.13389) or to their means (Sparse-Linear Attention: Zhang et al. 2025, arXiv
2509.24006). Computed head by head in a working memory of `MAX_GATHERED_BYTES`, without waiting for the device.

`B` batch, `H` heads, `T` tokens, `W` channels of a head, `N` tiles, `Q` of them in a part, `K` tiles that one attends
to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

TILE = 64  # tokens
MAX_GATHERED_BYTES = 256 << 20  # of keys, and of values, at one time
MAX_KEPT = 4  # orders of tokens: of the sides of guidance, say
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Tiles:
    """Order of tokens in tiles of `TILE` slots, of which the last ones may be empty.

    `tokens` [N, TILE] are the numbers of the tokens, 0 in empty slots, `is_token` [N, TILE] False there. `slots` [T]
    are the slots of the tokens, counted through all tiles. Tiles of the range `sinks` are attended to by all, those of
    the range `full` attend to all. With `keeps_means` the means of other tiles count.
    """

    tokens: torch.Tensor
    is_token: torch.Tensor
    slots: torch.Tensor
    sinks: tuple[int, int] = (0, 0)
    full: tuple[int, int] = (0, 0)
    keeps_means: bool = False

    @classmethod
    def of(
        cls, tokens: torch.Tensor, *, sinks: tuple[int, int], full: tuple[int, int], keeps_means: bool = False
    ) -> Tiles:
        """Return the tiles of tokens [N, TILE], -1 in empty slots, which are the last ones of their tile."""
        is_token = tokens >= 0
        slots = torch.empty(int(is_token.sum()), dtype=torch.long)
        slots[tokens[is_token]] = is_token.flatten().nonzero().flatten()
        return cls(tokens.clamp(min=0), is_token, slots, sinks, full, keeps_means)

    def to(self, device: torch.device) -> Tiles:
        """Return the same on a device."""
        tokens, is_token, slots = (item.to(device) for item in (self.tokens, self.is_token, self.slots))
        return replace(self, tokens=tokens, is_token=is_token, slots=slots)

    def num_chosen(self, share: float) -> int:
        """Return how many tiles a tile attends to by their scores: a share of those that do not always count."""
        others = len(self.tokens) - (self.sinks[1] - self.sinks[0])
        return max(0, min(others - 1, max(1, round(share * others))))


def tiles_in_order(
    num_tokens: int, *, sinks: tuple[int, int] = (0, 0), full: tuple[int, int] = (0, 0), keeps_means: bool = True
) -> Tiles:
    """Return tiles of tokens that follow each other."""
    padded = -(-num_tokens // TILE) * TILE
    tokens = torch.arange(padded)
    tokens[num_tokens:] = -1
    return Tiles.of(tokens.view(-1, TILE), sinks=sinks, full=full, keeps_means=keeps_means)


class KeptTiles:
    """The last `MAX_KEPT` orders of tokens, on their devices, so that each is made once for a run."""

    def __init__(self) -> None:
        self._tiles: dict[Hashable, Tiles] = {}

    def find(self, key: Hashable, device: torch.device, make: Callable[[], Tiles]) -> Tiles:
        """Return the tiles of a key on a device; `make` returns those that are not kept."""
        place = (key, str(device))
        if place not in self._tiles:
            self._tiles = dict(list(self._tiles.items())[1 - MAX_KEPT :])
            self._tiles[place] = make().to(device)
        return self._tiles[place]


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tiles: Tiles,
    share: float,
    scale: float | None = None,
    *,
    coarse_gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention [B, T, H, W] of queries over keys and values of the same shape.

    `share` of the tiles of keys count in full, by their scores. `scale` is that of the scores, `W ** -0.5` by default.
    `coarse_gate` [B, T, H, W] weighs attention among means of tiles, which is added.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty_like(q)
    for item in range(q.shape[0]):
        for head in range(q.shape[2]):
            of_head = _Head.of(q[item, :, head], k[item, :, head], v[item, :, head], tiles, scale)
            attended = of_head.attended(tiles, share).flatten(0, 1)[tiles.slots]
            if coarse_gate is not None:
                coarse = of_head.coarse()[tiles.slots // TILE]
                attended = torch.addcmul(attended, coarse_gate[item, :, head], coarse.to(attended))
            out[item, :, head] = attended
    return out


@dataclass(frozen=True, slots=True)
class _Head:
    """Queries, keys and values of one head in tiles [N, TILE, W], 0 in empty slots, and their means [N, W], float32."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mean_q: torch.Tensor
    mean_k: torch.Tensor
    mean_v: torch.Tensor
    lengths: torch.Tensor  # [N, 1], float32
    scale: float

    @classmethod
    def of(cls, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: Tiles, scale: float) -> _Head:
        """Return the head of queries, keys and values [T, W]."""
        is_token = tiles.is_token[..., None]
        lengths = is_token.sum(dim=1).float()
        q, k, v = (torch.where(is_token, item[tiles.tokens], 0) for item in (q, k, v))
        mean_q, mean_k, mean_v = (item.float().sum(dim=1) / lengths for item in (q, k, v))
        if tiles.keeps_means:  # scores of tokens and of means differ by the keys' common part, which is taken out
            common = mean_k.mean(dim=0)
            k, mean_k = k - common.to(k), mean_k - common
        return cls(q, k, v, mean_q, mean_k, mean_v, lengths, scale)

    def coarse(self) -> torch.Tensor:
        """Return attention among the means [N, W], float32."""
        return torch.softmax(self.mean_q @ self.mean_k.T * self.scale, dim=-1) @ self.mean_v

    def attended(self, tiles: Tiles, share: float) -> torch.Tensor:
        """Return attention in tiles [N, TILE, W]."""
        scores = self.mean_q @ self.mean_k.T * self.scale  # [N, N]
        counts, most = _counting(scores, tiles, share)
        counted, found = counts.to(scores.dtype).topk(most, dim=-1)  # [N, K]
        out = torch.empty_like(self.q)
        first, last = tiles.full
        if last > first:
            rows = self.q[first:last].flatten(0, 1)[None]
            out[first:last] = self._over_all(rows, tiles)[0].view(last - first, TILE, -1)
        for part in _parts(len(out), tiles.full, most * TILE * self.k.shape[-1] * self.k.element_size()):
            out[part] = self._over_some(part, found[part], counted[part] > 0, scores[part], counts[part], tiles)
        return out

    def _over_all(self, rows: torch.Tensor, tiles: Tiles) -> torch.Tensor:
        """Return attention of rows [1, n, W] over all tokens."""
        keys, values = self.k.flatten(0, 1)[None], self.v.flatten(0, 1)[None]
        return _attended(rows, keys, values, _added(tiles.is_token.flatten()[None, None]), self.scale)

    def _over_some(
        self,
        part: slice,
        found: torch.Tensor,
        is_counted: torch.Tensor,
        scores: torch.Tensor,
        counts: torch.Tensor,
        tiles: Tiles,
    ) -> torch.Tensor:
        """Return attention [Q, TILE, W] of a part of the tiles over the tiles `found` [Q, K] that are counted.

        `scores` and `counts` [Q, N] are those of all tiles.
        """
        is_seen = (tiles.is_token[found] & is_counted[..., None]).flatten(1)[:, None]  # [Q, 1, K * TILE]
        keys, values = (item[found].flatten(1, 2) for item in (self.k, self.v))  # [Q, K * TILE, W]
        if not tiles.keeps_means:
            return _attended(self.q[part], keys, values, _added(is_seen), self.scale)
        # A mean is a key of zeros whose score is added: that of the tiles' means, for each of its tokens.
        of_means = torch.where(counts, NEVER, scores + self.lengths.log().T)[:, None]  # [Q, 1, N]
        added = torch.cat([_added(is_seen), of_means], dim=-1)
        means = self.mean_v.to(values).expand(len(values), -1, -1)
        keys = pad(keys, (0, 0, 0, means.shape[1]))
        return _attended(self.q[part], keys, torch.cat([values, means], dim=1), added, self.scale)


def _added(is_seen: torch.Tensor) -> torch.Tensor:
    """Return the addition to scores of tokens that are seen or not: kernels are slower with a mask of truths."""
    return torch.where(is_seen, 0.0, NEVER)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor, scale: float) -> torch.Tensor:
    """Return attention [Q, n, W] of rows [Q, n, W] over keys and values [Q, m, W]; `added` [Q, 1, m] is to scores.

    Torch's fused kernels take four axes alone; with three, scores of all pairs would be in memory.
    """
    q, k, v, added = (item[:, None] for item in (q, k, v, added.to(q)))
    added = added.expand(-1, -1, q.shape[2], -1)
    return scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)[:, 0]


def _counting(scores: torch.Tensor, tiles: Tiles, share: float) -> tuple[torch.Tensor, int]:
    """Return True for tiles that tiles attend to in full [N, N], and the most of them that one does."""
    number = torch.arange(len(scores), device=scores.device)
    is_sink = (number >= tiles.sinks[0]) & (number < tiles.sinks[1])
    counts = is_sink | ((number[:, None] - number).abs() <= 1)
    num_chosen = tiles.num_chosen(share)
    if num_chosen:
        ranked = scores.masked_fill(is_sink, NEVER)
        counts = counts.scatter(1, ranked.topk(num_chosen, dim=-1).indices, True)  # no more of them where scores tie
    return counts, min(len(scores), num_chosen + 3 + tiles.sinks[1] - tiles.sinks[0])


def _parts(num_tiles: int, full: tuple[int, int], bytes_of_one: int) -> Iterator[slice]:
    """Yield ranges of tiles without those of `full`, each with keys of at most `MAX_GATHERED_BYTES`."""
    step = max(1, MAX_GATHERED_BYTES // bytes_of_one)
    ranges = ((0, full[0]), (full[1], num_tiles)) if full[1] > full[0] else ((0, num_tiles),)
    for first, last in ranges:
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))
