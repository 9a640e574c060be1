"""State of a 3D view, which ComfyUI's page takes from its viewer while it makes a prompt. Pure.

Without a viewer nothing is rendered: images are empty, and the camera stands where the file says, or where the page
puts it at first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from darkroom.worker.json.values import JsonObject, object_at

VIEW: Final = "LOAD_3D"
"""Type of the inputs that take such a state."""

FIRST_CAMERA: Final[JsonObject] = {
    "position": {"x": 10, "y": 10, "z": 10},
    "target": {"x": 0, "y": 0, "z": 0},
    "zoom": 1,
    "cameraType": "perspective",
    "quaternion": {
        "x": -0.2798481423331213,
        "y": 0.3647051996310008,
        "z": 0.11591689595929511,
        "w": 0.8804762392171493,
    },
    "fov": 35,
    "aspect": 1,
    "near": 0.01,
    "far": 10000,
    "frustum": {"left": -5, "right": 5, "top": 5, "bottom": -5},
}


def view_state(saved: object, properties: JsonObject) -> JsonObject:
    """Return the state that a file saved of a node's view, else that of a view in which nothing was rendered."""
    if isinstance(saved, Mapping):
        return saved
    camera = object_at(properties, "Camera Config", "state") or FIRST_CAMERA
    return {"image": "", "mask": "", "normal": "", "camera_info": camera, "recording": "", "model_3d_info": []}
