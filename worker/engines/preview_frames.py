"""Binary WebSocket messages of ComfyUI with images of unfinished latents. Pure.

A message begins with its type, a big-endian 32-bit number. Type 4 names its node and prompt in JSON, type 1 has the
encoding alone and belongs to the prompt that runs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREVIEW: Final = 1
PREVIEW_WITH_METADATA: Final = 4
MEDIA_TYPES: Final = {1: "image/jpeg", 2: "image/png"}
ANIMATION: Final = "image/webp"  # of a video, in messages that name its node
MAX_FRAME_BYTES: Final = 2**20
"""Largest image that is passed on; ours have at most 512 pixels a side."""


@dataclass(frozen=True, slots=True)
class PreviewFrame:
    """One image of an unfinished latent. `prompt_id` and `node_id` are empty where the engine does not name them."""

    media_type: str
    image: bytes
    prompt_id: str = ""
    node_id: str = ""


def read_frame(message: bytes) -> PreviewFrame | None:
    """Return the image of a binary message; None for a message of another type and for a malformed one."""
    try:
        kind, number = struct.unpack(">II", message[:8])
        if len(message) > MAX_FRAME_BYTES:
            return None
        if kind == PREVIEW and number in MEDIA_TYPES:
            return PreviewFrame(MEDIA_TYPES[number], message[8:])
        about = json.loads(message[8 : 8 + number]) if kind == PREVIEW_WITH_METADATA else None
    except (struct.error, ValueError, RecursionError):
        return None
    if not isinstance(about, Mapping) or about.get("image_type") not in (*MEDIA_TYPES.values(), ANIMATION):
        return None
    prompt_id, node_id = str(about.get("prompt_id", "")), str(about.get("node_id", ""))
    return PreviewFrame(str(about["image_type"]), message[8 + number :], prompt_id, node_id)
