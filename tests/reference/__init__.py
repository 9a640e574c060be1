"""Recordings of ComfyUI: its node signatures, its HTTP and WebSocket traffic, CLIP's vocabulary and tokens."""

from __future__ import annotations

from pathlib import Path

REFERENCE = Path(__file__).parent
