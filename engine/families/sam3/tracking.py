"""Following objects through the frames of a video: those that are given at the start, and those that a text finds.

One frame is taken at a time. What is remembered of earlier ones is bounded: masks of six frames and pointers of
fifteen, and the frame in which the first objects were given. `N` objects, `H W` pixels of the square that the network
sees, `h w` cells of 14 px.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from darkroom.engine.families.sam3.detector import TextPrompt
from darkroom.engine.families.sam3.image_encoder import cell_rotations
from darkroom.engine.families.sam3.layers import HEAD_SIZE, smoothed, tokens_of
from darkroom.engine.families.sam3.mask_decoder import ImageLevels, enlarged
from darkroom.engine.families.sam3.network import Sam3
from darkroom.engine.families.sam3.segmenter import NO_OBJECT
from darkroom.engine.families.sam3.tracker import Memory
from darkroom.engine.images.object_masks import distinct, overlaps, without_covered, without_specks
from darkroom.engine.images.packed_masks import packed

MAX_OBJECTS = 64
MAX_POINTERS = 16  # frames, the current one among them
MASK_LOGIT = 10.0  # of given masks, and of objects that are hidden
HALF = 0.5
MOST_DETECTIONS = 512  # of a frame that are compared, the best ones of all texts
SAME_OBJECT = 0.5  # overlap of masks
HIDDEN_OVERLAP = 0.3
LEAST_LEFT = 0.3  # of a mask that others cover
SURE = 0.8  # score of a detection that replaces a tracked mask
SPECK_PIXELS = 16
LEAST_TRUST, MOST_TRUST, FIRST_TRUST = -4, 8, 1
MEMORY_CELL_PX = 16


@dataclass(frozen=True, slots=True)
class TrackingOptions:
    """Texts to look for, the least score, the most objects, and the number of frames from one detection to the next."""

    texts: Sequence[TextPrompt] = ()
    threshold: float = 0.5
    max_objects: int = MAX_OBJECTS
    interval: int = 1


@dataclass(slots=True)
class TrackedObject:
    """An object: the score it was found with, the frame it was hidden in last, and how often it was found again."""

    score: float
    trust: int
    hidden_in: int = -1


@dataclass(slots=True)
class FrameMasks:
    """Logits of masks in a frame: [N, 1, 4 h, 4 w], and [N, 1, H, W]."""

    low: torch.Tensor
    high: torch.Tensor


@dataclass(frozen=True, slots=True)
class Found:
    """Detections in a frame: logits of masks [n, 4 h, 4 w], and their scores, the best one first."""

    masks: torch.Tensor
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded frame: all cells of it, the tracker's levels and its tokens [1, h w, D]."""

    cells: torch.Tensor
    levels: ImageLevels
    tokens: torch.Tensor


@dataclass(slots=True)
class _Remembered:
    given: list[tuple[int, Memory]] = field(default_factory=list)  # frame and what is remembered of it
    recent: deque[tuple[int, Memory]] = field(default_factory=lambda: deque(maxlen=MAX_POINTERS - 1))


