"""Binary masks of objects: how they overlap, and their small holes. `N` objects, `H W` pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

JUST_INSIDE = 0.1  # logit that is given to pixels that change sides


def overlaps(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return how much masks overlap, [N, n] of 0..1, from logits [N, H, W] and [n, H, W].

    That is the larger one of the shares of the union, and of the smaller mask.
    """
    ours, theirs = ((masks > 0).float().flatten(1) for masks in (first, second))
    common = ours @ theirs.T
    area, other = ours.sum(1)[:, None], theirs.sum(1)[None]
    of_union = common / (area + other - common).clamp(min=1)
    return torch.maximum(of_union, common / torch.minimum(area, other).clamp(min=1))


def distinct(masks: torch.Tensor, scores: torch.Tensor, most_overlap: float) -> list[int]:
    """Return the indices of masks [N, H, W], the best scores [N] first, without any that overlap with a better one."""
    order = scores.argsort(descending=True)
    shared = overlaps(masks, masks).cpu()
    kept: list[int] = []
    for index in order.tolist():
        if all(float(shared[index, other]) < most_overlap for other in kept):
            kept.append(index)
    return kept


def without_covered(masks: torch.Tensor, least_left: float, hidden: float) -> torch.Tensor:
    """Return logits [N, 1, H, W], at most `hidden` in masks of which others leave a smaller share than `least_left`.

    A pixel belongs to the mask with the highest logit there.
    """
    own = masks[:, 0]
    is_first = own.argmax(dim=0) == torch.arange(len(own), device=own.device)[:, None, None]
    alone = torch.where(is_first, own, own.clamp(max=hidden))
    area = (own > 0).flatten(1).sum(1).float().clamp(min=1)
    is_left = (alone > 0).flatten(1).sum(1) / area >= least_left
    return torch.where(is_left[:, None, None, None], masks, masks.clamp(max=hidden))


def without_specks(masks: torch.Tensor, most_pixels: int) -> torch.Tensor:
    """Return logits [N, 1, H, W] without holes and islands of so few pixels; an island that is half of a mask stays."""
    small = torch.from_numpy(_small_regions((masks <= 0).cpu().numpy(), np.full(len(masks), most_pixels)))
    masks = torch.where(small.to(masks.device), JUST_INSIDE, masks)
    inside = (masks > 0).cpu().numpy()
    most = np.minimum(inside.sum(axis=(1, 2, 3)) // 2, most_pixels)
    return torch.where(torch.from_numpy(_small_regions(inside, most)).to(masks.device), -JUST_INSIDE, masks)


def _small_regions(is_inside: npt.NDArray[np.bool_], most_pixels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return the pixels in connected regions of at most `most_pixels` [N] of masks [N, 1, H, W]."""
    from scipy import ndimage  # type: ignore[import-untyped]  # only here: it takes long to import

    found = np.zeros_like(is_inside)
    for index, most in enumerate(most_pixels):
        labels, _ = ndimage.label(is_inside[index, 0])
        areas = np.bincount(labels.ravel())
        found[index, 0] = (areas <= most)[labels] & is_inside[index, 0]
    return found
