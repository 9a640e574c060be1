"""Nodes of MediaPipe's face landmarker: faces found, drawn and masked. IMAGE is float32 `[B, H, W, C]` of 0..1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.boxes import Box
from darkroom.engine.images.face_drawing import Pixels, Points, color_of, with_filled, with_lines
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.kinds.face_landmarks.face_landmarker import FULL, SHORT
from darkroom.engine.models.kinds.face_landmarks.face_pose import face_pose
from darkroom.engine.models.kinds.face_landmarks.face_template import rings_of
from darkroom.engine.models.kinds.face_landmarks.faces import EMPTY, FILLINGS, Face, filled
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.library.image.boxes import BoundingBox
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import FACE_DETECTION_MODEL, FACE_LANDMARKS, FRAMES, IMAGE, MASK
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, ModelCombo

MODULE = "comfy_extras.nodes_mediapipe"
CATEGORY = "image/detection"
ALIASES = ["face", "facial", "mediapipe", "face landmark", "face mesh", "blazeface", "face detection"]
MASK_ALIASES = ["face", "facial", "mediapipe", "face mask", "blazeface", "face detection", "visualize"]
BOTH = "both"
IMAGES_AT_ONCE = 16
CHANNELS = 3
RESULT_BYTES = 1 + 4  # of a value, as it is drawn and as it is returned
TESSELATION, OVAL = "tesselation", "face_oval"
DRAWN = (OVAL, "lips", "left_eye", "right_eye", "left_eyebrow", "right_eyebrow", "irises", "nose", TESSELATION)
MASKED = (OVAL, "lips", "left_eye", "right_eye", "irises")  # parts of closed lines
CONNECTIONS = (
    ("all", ()), ("fill", ()), ("custom", tuple(Field(part, Flag(), part != TESSELATION) for part in DRAWN)),
)  # fmt: skip
REGIONS = (("all", ()), ("custom", tuple(Field(part, Flag(), part == OVAL) for part in MASKED)))


@node("LoadMediaPipeFaceLandmarker", display_name="Load Face Detection Model (MediaPipe)", category="model/loaders",
      python_module=MODULE, facts=NodeFacts(items="alike"), search_aliases=ALIASES)  # fmt: skip
def load_mediapipe_face_landmarker(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("detection")]
) -> FACE_DETECTION_MODEL:
    """Load MediaPipe's face landmarker, version 2."""
    loaded: FACE_DETECTION_MODEL = context.models.vision.face_landmarker(model_name)
    return loaded


@node("MediaPipeFaceLandmarker", display_name="Detect Face Landmarks (MediaPipe)", category=CATEGORY,
      python_module=MODULE, search_aliases=ALIASES, advanced=("min_confidence", "missing_frame_fallback"))  # fmt: skip
def mediapipe_face_landmarker(
    context: NodeContext,
    *,
    face_detection_model: FACE_DETECTION_MODEL,
    image: FRAMES,
    detector_variant: Annotated[str, Combo((SHORT, FULL, BOTH))] = SHORT,
    num_faces: Annotated[int, Int(min=0, max=16, step=1)] = 1,
    min_confidence: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.5,
    missing_frame_fallback: Annotated[str, Combo(FILLINGS)] = EMPTY,
) -> tuple[Annotated[FACE_LANDMARKS, Out("face_landmarks")], Annotated[BoundingBox, Out("bboxes")]]:
    """Find the landmarks of the faces in images, and their boxes; `num_faces` 0 is as many as there are.

    `both` keeps those of the detector that found more in an image.
    """
    sides = (int(image.shape[1]), int(image.shape[2]))
    variants = (SHORT, FULL) if detector_variant == BOTH else (detector_variant,)
    frames: list[list[Face]] = []
    for images in _batches(image):
        found = [
            face_detection_model.faces(images, variant, num_faces, min_confidence, context.cancel.check)
            for variant in variants
        ]
        frames += (max(faces, key=len) for faces in zip(*found, strict=True))
        context.report_progress(len(frames), image.shape[0])
    frames = filled(frames, missing_frame_fallback)
    template = face_detection_model.template
    for faces in frames:
        context.cancel.check()
        for face in faces:
            face["transformation_matrix"] = face_pose(face["landmarks_3d"], face["landmarks_xy"], sides, template)
    boxes = [[_box_of(face) for face in faces] for faces in frames]
    return {"frames": frames, "image_size": sides, "connection_sets": template.edges}, boxes


