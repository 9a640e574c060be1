"""`comfy_api.util.video_types`: parts, containers and codecs of videos."""

from __future__ import annotations

from darkroom.engine.media.video import VideoCodec, VideoComponents, VideoContainer

__all__ = ["VideoCodec", "VideoComponents", "VideoContainer"]
