"""The output options of a request: format, quality, metadata, thumbnails. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

ImageFormat = Literal["png", "jpeg", "webp", "avif"]
MetadataLevel = Literal["none", "prompt", "full"]

FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)
MIN_THUMBNAIL_PX = 16
MAX_THUMBNAIL_PX = 2048


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Output options.

    None keeps the default: the node's own format, the encoder's quality, the worker's METADATA, no thumbnail.

    `quality` is 1..100 and requires a lossy `format`; `thumbnail_size` is the longer side in pixels.
    """

    format: ImageFormat | None = None
    quality: int | None = None
    metadata: MetadataLevel | None = None
    thumbnail_size: int | None = None

    @staticmethod
    def of(stored: Mapping[str, Any] | None) -> OutputOptions:
        """Read the options of a job's stored request, written by any version of the worker."""
        known = OutputOptions.__slots__
        return OutputOptions(**{name: value for name, value in (stored or {}).items() if name in known})
