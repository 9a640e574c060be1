"""Depth Anything 3's encoder: DINOv2 whose later layers see several views of a scene together (arXiv 2511.10647).

`B` scenes, `S` views of each, `T` tokens of a view: one of the whole view before those of its patches; `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.cancel import check_cancelled
from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.dinov2 import (
    HEAD_WIDTH,
    NORM_EPS,
    Dinov2Config,
    Embeddings,
    GatedLayers,
    LayerScale,
    PlainLayers,
)
from darkroom.engine.layers.dinov2 import Attention as ImageAttention
from darkroom.engine.models.kinds.geometry.reference_view import (
    LEAST_VIEWS,
    in_first_place,
    in_old_place,
    reference_view,
)

ROTATION_BASE = 100.0
Features = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Configuration. From layer `shared_from` on, views are seen together in every other layer; None: never."""

    image: Dinov2Config
    out_layers: tuple[int, ...]
    shared_from: int | None = None


class NormedAttention(ImageAttention):
    """Attention with norms of queries and keys, which are turned by the position of their patch."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.q_norm, self.k_norm = nn.LayerNorm(HEAD_WIDTH), nn.LayerNorm(HEAD_WIDTH)

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Attend among the tokens of each item of [B, T, D]. `positions` [T, 2] are row and column."""
        layers, cosines_sines = self.attention, _turns(positions, x)
        heads = (layer(x).unflatten(-1, (self.heads, HEAD_WIDTH)) for layer in (layers.query, layers.key, layers.value))
        query, key, value = heads
        query, key = (_turned(norm(part), *cosines_sines) for norm, part in ((self.q_norm, query), (self.k_norm, key)))
        out: torch.Tensor = self.output.dense(attention(query.flatten(2), key.flatten(2), value.flatten(2), self.heads))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, config: Dinov2Config, *, is_turned: bool) -> None:
        super().__init__()
        size = config.width
        layers = GatedLayers if config.is_gated else PlainLayers
        self.attention = NormedAttention(size) if is_turned else ImageAttention(size)
        self.mlp = layers(size, config.inner_width)
        self.layer_scale1, self.layer_scale2 = LayerScale(size), LayerScale(size)
        self.norm1, self.norm2 = (nn.LayerNorm(size, eps=NORM_EPS) for _ in range(2))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Compute the layer for tokens [B, T, D] at `positions` [T, 2]."""
        normed = self.norm1(x)
        layer = self.attention
        attended = layer.turned(normed, positions) if isinstance(layer, NormedAttention) else layer(normed)
        x = x + self.layer_scale1(attended)
        out: torch.Tensor = x + self.layer_scale2(self.mlp(self.norm2(x)))
        return out


class SizedEmbeddings(Embeddings):
    """Embeddings of views of any size, with the tokens of the reference view and of all others."""

    def __init__(self, config: Dinov2Config, *, has_cameras: bool) -> None:
        super().__init__(config)
        self.patch_px = config.patch_px
        self.camera_token = nn.Parameter(torch.empty(1, 2, config.width)) if has_cameras else None

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embed normalised pixels [B, 3, H, W] as [B, T, D]."""
        cells = self.patch_embeddings["projection"](pixels)
        tokens = torch.cat([self.cls_token.to(cells).expand(len(cells), -1, -1), cells.flatten(2).mT], dim=1)
        places = self.position_embeddings.float()
        side = round((places.shape[1] - 1) ** 0.5)
        if tokens.shape[1] != places.shape[1]:
            # The tenth is DINOv2's guard against a side that rounding makes one too small.
            scale = tuple((size + 0.1) / side for size in cells.shape[2:])
            grid = places[:, 1:].mT.reshape(1, -1, side, side)
            resized = functional.interpolate(grid, scale_factor=scale, mode="bicubic")
            places = torch.cat((places[:, :1], resized.flatten(2).mT), dim=1)
        return tokens + places.to(tokens)


