"""`ComfyAPI().execution`: progress of the running node, synchronous or async."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image

from darkroom.engine.images.pixels import to_pillow
from darkroom.engine.nodes.running_call import running_context

PREVIEW_SIZE_PX = 512


def set_progress(
    value: float,
    max_value: float,
    node_id: str | None = None,
    preview_image: Image.Image | torch.Tensor | None = None,
    ignore_size_limit: bool = False,
) -> None:
    """Report progress of the running node. Raises ValueError outside of a node's call."""
    context = running_context()
    if context is None:
        raise ValueError("node_id must be provided if not in executing context")
    context.report_progress(value, max_value)
    if preview_image is None or context.report_preview is None:
        return
    if isinstance(preview_image, torch.Tensor):
        preview_image = to_pillow(preview_image[0] if preview_image.ndim == 4 else preview_image)
    context.report_preview(
        (preview_image.format or "JPEG", preview_image, None if ignore_size_limit else PREVIEW_SIZE_PX)
    )


class Execution:
    async def set_progress(self, *args: Any, **kwargs: Any) -> None:
        """Report progress as the function `set_progress`."""
        set_progress(*args, **kwargs)


class ExecutionSync:
    def set_progress(self, *args: Any, **kwargs: Any) -> None:
        """Report progress as the function `set_progress`."""
        set_progress(*args, **kwargs)


class ComfyAPI:
    """ComfyUI's functions for running nodes; they are awaited."""

    VERSION = "latest"
    STABLE = False
    Execution = Execution

    def __init__(self) -> None:
        self.execution = Execution()


class ComfyAPISync:
    """ComfyUI's functions for running nodes that are not async."""

    VERSION = "latest"
    STABLE = False
    Execution = ExecutionSync

    def __init__(self) -> None:
        self.execution = ExecutionSync()
