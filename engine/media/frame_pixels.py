"""Decoded frames of PyAV as float images, with the conversions that ComfyUI 0.33.0 chooses.

`H W` pixels: images are float32 `[H, W, 3]`, alpha is float32 `[H, W]`, both 0..1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

BYTE_FORMATS = frozenset({"yuvj420p", "yuvj422p", "yuvj444p", "rgb24", "rgba", "pal8"})
"""Pixel formats that are converted to 8 bits a channel; all others to float32, by FFmpeg's scaler."""

ALIGNED_PX = 32  # FFmpeg's conversion to floats reads beyond rows of other widths: its result would vary


class FramePixels:
    """Converter of a stream's frames. The first frame decides the format and whether there is alpha."""

    def __init__(self) -> None:
        self._format = ""
        self._padding: tuple[Any, Any, Any] | None = None  # a filter graph, where frames go in, and come out

    @property
    def has_alpha(self) -> bool:
        return self._format in ("rgba", "gbrapf32le")

    def convert(self, frame: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a frame's image and its alpha, None where the stream has none; turned as its rotation says."""
        if not self._format:
            self._format = target_format(frame.format)
        pixels = self._pixels(frame)
        if frame.rotation:
            pixels = np.rot90(pixels, k=round(frame.rotation // 90), axes=(0, 1))
        found = torch.from_numpy(np.ascontiguousarray(pixels))
        values = found if found.is_floating_point() else found / 255.0
        return values[..., :3].contiguous(), values[..., 3].contiguous() if self.has_alpha else None

    def _pixels(self, frame: Any) -> npt.NDArray[Any]:
        if self._format in ("rgba", "rgb24") or frame.width % ALIGNED_PX == 0:
            found: npt.NDArray[Any] = frame.to_ndarray(format=self._format)
            return found
        if self._padding is None:
            self._padding = _padding_graph(frame)
        _, source, sink = self._padding
        source.push(frame)
        padded: npt.NDArray[Any] = sink.pull().to_ndarray(format=self._format)
        return padded[: frame.height, : frame.width]


def target_format(pixel_format: Any) -> str:
    """Return FFmpeg's name of the format to convert frames of a format to: palettes count as having alpha."""
    has_alpha = pixel_format.name == "pal8" or any(item.is_alpha for item in pixel_format.components)
    if pixel_format.name in BYTE_FORMATS:
        return "rgba" if has_alpha else "rgb24"
    return "gbrapf32le" if has_alpha else "gbrpf32le"


def _padding_graph(frame: Any) -> tuple[Any, Any, Any]:
    """Return a filter graph that widens such frames to whole steps by repeating their border, and both its ends.

    The ends do not keep the graph alive.
    """
    from av.filter import Graph  # with PyAV, which made the frame

    width, height = (-(-side // ALIGNED_PX) * ALIGNED_PX for side in (frame.width, frame.height))
    graph = Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format.name, time_base=frame.time_base
    )
    steps = (
        graph.add("pad", f"{width}:{height}:0:0"),
        graph.add("fillborders", f"left=0:right={width - frame.width}:top=0:bottom={height - frame.height}:mode=smear"),
        graph.add("buffersink"),
    )
    for before, after in zip((source, *steps), steps, strict=False):
        before.link_to(after)
    graph.configure()
    return graph, source, steps[-1]
