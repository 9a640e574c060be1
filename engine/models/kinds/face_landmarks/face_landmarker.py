"""FACE_DETECTION_MODEL: MediaPipe's networks, which find faces in images and the landmarks of each.

`B` images, `H W` pixels, `N` faces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from darkroom.engine.models.kinds.face_landmarks.face_boxes import (
    SCORE,
    FaceRectangle,
    anchor_centres,
    detected_faces,
    in_image,
    rectangle_of,
)
from darkroom.engine.models.kinds.face_landmarks.face_crops import cut_out, placed, square_around
from darkroom.engine.models.kinds.face_landmarks.face_mesh import SIDE_PX
from darkroom.engine.models.kinds.face_landmarks.face_network import FaceNetworks
from darkroom.engine.models.kinds.face_landmarks.face_points import EXPRESSIONS
from darkroom.engine.models.kinds.face_landmarks.face_template import FaceTemplate
from darkroom.engine.models.kinds.face_landmarks.faces import Face, Floats
from darkroom.engine.models.network_value import NetworkAsModel

SHORT, FULL = "short", "full"
MOST_FACES = 256  # of an image
FACES_AT_ONCE = 64
CHANNELS = 32  # of the widest layers, at half of the sides of what a network reads
COPIES, VALUE_BYTES = 6, 4


class FaceLandmarker(NetworkAsModel):
    """Networks that find the landmarks of faces."""

    @property
    def template(self) -> FaceTemplate:
        template: FaceTemplate = self.model.template
        return template

    @torch.no_grad()
    def faces(
        self, images: torch.Tensor, variant: str, num_faces: int, least_score: float, check: Callable[[], None]
    ) -> list[list[Face]]:
        """Return the faces of each of the images [B, H, W, 3], uint8, found by the detector of that variant.

        The surest come first, at most `num_faces`, where that is not 0, and never more than 256. `check` is called
        between the images. Raises ValueError where a network computes no finite numbers.
        """
        with self.patcher.in_use(working_bytes=_working_bytes(tuple(images.shape))) as networks:
            detector = networks.detector_short if variant == SHORT else networks.detector_full
            squares = []
            for image in images:
                check()
                squares.append(square_around(self._pixels(image), detector.side_px))
            offsets, logits = (values.cpu().numpy() for values in detector(torch.stack(squares)))
            centres = anchor_centres(detector.grids)
            found = []
            for index, image in enumerate(images):
                check()
                rows = detected_faces(offsets[index], logits[index], centres, detector.side_px, least_score)
                found.append(self._with_landmarks(networks, image, rows[: num_faces or MOST_FACES]))
        return found

    def _pixels(self, image: torch.Tensor) -> torch.Tensor:
        """Return an image [H, W, 3] as the networks take it, [3, H, W], 0..255."""
        return image.to(self.load_device).movedim(-1, 0).float()

    def _with_landmarks(self, networks: FaceNetworks, image: torch.Tensor, rows: Floats) -> list[Face]:
        """Return the faces of an image [H, W, 3] that were detected there, [N, 17]."""
        if not len(rows):
            return []
        if not np.isfinite(rows).all():
            raise ValueError("face_detection_model: its detector computes no finite numbers")
        height, width = image.shape[:2]
        pixels = self._pixels(image) / 255
        rows = in_image(rows, width, height)
        faces: list[Face] = []
        for start in range(0, len(rows), FACES_AT_ONCE):
            some = rows[start : start + FACES_AT_ONCE]
            rectangles = [rectangle_of(row, width, height) for row in some]
            faces += _faces(networks, pixels, rectangles, [float(row[SCORE]) for row in some])
        return faces


def _faces(
    networks: FaceNetworks, pixels: torch.Tensor, rectangles: Sequence[FaceRectangle], scores: Sequence[float]
) -> list[Face]:
    crops = torch.stack([cut_out(pixels, rectangle, SIDE_PX) for rectangle in rectangles])
    landmarks, presences = networks.mesh(crops)
    shapes = networks.blendshapes(landmarks)
    places = torch.stack([placed(item, place, SIDE_PX) for item, place in zip(landmarks, rectangles, strict=True)])
    read = [values.float().cpu().numpy() for values in (places, landmarks, presences, shapes)]
    if not all(np.isfinite(values).all() for values in read):
        raise ValueError("face_detection_model: its networks compute no finite numbers")
    return [
        {
            "bbox_xyxy": np.concatenate((points.min(axis=0), points.max(axis=0))),
            "blendshapes": dict(zip(EXPRESSIONS, shares.tolist(), strict=True)),
            "landmarks_xy": points,
            "landmarks_3d": in_crop,
            "presence": float(presence),
            "score": score,
        }
        for score, points, in_crop, presence, shares in zip(scores, *read, strict=True)
    ]


def _working_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of a pass for so many images [B, H, W, 3] or faces, and of one image as the networks take it."""
    count, height, width, channels = shape
    layers = COPIES * max(count, FACES_AT_ONCE) * CHANNELS * (SIDE_PX // 2) ** 2
    return (layers + 2 * channels * height * width) * VALUE_BYTES
