"""Size, frames and duration of videos and sounds, and a video's first frame. Blocking: call it in a thread.

Media are read by a child process without our environment: FFmpeg's demuxers are large, and files come from node packs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MEDIA = ("video/", "audio/")
COMMAND = (sys.executable, "-m", "engine", "media-facts")
MOST_SECONDS = 60.0


class UnreadableMedia(Exception):
    """A video or sound that cannot be read; the message gives the reason."""


def is_media(media_type: object) -> bool:
    """Return True for a video or a sound."""
    return isinstance(media_type, str) and media_type.startswith(MEDIA)


def is_video(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type.startswith("video/")


def with_media_facts(records: Sequence[tuple[Mapping[str, Any], Path | None]]) -> list[dict[str, Any]]:
    """Return records of outputs, given with their files, with the facts of videos and sounds.

    They are `width` and `height` in pixels, `frames`, `fps` and `duration_seconds`, as far as a file has them; none for
    files that cannot be read.
    """
    media = [path for record, path in records if path is not None and is_media(record.get("media_type"))]
    found = dict(zip(media, _media_facts(media), strict=True))
    return [{**record, **(found.get(path) or {})} if path is not None else dict(record) for record, path in records]


def _media_facts(files: Sequence[Path]) -> list[dict[str, Any] | None]:
    if not files:
        return []
    try:
        facts = json.loads(_run(*map(str, files)))
    except (UnreadableMedia, ValueError):
        return [None] * len(files)
    return facts if isinstance(facts, list) and len(facts) == len(files) else [None] * len(files)


def write_first_frame(source: Path, target: Path) -> None:
    """Write the first frame of a video as PNG. Raises UnreadableMedia."""
    _run("--first-frame", str(target), str(source))


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own command; files lie in the job's folder
            [*COMMAND, *arguments], env={}, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreadableMedia(f"the file cannot be read ({type(error).__name__})") from None
    if done.returncode:
        raise UnreadableMedia("the file cannot be read")
    return done.stdout
