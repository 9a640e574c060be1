"""Facts of videos and audio, a video's first frame, and waveforms. Blocking: call it in a thread.

Media are read by a child process without our environment: FFmpeg's demuxers are large, and files come from node packs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from darkroom.start import command_of

MEDIA = ("video/", "audio/")
MEDIA_FACTS = ("width", "height", "frames", "fps", "duration_seconds", "sample_rate", "channels")
"""Facts by name: pixels, number of frames, frames a second, seconds, Hz of audio and number of its channels."""

COMMAND = (*command_of("darkroom.engine"), "media-facts")
MOST_SECONDS = 60.0


class UnreadableMedia(Exception):
    """A video or audio that cannot be read; the message gives the reason."""


class MediaTooSlow(UnreadableMedia):
    """A video or audio whose end was not reached in `MOST_SECONDS`."""


def is_media(media_type: object) -> bool:
    """Return True for a video or audio."""
    return isinstance(media_type, str) and media_type.startswith(MEDIA)


def is_video(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type.startswith("video/")


def is_audio(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type.startswith("audio/")


def with_media_facts(records: Sequence[tuple[Mapping[str, Any], Path | None]]) -> list[dict[str, Any]]:
    """Return records of outputs, given with their files, with the facts of videos and audio.

    They are `MEDIA_FACTS`, as far as a file has them; none for files that cannot be read.
    """
    media = [path for record, path in records if path is not None and is_media(record.get("media_type"))]
    found = dict(zip(media, _media_facts(media), strict=True))
    return [{**record, **(found.get(path) or {})} if path is not None else dict(record) for record, path in records]


def media_facts_of(file: Path) -> dict[str, Any] | None:
    """Return the facts of a video or audio, None for one that cannot be read. Raises MediaTooSlow."""
    try:
        return _read_facts([file])[0]
    except MediaTooSlow:
        raise
    except UnreadableMedia:
        return None


def _media_facts(files: Sequence[Path]) -> list[dict[str, Any] | None]:
    try:
        return _read_facts(files) if files else []
    except UnreadableMedia:
        return [None] * len(files)


def _read_facts(files: Sequence[Path]) -> list[dict[str, Any] | None]:
    try:
        facts = json.loads(_run(*map(str, files)))
    except ValueError:
        raise UnreadableMedia("the facts of the files cannot be read") from None
    if not isinstance(facts, list) or len(facts) != len(files):
        raise UnreadableMedia("the facts of the files are not complete")
    return facts


def write_first_frame(source: Path, target: Path) -> None:
    """Write the first frame of a video as PNG. Raises UnreadableMedia."""
    _run("--first-frame", str(target), str(source))


def write_waveform(source: Path, target: Path) -> None:
    """Write an image of the waveform of an audio file as PNG. Raises UnreadableMedia."""
    _run("--waveform", str(target), str(source))


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own command; files lie in the job's folder
            [*COMMAND, *arguments], env={}, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise MediaTooSlow("the file is not read to its end in time") from None
    except OSError as error:
        raise UnreadableMedia(f"the file cannot be read ({type(error).__name__})") from None
    if done.returncode:
        raise UnreadableMedia("the file cannot be read")
    return done.stdout
