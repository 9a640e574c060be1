"""Removal of the tags of audio: Vorbis comments and images of FLAC and Ogg, ID3 and APE tags of MP3.

The samples are not encoded again. Mutagen is imported lazily: a front without audio does not need it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path


class BrokenAudio(ValueError):
    """Audio whose structure does not match its format."""


def remove_tags(source: Path, target: Path, media_type: str) -> bool:
    """Copy audio of one of `TAGGED_TYPES` to `target` without its tags.

    Returns False, and writes nothing, if it has none. Raises BrokenAudio.
    """
    from mutagen import MutagenError

    cleaner = _CLEANERS[media_type]
    try:
        if not cleaner(source, deletes=False):
            return False
        target.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(source, target)
        return cleaner(target, deletes=True)
    except (MutagenError, EOFError, ValueError) as error:
        target.unlink(missing_ok=True)
        raise BrokenAudio(f"audio tags: unreadable; got {error or type(error).__name__}") from None


def _clean_flac(path: Path, *, deletes: bool) -> bool:
    from mutagen.flac import FLAC

    audio = FLAC(path)
    has_tags = bool(audio.tags or audio.pictures)
    if has_tags and deletes:
        audio.clear_pictures()
        audio.save()
        audio.delete()
    return has_tags


def _clean_ogg(path: Path, *, deletes: bool) -> bool:
    from mutagen import File
    from mutagen.oggflac import OggFLAC
    from mutagen.oggopus import OggOpus
    from mutagen.oggspeex import OggSpeex
    from mutagen.oggtheora import OggTheora
    from mutagen.oggvorbis import OggVorbis

    audio = File(path, options=[OggOpus, OggVorbis, OggFLAC, OggSpeex, OggTheora])
    if audio is None:
        raise ValueError("Ogg of an unknown codec")
    has_tags = bool(audio.tags)
    if has_tags and deletes:
        audio.delete()
    return has_tags


def _clean_mp3(path: Path, *, deletes: bool) -> bool:
    from mutagen import apev2, id3

    has_tags = False
    for read, delete, missing in (
        (id3.ID3, id3.delete, id3.ID3NoHeaderError),
        (apev2.APEv2, apev2.delete, apev2.APENoHeaderError),
    ):
        try:
            has_tags |= bool(read(path))
        except missing:
            continue
        if deletes:
            delete(path)
    return has_tags


_CLEANERS: Mapping[str, Callable[..., bool]] = {
    "audio/flac": _clean_flac,
    "audio/ogg": _clean_ogg,
    "audio/mpeg": _clean_mp3,
}
TAGGED_TYPES = frozenset(_CLEANERS)
