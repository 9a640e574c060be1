"""Camera angles about a subject at the origin, and the words of photography that prompts have for them.

Angles are in degrees: a horizontal one of 0 looks at the front, of 90 at the right side; a vertical one is positive
from above. Zooms go from 0, a wide shot, to `MOST_ZOOM`, a close-up.
"""

from __future__ import annotations

from bisect import bisect_right

from darkroom.engine.media.cameras import orbiting

SUBJECT = (0.0, 0.0, 0.0)
DISTANCE = 6.0
FIELD_OF_VIEW = 35.0
MOST_ZOOM = 10.0
ENLARGEMENT = 1.875  # of the greatest zoom
SIDES = (
    "front view", "front-right quarter view", "right side view", "back-right quarter view", "back view",
    "back-left quarter view", "left side view", "front-left quarter view",
)  # fmt: skip
HEIGHT_BOUNDS = (-15, 15, 45)
HEIGHTS = ("low-angle shot", "eye-level shot", "elevated shot", "high-angle shot")
ZOOM_BOUNDS = (2, 6)
ZOOMS = ("wide shot", "medium shot", "close-up")


def subject_camera(horizontal: float, vertical: float, zoom: float) -> dict[str, object]:
    """Return the camera that looks at the subject from an angle, as ComfyUI's 3D viewer describes one."""
    position = orbiting(SUBJECT, horizontal, vertical, DISTANCE)
    return {
        "position": dict(zip("xyz", position, strict=True)),
        "target": dict(zip("xyz", SUBJECT, strict=True)),
        "zoom": 1.0 + (ENLARGEMENT - 1.0) * zoom / MOST_ZOOM,
        "cameraType": "perspective",
        "fov": FIELD_OF_VIEW,
    }


def described_angle(horizontal: float, vertical: float, zoom: float) -> str:
    """Return the shot in words: its side, height and distance; an angle at a bound counts to the words after it."""
    sector = 360 / len(SIDES)
    side = SIDES[int((horizontal % 360 + sector / 2) // sector) % len(SIDES)]
    height = HEIGHTS[bisect_right(HEIGHT_BOUNDS, vertical)]
    return f"{side} {height} {ZOOMS[bisect_right(ZOOM_BOUNDS, zoom)]}"
