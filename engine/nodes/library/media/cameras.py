"""Nodes that make a camera of numbers, or of an angle about a subject with its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.engine.media.camera_angles import described_angle, subject_camera
from darkroom.engine.media.cameras import Lens, looking_at, orbiting, turned
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import CAMERA, IMAGE, STRING
from darkroom.engine.nodes.widgets import Combo, Float, Int, Text

REACH = 1000.0
FAR = Float(min=-REACH, max=REACH, step=0.01)
ADVANCED = Float(min=-REACH, max=REACH, step=0.01, extra={"advanced": True})
POSITION = tuple(Field(f"position_{axis}", FAR, 4.0) for axis in "xyz")
MODES = (
    (
        "orbit",
        (
            Field("yaw", Float(min=-360.0, max=360.0, step=1.0), 35.0),
            Field("pitch", Float(min=-89.0, max=89.0, step=1.0), 30.0),
            Field("distance", Float(min=0.01, max=REACH, step=0.01), 4.0),
        ),
    ),
    ("look_at", POSITION),
    (
        "quaternion",
        (
            *POSITION,
            *(Field(f"quat_{axis}", Float(min=-1.0, max=1.0, step=0.001), float(axis == "w")) for axis in "xyzw"),
        ),
    ),
)
ANGLE_ALIASES = ["multi angle", "camera view", "orbit camera", "shot angle", "camera prompt"]
ANGLE_VIEW = Text(multiline=False, extra={"widgetType": "CAMERA_ANGLE_VIEW", "socketless": True})
ALIASES = ["camera position", "make camera info", "orbit camera", "look at camera"]

Target = Annotated[float, ADVANCED]


@node("CreateCameraInfo", display_name="Create Camera Info", category="3d",
      python_module="comfy_extras.nodes_gaussian_splat", search_aliases=ALIASES)  # fmt: skip
def create_camera_info(
    context: NodeContext,
    *,
    mode: Annotated[Mapping[str, Any], DynamicChoice(fields=MODES)],
    target_x: Target = 0.0,
    target_y: Target = 0.0,
    target_z: Target = 0.0,
    roll: Annotated[float, Float(min=-180.0, max=180.0, step=1.0)] = 0.0,
    fov: Annotated[float, Float(min=1.0, max=120.0, step=1.0)] = 35.0,
    zoom: Annotated[float, Float(min=0.01, max=100.0, step=0.01)] = 1.0,
    camera_type: Annotated[str, Combo(("perspective", "orthographic"))],
) -> Annotated[CAMERA, Out("camera_info")]:
    """Return a camera in an orbit about the target, at a position looking at it, or turned by a quaternion."""
    lens, target = Lens(fov, zoom, camera_type), (target_x, target_y, target_z)
    if mode["mode"] == "orbit":
        position = orbiting(target, mode["yaw"], mode["pitch"], mode["distance"])
        return looking_at(position, target, lens, roll)
    position = (mode["position_x"], mode["position_y"], mode["position_z"])
    if mode["mode"] == "look_at":
        return looking_at(position, target, lens, roll)
    return turned(position, [mode[f"quat_{axis}"] for axis in "wxyz"], lens)


@node("CameraAngle", display_name="Compose Camera Angle Prompt", category="3d",
      python_module="comfy_extras.nodes_camera_angle", search_aliases=ANGLE_ALIASES)  # fmt: skip
def camera_angle(
    context: NodeContext,
    *,
    horizontal_angle: Annotated[int, Int(min=0, max=360, step=1)] = 0,
    vertical_angle: Annotated[int, Int(min=-30, max=60, step=1)] = 0,
    zoom: Annotated[float, Float(min=0.0, max=10.0, step=0.1)] = 5.0,
    image: Annotated[IMAGE | None, Optional()] = None,
    view: Annotated[str, ANGLE_VIEW, Optional()] = "",
) -> tuple[Annotated[CAMERA, Out("camera_info")], Annotated[STRING, Out("prompt")]]:
    """Return the camera at an angle about a subject, and a description of its shot for prompts.

    `image` and `view` are of the page's preview alone.
    """
    return subject_camera(horizontal_angle, vertical_angle, zoom), described_angle(
        horizontal_angle, vertical_angle, zoom
    )


NODES = (create_camera_info, camera_angle)
