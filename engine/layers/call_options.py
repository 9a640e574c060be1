"""Options that each call of a network hands down to its layers (ComfyUI's `transformer_options`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CallOptions = Mapping[str, Any]  # block, patches and their like; custom nodes add to them