def _batches(image: torch.Tensor | FrameStream) -> Iterator[torch.Tensor]:
    """Yield images [b, H, W, 3], uint8, some at a time."""
    frames: list[torch.Tensor] = []
    for frame in image:
        frames.append(_as_pixels(frame))
        if len(frames) == IMAGES_AT_ONCE:
            yield torch.stack(frames)
            frames = []
    if frames:
        yield torch.stack(frames)


def _as_pixels(image: torch.Tensor) -> torch.Tensor:
    """Return an image [..., C] as [..., 3] of 0..255, uint8, on the CPU."""
    return (image[..., :CHANNELS] * 255 + 0.5).clamp(0, 255).to(torch.uint8).cpu()


def _box_of(face: Face) -> Box:
    left, top, right, bottom = (float(value) for value in face["bbox_xyxy"])
    sides = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return {**sides, "label": "face", "score": face["score"]}


@node("MediaPipeFaceMeshVisualize", display_name="Visualize Face Landmarks (MediaPipe)", category=CATEGORY,
      python_module=MODULE, search_aliases=[*ALIASES, "visualize"])  # fmt: skip
def mediapipe_face_mesh_visualize(
    context: NodeContext,
    *,
    face_landmarks: FACE_LANDMARKS,
    connections: Annotated[Mapping[str, Any], DynamicChoice(fields=CONNECTIONS)],
    color: Annotated[str, PageWidget("COLOR", extra=WITHOUT_SOCKET)] = "#00ff00",
    thickness: Annotated[int, Int(min=0, max=8, step=1)] = 1,
    point_size: Annotated[int, Int(min=0, max=16, step=1)] = 2,
    image: Annotated[IMAGE | None, Optional()] = None,
) -> IMAGE:
    """Draw faces' landmarks over images, or on black: lines between those of parts, or the whole face filled.

    Raises ValueError for images that would not fit the free memory.
    """
    frames, edges = face_landmarks["frames"], face_landmarks["connection_sets"]
    chosen, rgb = connections["connections"], color_of(str(color))
    parts = [part for part in DRAWN if (connections[part] if chosen == "custom" else part != TESSELATION)]
    lines = frozenset().union(*(edges[part] for part in parts))
    height, width = face_landmarks["image_size"] if image is None else image.shape[1:3]
    count = len(frames) if image is None else len(image)
    check_fits(context, "face_landmarks", count * height * width * CHANNELS * RESULT_BYTES)
    drawn = torch.empty(count, height, width, CHANNELS)
    for index in range(count):
        pixels: Pixels = np.zeros((height, width, CHANNELS), np.uint8) if image is None else _array(image[index])
        points = _points(context, frames[index] if index < len(frames) else ())
        if chosen == "fill":
            pixels = with_filled(pixels, points, rings_of(edges[OVAL]), rgb)
        else:
            pixels = with_lines(pixels, points, lines, rgb, thickness, point_size)
        drawn[index] = torch.from_numpy(pixels.copy()) / 255
        context.report_progress(index + 1, count)
    return drawn


def _array(image: torch.Tensor) -> Pixels:
    return _as_pixels(image).numpy()


def _points(context: NodeContext, faces: Sequence[Face]) -> Iterator[Points]:
    """Yield the landmarks of faces, ending where the run is cancelled."""
    for face in faces:
        context.cancel.check()
        yield face["landmarks_xy"]


@node("MediaPipeFaceMask", display_name="Draw Face Mask (MediaPipe)", category=CATEGORY, python_module=MODULE,
      search_aliases=MASK_ALIASES)  # fmt: skip
def mediapipe_face_mask(
    context: NodeContext,
    *,
    face_landmarks: FACE_LANDMARKS,
    regions: Annotated[Mapping[str, Any], DynamicChoice(fields=REGIONS)],
) -> MASK:
    """Make a mask of the insides of parts of all faces of each image.

    Raises ValueError for masks that would not fit the free memory.
    """
    frames, edges = face_landmarks["frames"], face_landmarks["connection_sets"]
    height, width = face_landmarks["image_size"]
    check_fits(context, "face_landmarks", len(frames) * height * width * RESULT_BYTES)
    parts = [part for part in MASKED if regions["regions"] == "all" or regions[part]]
    rings = [ring for part in parts for ring in rings_of(edges[part])]
    masks = torch.zeros(len(frames), height, width)
    for index, faces in enumerate(frames):
        black: Pixels = np.zeros((height, width), np.uint8)
        masks[index] = torch.from_numpy(with_filled(black, _points(context, faces), rings, 255).copy()) / 255
        context.report_progress(index + 1, len(frames))
    return masks


NODES = (
    load_mediapipe_face_landmarker,
    mediapipe_face_landmarker,
    mediapipe_face_mesh_visualize,
    mediapipe_face_mask,
)