class ObjectTracker:
    """Owner of what is known of the objects of one video of `num_frames` frames.

    The network is called while the caller has it in use. `step` takes the frames in order.
    """

    def __init__(
        self, network: Sam3, options: TrackingOptions, num_frames: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._network = network
        self._options = options
        self._num_pointers = min(num_frames, MAX_POINTERS)
        self._positions = network.positions(device, dtype)
        self._turns = cell_rotations(network.config.image.side, HEAD_SIZE, device)
        self._memory = _Remembered()
        self._index = -1
        self.objects: list[TrackedObject] = []

    @property
    def scores(self) -> list[float]:
        """Scores with which the objects were found, 1 for those that were given."""
        return [item.score for item in self.objects]

    @torch.no_grad()
    def step(self, pixels: torch.Tensor, given: torch.Tensor | None = None) -> torch.Tensor:
        """Return the masks of the objects in the next frame [1, 3, H, W], packed: uint8 [N, H, W / 8].

        `given` [N, 1, H, W] are masks of objects in the first frame, more than 0.5 within them.
        """
        self._index += 1
        frame = self._encoded(pixels)
        found = self._found(frame) if given is None else None
        if given is not None:
            masks = self._given(frame, given, HALF)
            self.objects = [TrackedObject(1.0, MOST_TRUST) for _ in given]
        elif not self.objects:
            if found is None or not found.scores:
                return torch.zeros(0, pixels.shape[2], pixels.shape[3] // 8, dtype=torch.uint8)
            count = min(len(found.scores), self._options.max_objects)
            masks = self._given(frame, found.masks[:count, None], 0.0)
            self.objects = [TrackedObject(score, FIRST_TRUST) for score in found.scores[:count]]
        else:
            masks = self._tracked(frame)
            if found is not None:
                self._match(frame, masks, found)
        return packed(self._shown(masks)).cpu()

    def _encoded(self, pixels: torch.Tensor) -> Frame:
        cells = self._network(pixels)
        levels = self._network.trackable(cells)
        return Frame(cells, levels, tokens_of(levels.cells))

    def _shown(self, masks: FrameMasks) -> torch.Tensor:
        """Return the masks [N, H, W] without those of objects that a text does not find any more."""
        if not self._options.texts:
            return masks.high[:, 0]
        is_trusted = torch.tensor([item.trust > 0 for item in self.objects]).to(masks.high.device)
        return torch.where(is_trusted[:, None, None], masks.high[:, 0], NO_OBJECT)

    # --- detection ---

    def _found(self, frame: Frame) -> Found | None:
        """Detect the texts in a frame; None where the frame is passed over."""
        options = self._options
        if not options.texts or self._index % options.interval or len(self.objects) >= options.max_objects:
            return None
        scores, masks = self._likely(frame)
        kept = distinct(masks, scores, SAME_OBJECT)
        return Found(masks[kept], scores[kept].tolist())

    def _likely(self, frame: Frame) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores [n] and logits of masks [n, 4 h, 4 w] of what is likely there, at most `MOST_DETECTIONS`."""
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for text in self._options.texts:
            result = self._network.detected(frame.cells, self._positions, text)
            own = result.logits[0].sigmoid()
            is_likely = own > self._options.threshold
            found.append((own[is_likely], result.masks[0][is_likely]))
            if sum(len(item) for item, _ in found) > MOST_DETECTIONS:
                scores, masks = (torch.cat(items) for items in zip(*found, strict=True))
                best = scores.argsort(descending=True)[:MOST_DETECTIONS]
                found = [(scores[best], masks[best])]
        scores, masks = (torch.cat(items) for items in zip(*found, strict=True))
        return scores, masks

    def _match(self, frame: Frame, masks: FrameMasks, found: Found) -> None:
        """Compare tracked masks with detections: trust those found again, renew them, and add new objects.

        Changes `masks` and the objects.
        """
        num_tracked = len(self.objects)
        if not found.scores:
            for item in self.objects:
                item.trust = max(LEAST_TRUST, item.trust - 1)
            return
        sides = masks.low.shape[2:]
        small = functional.interpolate(found.masks[:, None], size=sides, mode="bilinear")  # [n, 1, 4 h, 4 w]
        shared = overlaps(small[:, 0], masks.low[:, 0]).cpu()
        for index, item in enumerate(self.objects):
            is_found = bool((shared[:, index] >= SAME_OBJECT).any())
            item.trust = min(MOST_TRUST, item.trust + 1) if is_found else max(LEAST_TRUST, item.trust - 1)
        is_renewed = False
        for index, score in enumerate(found.scores):
            best = int(shared[index].argmax())
            if score >= SURE and shared[index, best] >= SAME_OBJECT:
                masks.low[best] = small[index]
                masks.high[best] = enlarged(found.masks[None, index : index + 1], masks.high.shape[-1])[0]
                is_renewed = True
        if is_renewed:
            self._remember_masks(frame, masks)
        free = self._options.max_objects - num_tracked
        fresh = [index for index in range(len(found.scores)) if float(shared[index].max()) < SAME_OBJECT][:free]
        if fresh:
            self._add(frame, masks, found, fresh)

    def _add(self, frame: Frame, masks: FrameMasks, found: Found, fresh: Sequence[int]) -> None:
        added = found.masks[fresh][:, None]
        for name in ("low", "high"):
            own = getattr(masks, name)
            setattr(masks, name, torch.cat((own, functional.interpolate(added, size=own.shape[2:], mode="bilinear"))))
        num_before = len(self.objects)
        self.objects += [TrackedObject(found.scores[index], FIRST_TRUST) for index in fresh]
        self._remember_masks(frame, masks, num_before)

    # --- tracking ---

    def _given(self, frame: Frame, masks: torch.Tensor, threshold: float) -> FrameMasks:
        """Begin with masks [N, 1, .., ..] of objects in this frame, and remember them."""
        network = self._network
        image_px = network.config.image.image_px
        sure = (enlarged(masks, image_px) > threshold).to(frame.tokens.dtype)
        logits = (2 * sure - 1) * MASK_LOGIT
        pooled = network.tracker.mask_pooling(sure)
        segmented = network.segmenter(network.segmentable(frame.cells), masks=pooled)
        side = network.segmenter.prompt_encoder.mask_px
        low = smoothed(logits, (side, side))
        is_there = sure.flatten(1).any(dim=1, keepdim=True)
        every = is_there.new_ones(len(masks))
        seen = network.tracker.remembered_masks(frame.levels.cells, logits, is_there, every)
        memory = Memory(frame.tokens, seen, network.tracker.pointers_of_masks(segmented))
        self._memory.given.append((self._index, memory))
        return FrameMasks(low, logits)

    def _tracked(self, frame: Frame) -> FrameMasks:
        """Find the objects in a frame by what is remembered, and remember them."""
        tracker, count = self._network.tracker, len(self.objects)
        given, recent = (
            [(self._index - index, memory) for index, memory in items]
            for items in (self._memory.given, reversed(self._memory.recent))
        )
        num_groups = -(-count // tracker.config.group_size)
        remembered = tracker.recalled(given, recent, num_groups, self._positions, self._num_pointers)
        tokens = tracker.memory_attention(frame.tokens, self._positions, remembered, self._turns)
        segmented, pointers = tracker.propagated(frame.levels, tokens, count)
        high = enlarged(segmented.masks.float(), self._network.config.image.image_px)
        masks = FrameMasks(self._without_hidden(without_specks(segmented.masks, SPECK_PIXELS)), high)
        self._memory.recent.append((self._index, Memory(frame.tokens, None, pointers)))
        self._remember_masks(frame, masks)
        return masks

    def _without_hidden(self, masks: torch.Tensor) -> torch.Tensor:
        """Return masks [N, 1, h, w] without those that overlap with another object that was hidden longer ago."""
        count = len(self.objects)
        if count < 2:
            return masks
        shared = overlaps(masks[:, 0], masks[:, 0]).cpu() >= HIDDEN_OVERLAP
        is_empty = (~(masks > 0).flatten(1).any(dim=1)).tolist()
        hidden_in = [item.hidden_in for item in self.objects]
        pairs = [
            (first, second) for first in range(count) for second in range(first + 1, count) if shared[first, second]
        ]
        removed = set()
        for first, second in pairs:
            later, earlier = (first, second) if hidden_in[first] > hidden_in[second] else (second, first)
            if hidden_in[later] > hidden_in[earlier] > -1:
                removed.add(later)
        for index, item in enumerate(self.objects):
            if is_empty[index] or index in removed:
                item.hidden_in = self._index
        is_removed = torch.tensor([index in removed for index in range(count)]).to(masks.device)
        return torch.where(is_removed[:, None, None, None], -MASK_LOGIT, masks)

    def _remember_masks(self, frame: Frame, masks: FrameMasks, num_sure_before: int | None = None) -> None:
        """Remember the masks of this frame; objects from `num_sure_before` on are newly given.

        Masks of more than six frames ago are forgotten.
        """
        tracker = self._network.tracker
        low = without_covered(masks.low, LEAST_LEFT, -MASK_LOGIT) if len(masks.low) > 1 else masks.low
        sides = tuple(MEMORY_CELL_PX * side for side in frame.levels.cells.shape[2:])
        seen = functional.interpolate(low, size=sides, mode="bilinear")
        is_there = (seen > 0).flatten(1).any(dim=1, keepdim=True)
        is_sure = torch.zeros(len(seen), dtype=torch.bool)
        if num_sure_before is not None:
            is_sure[num_sure_before:] = True
        remembered = tracker.remembered_masks(frame.levels.cells, seen, is_there, is_sure.to(seen.device))
        index, memory = self._memory.recent.pop()
        forgotten = index - tracker.config.num_frames + 1
        kept = (
            (past, Memory(item.frame, None, item.pointers) if past <= forgotten else item)
            for past, item in self._memory.recent
        )
        self._memory.recent = deque(kept, maxlen=MAX_POINTERS - 1)
        self._memory.recent.append((index, Memory(memory.frame, remembered, memory.pointers)))