class EncoderLayers(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        first = config.image.num_layers if config.shared_from is None else config.shared_from
        self.layer = nn.ModuleList(
            EncoderLayer(config.image, is_turned=index >= first) for index in range(config.image.num_layers)
        )


class MultiViewEncoder(nn.Module):
    """The encoder: for each of its `out_layers` the patches [B, S, T - 1, D or 2 D], and the first token of each view.

    Where views are seen together, features are those that a view has of itself with those that it has among the others.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = SizedEmbeddings(config.image, has_cameras=config.shared_from is not None)
        self.encoder = EncoderLayers(config)
        self.layernorm = nn.LayerNorm(config.image.width, eps=NORM_EPS)

    def forward(self, views: torch.Tensor, strategy: str) -> Features:
        """Encode normalised views [B, S, 3, H, W]. `strategy` chooses the one that the others refer to."""
        num_scenes, num_views = views.shape[:2]
        embedded = self.embeddings(views.flatten(0, 1))
        x = embedded.view(num_scenes, num_views, *embedded.shape[1:])
        own, shared = _positions(views.shape[-2:], self.config.image.patch_px, x.device)
        first, found, alone, chosen = self.config.shared_from, [], x, None
        for index, layer in enumerate(self.encoder.layer):
            check_cancelled()
            if first is not None and index == first - 1 and num_views >= LEAST_VIEWS:
                chosen = reference_view(x[:, :, 0], strategy)
                x, alone = in_first_place(x, chosen), in_first_place(alone, chosen)
            if first is not None and index == first:
                x = torch.cat((self._camera_tokens(x), x[:, :, 1:]), dim=2)
            if first is not None and index >= first and index % 2:
                x = layer(x.flatten(1, 2), shared.repeat(num_views, 1)).view_as(x)
            else:
                x = alone = layer(x.flatten(0, 1), own).view_as(x)
            if index in self.config.out_layers:
                out = x if first is None else torch.cat((alone, x), dim=-1)
                found.append(out if chosen is None else in_old_place(out, chosen))
        return [(self._normed(item)[:, :, 1:], item[:, :, 0]) for item in found]

    def _camera_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first token of each view, [B, S, 1, D]: one for the reference, another for all others."""
        assert self.embeddings.camera_token is not None
        reference, other = self.embeddings.camera_token.to(x).unbind(1)
        num_scenes, num_views, _, size = x.shape
        tokens = torch.cat((reference, other.expand(num_views - 1, -1)))
        return tokens[None, :, None].expand(num_scenes, num_views, 1, size)

    def _normed(self, item: torch.Tensor) -> torch.Tensor:
        """Normalise features; of joined ones the half that a view has among the others."""
        size = self.config.image.width
        return torch.cat((item[..., :-size], self.layernorm(item[..., -size:])), dim=-1)


def _positions(sides: Sequence[int], patch_px: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row and column of each token [T, 2], from 1, and those in layers that see all views: 1 for every patch.

    The first token's are 0.
    """
    rows, columns = (torch.arange(side // patch_px, device=device) + 1 for side in sides)
    own = functional.pad(torch.cartesian_prod(rows, columns), (0, 0, 1, 0))
    return own, own.clamp(max=1)


def _turns(positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [T, 1, HEAD_WIDTH]: half of them of the row and half of the column."""
    size = HEAD_WIDTH // 2
    steps = torch.arange(0, size, 2, device=positions.device).float() / size
    angles = (positions[..., None] / ROTATION_BASE**steps).repeat(1, 1, 2).flatten(1)[:, None]
    return angles.cos().to(like), angles.sin().to(like)


def _turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn each half of the heads [B, T, heads, HEAD_WIDTH]; a value goes with that a quarter of the head behind it."""
    first, second = x.reshape(*x.shape[:-1], 2, 2, -1).unbind(-2)
    return x * cosines + torch.stack((-second, first), dim=-2).flatten(-3) * sines
