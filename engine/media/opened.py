"""Media files opened with PyAV, with its errors as ours.

PyAV is imported when a file is opened: an engine without it starts and runs everything else.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

Source = str | Path | io.BytesIO

# Demuxers of FFmpeg for files that are whole in themselves. Playlists (HLS, DASH, concat) name other files and hosts.
DEMUXERS = (
    *("mov", "matroska", "webm", "avi", "flv", "mpeg", "mpegts", "asf", "ivf", "gif", "apng", "h264", "hevc", "m4v"),
    *("wav", "w64", "aiff", "flac", "mp3", "ogg", "aac", "ac3", "eac3", "caf", "au", "ape", "wv", "amr", "mpegvideo"),
)
FFMPEG_MAX_PIXELS = 2**31 - 1
READING = {"format_whitelist": ",".join(DEMUXERS)}


class BadMedia(ValueError):
    """A video or audio that FFmpeg cannot read or write."""


class MediaUnsupported(BadMedia):
    """This engine has no library for videos and audio."""


@contextmanager
def opened_for_reading(source: Source) -> Iterator[Any]:
    """Open a file or buffer as an input container of PyAV. Raises BadMedia when it is damaged or no plain file."""
    av = _library()
    if isinstance(source, io.BytesIO):
        source.seek(0)
    with _translated_errors(av), _opened(av, source) as container:
        yield container


@contextmanager
def opened_with(path: Path, demuxer: str, max_pixels: int) -> Iterator[Any]:
    """Open a file with that demuxer of FFmpeg alone. Raises BadMedia when it cannot read the file.

    Frames of more pixels are refused before they are decoded.
    """
    av = _library()
    with _translated_errors(av):
        try:
            container = av.open(str(path), mode="r", format=demuxer, options=_largest_frame(max_pixels))
        except EOFError:
            raise BadMedia("the file ends before its first frame") from None
        with container:
            yield container


@contextmanager
def decoding_with(path: Path, codec: str, max_pixels: int) -> Iterator[Iterator[Any]]:
    """Yield the frames that a decoder of FFmpeg makes of a whole file. Raises BadMedia when it cannot decode the file.

    Frames of more pixels are refused before they are decoded.
    """
    av = _library()
    with _translated_errors(av):
        decoder = av.CodecContext.create(codec, "r")
        decoder.options = _largest_frame(max_pixels)
        packet = av.Packet(path.read_bytes())
        packet.pts, packet.time_base = 0, Fraction(1, 25)  # a filter graph takes no frame without
        yield (frame for part in (packet, None) for frame in decoder.decode(part))  # None: a thread may hold a frame


def _largest_frame(max_pixels: int) -> dict[str, str]:
    return {"max_pixels": str(min(max_pixels, FFMPEG_MAX_PIXELS))}


def _opened(av: Any, source: Source) -> Any:
    """Open a file with the demuxers of plain files. Raises BadMedia for one that none of them reads."""
    try:
        return av.open(_place(source), mode="r", options=READING)
    except av.ArgumentError:  # FFmpeg's answer to a format that is not in the list
        raise BadMedia("no video and no audio; expected a file of either") from None
    except EOFError:
        raise BadMedia("the file ends before its first frame") from None


@contextmanager
def opened_for_writing(target: Source, **options: Any) -> Iterator[Any]:
    """Open a file or buffer as an output container of PyAV. Raises BadMedia when it cannot hold what is written."""
    av = _library()
    with _translated_errors(av), av.open(_place(target), mode="w", **options) as container:
        yield container


def _place(file: Source) -> str | io.BytesIO:
    return str(file) if isinstance(file, Path) else file


def _library() -> Any:
    try:
        import av
    except ImportError:
        raise MediaUnsupported("video and audio: PyAV is missing; expected the package av, pip install av") from None
    return av


@contextmanager
def _translated_errors(av: Any) -> Iterator[None]:
    try:
        yield
    except av.FFmpegError as error:
        raise BadMedia(f"FFmpeg refuses it: {error.strerror}") from error
