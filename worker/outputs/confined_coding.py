"""Decoding and encoding of outputs in media processes. Blocking: call in a thread.

What the structure of a file answers by our own bounded reading is answered here, so that a file that needs no change
needs no process. First frames of videos and waveforms of audio come from the engine's program that reads their facts, a
process with limits of memory and processor time alone; what it writes is read in a media process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darkroom.worker.media.facts import UnreadableMedia, write_first_frame, write_waveform
from darkroom.worker.media.process.processes import MediaJobFailed, MediaProcesses
from darkroom.worker.outputs.audio_tags import TAGGED_TYPES
from darkroom.worker.outputs.convert import ConversionFailed, Size
from darkroom.worker.outputs.embedded import REWRITTEN_TYPES, needs_rewrite, rewrite
from darkroom.worker.outputs.options import ImageFormat, MetadataLevel
from darkroom.worker.outputs.strip_metadata import is_stripped
from darkroom.worker.outputs.svg_metadata import SVG_TYPE

FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class ConfinedCoding:
    """The functions of `convert.py`, `embedded.py`, `audio_tags.py` and `…_metadata.py`, in media processes."""

    processes: MediaProcesses = field(default_factory=MediaProcesses)

    def convert(
        self, source: Path, target: Path, form: ImageFormat, quality: int | None, texts: dict[str, str]
    ) -> None:
        """Convert an image to another format. Raises ConversionFailed."""
        try:
            self._run("convert", source, target, form=form, quality=quality, texts=texts)
        except MediaJobFailed as failed:
            raise ConversionFailed(_with_start(f"the image cannot be made {form}", failed)) from None

    def make_thumbnail(self, source: Path, target: Path, longer_side_px: int) -> Size:
        """Write a WebP thumbnail of an image. Raises ConversionFailed."""
        try:
            made = self._run("make_thumbnail", source, target, longer_side_px=longer_side_px)
        except MediaJobFailed as failed:
            raise ConversionFailed(_with_start("no thumbnail can be made", failed)) from None
        return Size(int(made["width_px"]), int(made["height_px"]))

    def make_video_thumbnail(self, source: Path, target: Path, longer_side_px: int) -> Size:
        """Write a WebP thumbnail of a video's first frame, never larger than it is. Raises ConversionFailed."""
        return self._make_by_image(write_first_frame, source, target, longer_side_px)

    def make_audio_thumbnail(self, source: Path, target: Path, longer_side_px: int) -> Size:
        """Write a WebP image of the waveform of an audio file. Raises ConversionFailed."""
        return self._make_by_image(write_waveform, source, target, longer_side_px)

    def _make_by_image(
        self, write_image: Callable[[Path, Path], None], source: Path, target: Path, longer_side_px: int
    ) -> Size:
        image = target.with_suffix(".image.png")
        try:
            write_image(source, image)
            return self.make_thumbnail(image, target, longer_side_px)
        except UnreadableMedia as error:
            raise ConversionFailed(f"no thumbnail can be made: {error}") from None
        finally:
            image.unlink(missing_ok=True)

    def change_metadata(
        self, source: Path, target: Path, media_type: str, level: MetadataLevel, texts: Mapping[str, str]
    ) -> bool:
        """Write a copy with the metadata that `level` selects; return False if the file needs no change.

        Raises ValueError for a file that cannot be changed.
        """
        if media_type in REWRITTEN_TYPES:
            if media_type == "image/png":
                return rewrite(source, target, media_type, level, texts)
            wanted = {"media_type": media_type, "level": level, "texts": dict(texts)}
            return needs_rewrite(source, media_type, level, texts) and self._changes(
                "rewrite", source, target, **wanted
            )
        if level == "full":
            return False  # only images get the prompt embedded
        if media_type in TAGGED_TYPES:
            return self._changes("remove_tags", source, target, media_type=media_type)
        if media_type == SVG_TYPE:
            return self._changes("remove_svg_metadata", source, target)
        return is_stripped(source) and self._changes("strip_metadata", source, target)

    def _changes(self, operation: str, source: Path, target: Path, **arguments: Any) -> bool:
        return bool(self._run(operation, source, target, **arguments)["is_changed"])

    def _run(self, operation: str, source: Path, target: Path, **arguments: Any) -> dict[str, Any]:
        target.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        try:
            asked = {"source": str(source), "target": str(target), **arguments}
            return self.processes.run(operation, asked, reads=(source,), writes=(target.parent,))
        except MediaJobFailed:
            target.unlink(missing_ok=True)
            raise


def _with_start(start: str, failed: MediaJobFailed) -> str:
    """Return the message of the operation itself, which has its own start, or `start` with the reason of its end."""
    return str(failed) if failed.is_refused else f"{start}: {failed}"
