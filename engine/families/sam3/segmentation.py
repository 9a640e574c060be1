"""Masks of the objects that texts, boxes and points show in one image. `H W` pixels, `N` objects.

The network sees images as squares; masks that the detector finds are refined on the part of the image around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from darkroom.engine.families.sam3.detector import TextPrompt
from darkroom.engine.families.sam3.network import Sam3
from darkroom.engine.families.sam3.prompt_encoder import Points
from darkroom.engine.images.pixels import resize

MARGIN = 0.1  # of a box's sides, around the part that is looked at again

BoxCorners = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class WantedText:
    """A text, and the most objects that are wanted of it."""

    prompt: TextPrompt
    most: int


@dataclass(frozen=True, slots=True)
class ImagePrompts:
    """Prompts of an image.

    `boxes` are centre, width and height of 0..1: examples where there are texts, else what is to be segmented. `points`
    are in pixels of the square that the network sees.
    """

    texts: Sequence[WantedText] = ()
    boxes: Sequence[tuple[float, float, float, float]] = ()
    points: Points | None = None


@dataclass(frozen=True, slots=True)
class FoundObject:
    """The mask [H, W] of an object, 0 or 1, with its box in pixels and its score where a text found it."""

    mask: torch.Tensor
    box: BoxCorners | None = None
    score: float = 1.0


class ImageSegmenter:
    """Segmenter of images, while the caller has the network in use."""

    def __init__(self, network: Sam3, device: torch.device, dtype: torch.dtype) -> None:
        self._network = network
        self._device, self._dtype = device, dtype
        self._positions = network.positions(device, dtype)

    @property
    def image_px(self) -> int:
        return self._network.config.image.image_px

    @torch.no_grad()
    def found(
        self, image: torch.Tensor, prompts: ImagePrompts, threshold: float, refinements: int
    ) -> Iterator[FoundObject]:
        """Yield the objects in an image [H, W, 3]: that of the points, those of boxes, then those of texts.

        Each is computed as it is taken. A text's objects come in the order of their scores, which are above
        `threshold`. `refinements` is how often masks are decoded again.
        """
        if not (prompts.texts or prompts.boxes or prompts.points):
            return
        cells = self._network(self._square(image))
        sides = (image.shape[0], image.shape[1])
        if prompts.points is not None:
            yield FoundObject(self._segmented(cells, sides, refinements, points=prompts.points))
        if not prompts.texts:
            for x, y, width, height in prompts.boxes:
                corners = ((x - width / 2, y - height / 2), (x + width / 2, y + height / 2))
                box = torch.tensor([corners]).to(self._device, self._dtype) * self.image_px
                yield FoundObject(self._segmented(cells, sides, refinements, boxes=box))
            return
        boxes = torch.tensor([prompts.boxes]) if prompts.boxes else None
        for text in prompts.texts:
            yield from self._described(image, cells, text, boxes, threshold, refinements)

    def _square(self, image: torch.Tensor) -> torch.Tensor:
        """Return an image [H, W, 3] as the network sees it, [1, 3, px, px]."""
        return resize(image.movedim(-1, 0)[None], self.image_px, self.image_px, "bilinear").to(
            self._device, self._dtype
        )

    def _segmented(
        self,
        cells: torch.Tensor,
        sides: tuple[int, int],
        refinements: int,
        *,
        points: Points | None = None,
        boxes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the mask [H, W] of an object, decoded again from its own mask."""
        segmenter, levels = self._network.segmenter, self._network.segmentable(cells)
        logits = segmenter.image_masks(segmenter(levels, points=points, boxes=boxes))
        for _ in range(refinements - 1):
            logits = segmenter.image_masks(segmenter(levels, masks=logits))
        return (_resized(logits, sides)[0, 0] > 0).float()

    def _described(
        self,
        image: torch.Tensor,
        cells: torch.Tensor,
        text: WantedText,
        boxes: torch.Tensor | None,
        threshold: float,
        refinements: int,
    ) -> Iterator[FoundObject]:
        height, width = image.shape[:2]
        found = self._network.detected(cells, self._positions, text.prompt, boxes)
        scores = found.logits[0].sigmoid()
        likely = (scores > threshold).nonzero()[:, 0].cpu()
        own = scores.cpu()[likely]
        order = own.argsort(descending=True)[: text.most]
        corners = found.boxes[0] * torch.tensor([width, height, width, height]).to(found.boxes)
        placed: list[BoxCorners] = [tuple(box) for box in corners.cpu()[likely[order]].float().tolist()]
        for index, score, box in zip(likely[order].tolist(), own[order].tolist(), placed, strict=True):
            coarse = _resized(found.masks[:, index : index + 1], (height, width))
            yield FoundObject(self._refined(image, coarse, box, refinements), box, score)

    def _refined(self, image: torch.Tensor, coarse: torch.Tensor, box: BoxCorners, refinements: int) -> torch.Tensor:
        """Return the mask [H, W] of logits [1, 1, H, W], decoded again from the part of the image around its box."""
        height, width = image.shape[:2]
        is_coarse = coarse[0, 0] > 0
        left, top, right, bottom = _around(box, width, height)
        # Where the sides are not whole numbers in binary, these are one pixel less, as in ComfyUI.
        columns = slice(int(left / width * width), int(right / width * width))
        rows = slice(int(top / height * height), int(bottom / height * height))
        if refinements < 1 or min(right - left, bottom - top, columns.stop - columns.start, rows.stop - rows.start) < 1:
            return is_coarse.float()
        levels = self._network.segmentable(self._network(self._square(image[top:bottom, left:right])))
        segmenter = self._network.segmenter
        logits = coarse[..., rows, columns]
        for _ in range(refinements):
            square = _resized(logits, (self.image_px, self.image_px))
            logits = segmenter.image_masks(segmenter(levels, masks=square))
        refined = torch.zeros_like(is_coarse)
        refined[top:bottom, left:right] = _resized(logits, (bottom - top, right - left))[0, 0] > 0
        return (refined | is_coarse).float()


def _around(box: BoxCorners, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the part of an image around a box."""
    left, top, right, bottom = box
    x, y = (right - left) * MARGIN, (bottom - top) * MARGIN
    return max(0, int(left - x)), max(0, int(top - y)), min(width, int(right + x)), min(height, int(bottom + y))


def _resized(logits: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
    if tuple(logits.shape[2:]) == sides:
        return logits
    return functional.interpolate(logits, size=sides, mode="bilinear")
