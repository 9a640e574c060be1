"""`comfy_api.input.video_types`: the base of videos."""

from __future__ import annotations

from darkroom.engine.media.video import VideoInput

__all__ = ["VideoInput"]
