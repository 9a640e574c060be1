"""Delivered files of a job: converted, with or without metadata, with thumbnails, as its request asks.

The files that the engine made stay in the job's folder until the job expires, so that a front can repeat the delivery
after a crash. The results are stored in `delivered/` and `thumbnails/` below that folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.worker.json.values import JsonObject
from darkroom.worker.media.facts import is_audio, is_media, is_video
from darkroom.worker.outputs.confined_coding import ConfinedCoding
from darkroom.worker.outputs.convert import EXTENSIONS, ConversionFailed, Size, reason
from darkroom.worker.outputs.embedded import wanted_texts
from darkroom.worker.outputs.options import ImageFormat, MetadataLevel, OutputOptions
from darkroom.worker.outputs.strip_metadata import UNTOUCHED_TYPES
from darkroom.worker.outputs.svg_metadata import SVG_TYPE

DELIVERED, THUMBNAILS = "delivered", "thumbnails"
MEDIA_TYPES: Mapping[ImageFormat, str] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "avif": "image/avif",
}


OutputRecord = dict[str, Any]
"""One output as stored with the job: the public fields of the result, and `path` below the job's folder."""


@dataclass(frozen=True, slots=True)
class Processing:
    """The processing of every image of a job. `texts` are the metadata that it may contain."""

    options: OutputOptions
    level: MetadataLevel
    texts: Mapping[str, str]
    coding: ConfinedCoding


def delivered_names(records: Sequence[JsonObject], options: OutputOptions) -> list[str]:
    """Return the delivered file name of each record, with unique stems and the same at every call. Pure."""
    stems: set[str] = set()
    names: list[str] = []
    for index, record in enumerate(records):
        path = Path(str(record.get("path") or ""))
        stem = path.stem if path.stem not in stems else f"{path.stem}_{record.get('node_id')}_{index}"
        stems.add(stem)
        form = new_format(record, options)
        names.append(stem + (path.suffix if form is None else EXTENSIONS[form]))
    return names


def needs_processing(record: JsonObject, level: MetadataLevel) -> bool:
    """Return True if an output could need processing: one with a thumbnail, or a file that may have metadata. Pure."""
    return bool(record.get("path")) and (_has_thumbnail(record) or level != "full")


def _has_thumbnail(record: JsonObject) -> bool:
    return _is_image(record) or is_media(record.get("media_type"))


def _is_image(record: JsonObject) -> bool:
    """Return True for an image of pixels, which can be converted and made smaller."""
    media_type = str(record.get("media_type"))
    return media_type.startswith("image/") and media_type != SVG_TYPE


def new_format(record: JsonObject, options: OutputOptions) -> ImageFormat | None:
    """Return the format to which a record's image must be converted; None if it is unchanged. Pure."""
    media_type = str(record.get("media_type"))
    if options.format is None or not _is_image(record):
        return None
    is_so = media_type == MEDIA_TYPES[options.format] and options.quality is None
    return None if is_so else options.format


def process_output(record: JsonObject, name: str, folder: Path, wanted: Processing) -> OutputRecord:
    """Process one output and return its record as delivered. Blocking.

    A file that cannot be changed is delivered unchanged, and its record contains the error.
    """
    made = dict(record)
    if not needs_processing(record, wanted.level):
        return made
    media_type = str(record["media_type"])
    source = folder / str(record["path"])
    form = new_format(record, wanted.options)
    if form is not None:
        made |= _converted(source, folder, name, form, wanted)
    if made["path"] == record["path"]:
        made |= _with_metadata(source, folder, Path(name).stem + source.suffix, media_type, wanted)
    if wanted.options.thumbnail_size is not None and _has_thumbnail(record):
        made |= _thumbnail(
            record, folder, f"{Path(name).stem}_thumb.webp", wanted.options.thumbnail_size, wanted.coding
        )
    return made


def _converted(source: Path, folder: Path, name: str, form: ImageFormat, wanted: Processing) -> OutputRecord:
    target = folder / DELIVERED / name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        texts = wanted_texts(wanted.level, wanted.texts)
        wanted.coding.convert(source, target, form, wanted.options.quality, texts)
    except ConversionFailed as failed:
        target.unlink(missing_ok=True)
        return {"conversion_error": str(failed)}
    return _file_fields(folder, target, MEDIA_TYPES[form]) | {"filename": name}


def _with_metadata(source: Path, folder: Path, name: str, media_type: str, wanted: Processing) -> OutputRecord:
    """Add or remove metadata. If that is impossible, the record contains the error."""
    target = folder / DELIVERED / name
    try:
        if wanted.coding.change_metadata(source, target, media_type, wanted.level, wanted.texts):
            return _file_fields(folder, target, media_type)
    except (ValueError, OSError, SyntaxError) as error:
        target.unlink(missing_ok=True)
        return {"metadata_error": f"the file's metadata stays as it is ({reason(error)})"}
    if media_type in UNTOUCHED_TYPES and wanted.level != "full":
        return {"metadata_error": f"the metadata of {media_type} stays as it is"}
    return {}


def _thumbnail(record: JsonObject, folder: Path, name: str, size: int, coding: ConfinedCoding) -> OutputRecord:
    target = folder / THUMBNAILS / name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        source = folder / str(record["path"])
        made = _thumbnail_maker(coding, record.get("media_type"))(source, target, size)
    except ConversionFailed as failed:
        return {"thumbnail_error": str(failed)}
    fields = _file_fields(folder, target, MEDIA_TYPES["webp"])
    place = {key: record.get(key) for key in ("subfolder", "node_id")}
    return {"thumbnail": {"filename": name, "width": made.width_px, "height": made.height_px} | place | fields}


def _thumbnail_maker(coding: ConfinedCoding, media_type: object) -> Callable[[Path, Path, int], Size]:
    if is_audio(media_type):
        return coding.make_audio_thumbnail
    return coding.make_video_thumbnail if is_video(media_type) else coding.make_thumbnail


def _file_fields(folder: Path, path: Path, media_type: str) -> OutputRecord:
    return {
        "local_path": str(path),
        "path": str(path.relative_to(folder)),
        "media_type": media_type,
        "size_bytes": path.stat().st_size,
    }
