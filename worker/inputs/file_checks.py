"""Checks of a whole input file: its kind, and the limits on images, videos and audio. Blocking: call it in a thread.

Images are opened in a media process. Nothing of a video or audio is decoded. One that cannot be read is left to the
engine, which names what is wrong with it before anything runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from darkroom.worker.media.facts import MOST_SECONDS, MediaTooSlow, is_media, media_facts_of
from darkroom.worker.media.kinds import HEAD_BYTES, BrokenFile, FileKind, Media, check_file, check_kind
from darkroom.worker.media.process.processes import MediaJobFailed, MediaProcesses
from darkroom.worker.settings.outputs import InputLimits

SAMPLES_PER_SECOND = 384_000  # two channels at 192 kHz, or eight at 48 kHz


def check_input(path: Path, media: Media, limits: InputLimits, processes: MediaProcesses) -> FileKind:
    """Check a file for an input that takes `media` and return its kind. Raises BrokenFile, which names the limit."""
    with path.open("rb") as file:
        kind = check_kind(file.read(HEAD_BYTES), media)
    if kind.is_image:
        return _check_image(path, media, limits, processes)
    kind = check_file(path, media, limits.max_pixels)
    if is_media(kind.media_type):
        try:
            facts = media_facts_of(path)
        except MediaTooSlow:
            raise BrokenFile(
                f"is not read to its end in {MOST_SECONDS:g} s; expected a video or audio that ends"
            ) from None
        _check_length(facts or {}, limits)
    return kind


def _check_image(path: Path, media: Media, limits: InputLimits, processes: MediaProcesses) -> FileKind:
    asked = {"path": str(path), "media": media, "max_pixels": limits.max_pixels}
    try:
        found = processes.run("check_file", asked, reads=(path,))
    except MediaJobFailed as failed:
        raise BrokenFile(str(failed) if failed.is_refused else f"cannot be read: {failed}") from None
    kind = FileKind(str(found["extension"]), str(found["media_type"]))
    if not (kind.extension.isalnum() and kind.is_image):
        raise BrokenFile("cannot be read: its process names no kind of image")
    return kind


def _check_length(facts: dict[str, Any], limits: InputLimits) -> None:
    seconds = facts.get("duration_seconds", 0)
    if seconds > limits.max_seconds:
        raise BrokenFile(f"has {seconds:g} seconds; expected at most {limits.max_seconds:g} (INPUT_MAX_SECONDS)")
    samples = round(seconds * facts.get("sample_rate", 0)) * facts.get("channels", 0)
    if samples > (max_samples := round(limits.max_seconds * SAMPLES_PER_SECOND)):
        audio = f"{seconds:g} s of {facts['channels']} channels at {facts['sample_rate']} Hz"
        raise BrokenFile(
            f"has {samples} samples of audio ({audio}); expected at most {max_samples}, "
            f"{SAMPLES_PER_SECOND} for each second of INPUT_MAX_SECONDS"
        )
