"""Colours of one batch of images brought to those of another.

`B` frames, `C` channels, `N` pixels of a frame: images are float32 `[B, H, W, C]`, 0..1. A baseline is what the colours
of the source are measured on: each frame alone, all frames together, or one of them for all.

- `reinhard_lab`: mean and deviation of each channel in L*a*b*. E. Reinhard et al., "Color transfer between images",
  IEEE CG&A 21(5), 2001.
- `mkl_lab`: mean and covariance in L*a*b*, by the Monge-Kantorovitch linear map. F. Pitié, A. Kokaram, "The linear
  Monge-Kantorovitch linear colour mapping for example-based colour transfer", CVMP 2007.
- `histogram`: the distribution of each channel of RGB, in 256 levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from darkroom.engine.images.lab import lab_to_rgb, rgb_to_lab

METHODS = ("reinhard_lab", "mkl_lab", "histogram")
LEVELS = 256
LEAST = 1e-6  # deviation of a colour that does not vary

Frame = torch.Tensor  # [C, N]
Mapping = Callable[[Frame], Frame]


class Spread(NamedTuple):
    """Mean [C, 1] of colours, and the spread about it: deviations [C, 1], or a covariance [C, C]."""

    mean: torch.Tensor
    spread: torch.Tensor


def transferred(
    target: torch.Tensor, reference: torch.Tensor, method: str, baseline: slice | None, strength: float
) -> Iterator[torch.Tensor]:
    """Yield each frame [H, W, C] of `target` with the colours of `reference`.

    `baseline` are the frames of `target` that all are measured by; None: each by itself, against the frame of that
    index in `reference`, or its last. A strength of 1 replaces the colours, others go as far on the way or beyond.
    """
    height, width = target.shape[1:3]
    is_lab = method != "histogram"
    convert = rgb_to_lab if is_lab else _unchanged
    fitted = None
    wanted, measured = _converted(reference[:1], convert) if baseline is None else [], 0  # of that frame of `reference`
    if baseline is not None:
        fitted = _fitted(method, [convert(item) for item in _frames(target[baseline])], _converted(reference, convert))
    for index, frame in enumerate(_frames(target)):
        source = convert(frame)
        mapping = fitted
        if mapping is None:
            against = min(index, len(reference) - 1)
            if against != measured:
                wanted, measured = _converted(reference[against : against + 1], convert), against
            mapping = _fitted(method, [source], wanted)
        changed = mapping(source)
        if strength != 1.0:
            changed = torch.lerp(source, changed, strength)
        pixels = lab_to_rgb(changed) if is_lab else changed
        yield pixels.clamp(0.0, 1.0).view(-1, height, width).permute(1, 2, 0)


def _unchanged(frame: Frame) -> Frame:
    return frame


def _frames(images: torch.Tensor) -> Iterator[Frame]:
    for image in images:
        yield image.float().permute(2, 0, 1).flatten(1)


def _converted(images: torch.Tensor, convert: Callable[[Frame], Frame]) -> list[Frame]:
    return [convert(item) for item in _frames(images)]


def _fitted(method: str, source: Sequence[Frame], reference: Sequence[Frame]) -> Mapping:
    """Return the mapping of colours that brings the source to the reference."""
    if method == "histogram":
        table = torch.searchsorted(_distribution(reference), _distribution(source))
        levels = table.clamp(max=LEVELS - 1).float() / (LEVELS - 1)  # [C, 256]
        return lambda frame: levels.gather(1, _levels_of(frame))
    is_diagonal = method == "reinhard_lab"
    own, wanted = _spread(source, is_diagonal), _spread(reference, is_diagonal)
    if is_diagonal:
        scale = wanted.spread / own.spread
        return lambda frame: (frame - own.mean) * scale + wanted.mean
    matrix = _monge_kantorovitch(own.spread, wanted.spread)
    return lambda frame: matrix @ (frame - own.mean) + wanted.mean


def _spread(frames: Sequence[Frame], is_diagonal: bool) -> Spread:
    """Return mean and spread over all frames, each of the same weight."""
    mean = torch.stack([frame.mean(dim=1, keepdim=True) for frame in frames]).mean(dim=0)
    centred = [frame - mean for frame in frames]
    if is_diagonal:
        variance = torch.stack([item.square().mean(dim=1, keepdim=True) for item in centred]).mean(dim=0)
        return Spread(mean, variance.sqrt().clamp(min=LEAST))
    return Spread(mean, torch.stack([item @ item.T / item.shape[1] for item in centred]).mean(dim=0))


def _monge_kantorovitch(own: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the symmetric matrix that maps colours of one covariance [C, C] to the other."""
    values, vectors = torch.linalg.eigh(own)
    deviations = values.clamp(min=0.0).sqrt().clamp(min=LEAST)
    root = vectors * deviations
    middle_values, middle_vectors = torch.linalg.eigh(root.T @ wanted @ root)
    middle = (middle_vectors * middle_values.clamp(min=0.0).sqrt()) @ middle_vectors.T
    inverse_root = vectors / deviations
    matrix: torch.Tensor = inverse_root @ middle @ inverse_root.T
    return matrix


def _levels_of(frame: Frame) -> torch.Tensor:
    return (frame * (LEVELS - 1)).long().clamp(0, LEVELS - 1)


def _distribution(frames: Sequence[Frame]) -> torch.Tensor:
    """Return the share of pixels at each level or below [C, 256]."""
    counts = torch.zeros(frames[0].shape[0], LEVELS)
    for frame in frames:
        counts += torch.stack([torch.bincount(levels, minlength=LEVELS) for levels in _levels_of(frame).cpu()])
    below = counts.cumsum(1)
    shares: torch.Tensor = below / below[:, -1:]
    return shares
