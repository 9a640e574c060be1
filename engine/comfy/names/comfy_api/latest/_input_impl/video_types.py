"""`comfy_api.latest._input_impl.video_types`: videos of files and of images."""

from __future__ import annotations

from darkroom.engine.media.video import VideoFromComponents, VideoFromFile

__all__ = ["VideoFromComponents", "VideoFromFile"]
