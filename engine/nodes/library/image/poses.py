"""Nodes of poses in OpenPose's format: drawn, and the boxes of their faces."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from darkroom.engine.images.face_boxes import face_box
from darkroom.engine.images.pose_drawing import PoseStyle, draw_pose
from darkroom.engine.images.poses import PoseKeypoints, canvas_of, frames_of, poses_of
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Flag, Float, Int

MODULE = "comfy_extras.nodes_sdpose"
CATEGORY = "image/detection"
BYTES_PER_PIXEL = 3 * 4
BLANK_PX = 64  # a side of the image without any pose
POSE_KEYPOINT = Annotated[PoseKeypoints, Socket("POSE_KEYPOINT")]


def _complaint(environment: NodeEnvironment, keypoints: object = None) -> str | None:
    """Return the fault of poses that the prompt gives, None for good ones and those of another node."""
    if keypoints is None:
        return None
    try:
        for frame in frames_of(keypoints):
            canvas_of(frame)
            for _ in poses_of(frame):
                pass
    except ValueError as error:
        return str(error)
    return None


@node("SDPoseDrawKeypoints", display_name="SDPose Draw Keypoints", category=CATEGORY, python_module=MODULE,
      check=_complaint)  # fmt: skip
def sdpose_draw_keypoints(
    context: NodeContext,
    *,
    keypoints: POSE_KEYPOINT,
    draw_body: Annotated[bool, Flag()] = True,
    draw_hands: Annotated[bool, Flag()] = True,
    draw_face: Annotated[bool, Flag()] = True,
    draw_feet: Annotated[bool, Flag()] = False,
    stick_width: Annotated[int, Int(min=1, max=10, step=1)] = 4,
    face_point_size: Annotated[int, Int(min=1, max=10, step=1)] = 3,
    score_threshold: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.3,
    draw_head: Annotated[bool, Flag()] = True,
) -> IMAGE:
    """Draw poses on black, an image each, all of the first one's size.

    Raises ValueError for poses of another format, and for images that would not fit the free memory.
    """
    frames = frames_of(keypoints)
    if not frames:
        return torch.zeros(1, BLANK_PX, BLANK_PX, 3)
    height, width = canvas_of(frames[0])
    check_fits(context, "keypoints", len(frames) * height * width * BYTES_PER_PIXEL)
    style = PoseStyle(
        draw_body, draw_head, draw_feet, draw_face, draw_hands, stick_width, face_point_size, score_threshold
    )
    images = torch.empty(len(frames), height, width, 3)
    for index, frame in enumerate(frames):
        canvas = np.zeros((height, width, 3), dtype=np.uint8)
        for pose in poses_of(frame):
            context.cancel.check()
            draw_pose(canvas, pose, style)
        context.cancel.check()
        images[index] = torch.from_numpy(canvas) / 255
    return images


@node("SDPoseFaceBBoxes", display_name="SDPose Face Bounding Boxes", category=CATEGORY, python_module=MODULE,
      check=_complaint)  # fmt: skip
def sdpose_face_bboxes(
    context: NodeContext,
    *,
    keypoints: POSE_KEYPOINT,
    scale: Annotated[float, Float(min=1.0, max=10.0, step=0.1)] = 1.5,
    force_square: Annotated[bool, Flag()] = True,
) -> Annotated[Any, Socket("BOUNDING_BOX"), Out("bboxes")]:
    """Return the boxes of the faces of each image. Raises ValueError for poses of another format."""
    boxes = []
    for frame in frames_of(keypoints):
        context.cancel.check()
        sides = canvas_of(frame)
        found = (face_box(pose.face, sides, scale, is_square=force_square) for pose in poses_of(frame))
        boxes.append([box for box in found if box is not None])
    return boxes


NODES = (sdpose_draw_keypoints, sdpose_face_bboxes)
