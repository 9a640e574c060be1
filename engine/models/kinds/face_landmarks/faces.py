"""FACE_LANDMARKS: the faces of each image. Those of images without one are filled in from other images'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.models.kinds.face_landmarks.face_template import Edges

EMPTY, PREVIOUS, INTERPOLATE = FILLINGS = ("empty", "previous", "interpolate")
Floats = NDArray[np.float32]


class Face(TypedDict):
    """A face. Places are in pixels of the image, `landmarks_3d` in those of what the network reads."""

    bbox_xyxy: Floats  # left, top, right, bottom
    blendshapes: dict[str, float]  # 0..1, by expression
    landmarks_xy: Floats  # [478, 2]
    landmarks_3d: Floats  # [478, 3]
    presence: float  # logit
    score: float
    transformation_matrix: NotRequired[Floats]  # [4, 4], of the usual face


class FaceLandmarks(TypedDict):
    """Faces of each image, height and width of the images, and the edges of each part of a face."""

    frames: list[list[Face]]
    image_size: tuple[int, int]
    connection_sets: Mapping[str, Edges]


def filled(frames: Sequence[list[Face]], how: str) -> list[list[Face]]:
    """Return the faces of each image, those of images without any filled in as one of `FILLINGS` says.

    `interpolate` goes evenly from the image before to the one after, for faces whose boxes are nearest to one another.
    """
    if how == EMPTY:
        return list(frames)
    before = _last_with_faces(frames)
    if how == PREVIOUS:
        return [faces or _copies(frames, source) for faces, source in zip(frames, before, strict=True)]
    final = len(frames) - 1
    after = [None if last is None else final - last for last in reversed(_last_with_faces(frames[::-1]))]
    return [faces or _between(frames, index, before[index], after[index]) for index, faces in enumerate(frames)]


def _last_with_faces(frames: Sequence[list[Face]]) -> list[int | None]:
    """Return for each image the index of the last one until there that has faces, None where there is none."""
    found: list[int | None] = []
    last: int | None = None
    for index, faces in enumerate(frames):
        last = index if faces else last
        found.append(last)
    return found


def _copies(frames: Sequence[list[Face]], source: int | None) -> list[Face]:
    return [] if source is None else [face.copy() for face in frames[source]]


def _between(frames: Sequence[list[Face]], index: int, before: int | None, after: int | None) -> list[Face]:
    if before is None or after is None:
        return _copies(frames, after if before is None else before)
    share = (index - before) / (after - before)
    pairs = _nearest(frames[before], frames[after])
    return [_mixed(frames[before][first], frames[after][second], share) for first, second in pairs]


def _nearest(first: Sequence[Face], second: Sequence[Face]) -> list[tuple[int, int]]:
    """Return pairs of faces, the nearest first; a face is in one pair at most."""
    middles = [np.array([_middle(face) for face in faces]) for faces in (first, second)]
    distances = np.linalg.norm(middles[0][:, None] - middles[1][None], axis=-1)
    pairs = []
    for index in np.argsort(distances, axis=None, kind="stable"):
        left, right = divmod(int(index), len(second))
        if np.isfinite(distances[left, right]):
            pairs.append((left, right))
            distances[left], distances[:, right] = np.inf, np.inf
    return pairs


def _middle(face: Face) -> Floats:
    box = face["bbox_xyxy"]
    middle: Floats = (box[:2] + box[2:]) / np.float32(2)
    return middle


def _mixed(first: Face, second: Face, share: float) -> Face:
    rest = 1 - share
    shapes = second["blendshapes"]
    return {
        "bbox_xyxy": rest * first["bbox_xyxy"] + share * second["bbox_xyxy"],
        "blendshapes": {name: rest * value + share * shapes[name] for name, value in first["blendshapes"].items()},
        "landmarks_xy": rest * first["landmarks_xy"] + share * second["landmarks_xy"],
        "landmarks_3d": rest * first["landmarks_3d"] + share * second["landmarks_3d"],
        "presence": rest * first["presence"] + share * second["presence"],
        "score": rest * first["score"] + share * second["score"],
    }
