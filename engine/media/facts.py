"""Size, frames, rates, first frame and waveform of videos and audio: `python -m darkroom.engine media-facts FILE…`.

A process of its own, so that whoever asks does not read media itself. The number of frames and the duration are the
container's, else those of the packets; nothing but a first frame or a waveform is decoded.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from darkroom.engine.media.limits import MICROSECONDS
from darkroom.engine.media.opened import BadMedia, opened_for_reading
from darkroom.engine.media.process_limits import lower_limits
from darkroom.engine.media.waveform_image import write_waveform

COMMAND = "media-facts"
MAX_MEMORY_BYTES = 2 << 30
MAX_PROCESSOR_SECONDS = 120
Facts = dict[str, int | float]


def media_facts(path: Path) -> Facts:
    """Return `width` and `height` in pixels, `frames`, `fps`, `duration_seconds`, `sample_rate` in Hz and `channels`.

    A file has those that fit its streams. Raises BadMedia.
    """
    facts: Facts = {}
    with opened_for_reading(path) as container:
        video = next(iter(container.streams.video), None)
        audio = next(iter(container.streams.audio), None)
        if video is not None:
            rate = Fraction(video.average_rate or 0)
            frames = video.frames or sum(1 for packet in container.demux(video) if packet.size)
            facts = {"width": int(video.width), "height": int(video.height), "frames": int(frames)}
            if rate:
                facts |= {"fps": round(float(rate), 3), "duration_seconds": round(float(frames / rate), 3)}
        declared = (container.duration or 0) / MICROSECONDS
        if declared > facts.get("duration_seconds", 0.0) + _frame_seconds(
            facts
        ):  # a longer audio stream, or a frame that stays
            facts["duration_seconds"] = round(declared, 3)
        if audio is not None:
            facts |= {"sample_rate": int(audio.rate), "channels": int(audio.channels)}
            if "duration_seconds" not in facts:
                facts["duration_seconds"] = round(_seconds_of_packets(container, audio), 3)
    return facts


def _frame_seconds(facts: Facts) -> float:
    return 1 / facts["fps"] if "fps" in facts else 0.0


def _seconds_of_packets(container: Any, stream: Any) -> float:
    """Return the duration of a stream in a container that does not declare one, by its packets."""
    units = sum(packet.duration or 0 for packet in container.demux(stream))
    return float(units * stream.time_base)


def write_first_frame(path: Path, target: Path) -> None:
    """Write a video's first frame as PNG. Raises BadMedia for a file without frames."""
    with opened_for_reading(path) as container:
        if container.streams.video:
            for frame in container.decode(video=0):
                frame.to_image().save(target, "PNG", compress_level=1)
                return
    raise BadMedia("the video has no frames")


def _limit_process() -> None:
    """Limit the memory and the time of this process: the files are strangers' or a node pack's."""
    lower_limits({resource.RLIMIT_DATA: MAX_MEMORY_BYTES, resource.RLIMIT_CPU: MAX_PROCESSOR_SECONDS})


def main(arguments: Sequence[str]) -> int:
    """Print the facts of each file as a JSON list, null for one that cannot be read; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m darkroom.engine {COMMAND}")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--first-frame", type=Path, metavar="PNG", help="write the first frame of the first file")
    parser.add_argument("--waveform", type=Path, metavar="PNG", help="write an image of the first file's waveform")
    given = parser.parse_args(arguments)
    _limit_process()
    try:
        if given.first_frame is not None:
            write_first_frame(given.files[0], given.first_frame)
        if given.waveform is not None:
            write_waveform(given.files[0], given.waveform)
    except BadMedia as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps([_facts_or_none(path) for path in given.files]) + "\n")
    return 0


def _facts_or_none(path: Path) -> Facts | None:
    try:
        return media_facts(path)
    except (BadMedia, OSError, ValueError):
        return None
