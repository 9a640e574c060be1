"""Detection of file types by magic bytes, and checks that images and latents are complete.

Formats: PNG, JPEG, GIF, WebP, TIFF, BMP, AVIF; safetensors for latents; binary glTF and the common audio and video
containers for other inputs. By hand: no library that is kept up knows latents and gives a media type for each
(`docs/development.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from darkroom.contract import image_kinds
from darkroom.contract.image_kinds import describe_unread, is_avif, unread_kind_of
from darkroom.worker.media.image_bounds import MAX_INPUT_PIXELS, OutOfBounds, check_opened, check_structure
from darkroom.worker.media.latent_header import BadLatent, check_latent_header
from darkroom.worker.media.lenient_pillow import lenient_pillow

if TYPE_CHECKING:
    from PIL import Image

HEAD_BYTES: Final = image_kinds.HEAD_BYTES
MAX_SIDE_PX = 16_384
MAX_DECODED_PX = 4096 * 4096  # the front decodes at most 48 MiB for a check
Media = Literal["image", "latent", "file"]


@dataclass(frozen=True, slots=True)
class FileKind:
    extension: str
    media_type: str

    @property
    def is_image(self) -> bool:
        """True for an image in a format that is drawn."""
        return self.extension in _PILLOW_FORMATS


PNG = FileKind("png", "image/png")
JPEG = FileKind("jpg", "image/jpeg")
GIF = FileKind("gif", "image/gif")
WEBP = FileKind("webp", "image/webp")
TIFF = FileKind("tiff", "image/tiff")
BMP = FileKind("bmp", "image/bmp")
LATENT = FileKind("latent", "application/octet-stream")
WAV = FileKind("wav", "audio/wav")
AVI = FileKind("avi", "video/x-msvideo")
MP4 = FileKind("mp4", "video/mp4")
AVIF = FileKind("avif", "image/avif")
WEBM = FileKind("webm", "video/webm")
MATROSKA = FileKind("mkv", "video/x-matroska")
MP3 = FileKind("mp3", "audio/mpeg")
GLB = FileKind("glb", "model/gltf-binary")

_STARTS: tuple[tuple[bytes, FileKind], ...] = (
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\x00", TIFF),
    (b"MM\x00*", TIFF),
    (b"BM", BMP),
    (b"\x1aE\xdf\xa3", WEBM),
    (b"OggS", FileKind("ogg", "audio/ogg")),
    (b"glTF", GLB),
    (b"fLaC", FileKind("flac", "audio/flac")),
    (b"ID3", MP3),
    (b"\xff\xfb", MP3),  # a frame of MPEG 1 layer III, of MPEG 2 and 2.5, each with and without a checksum
    (b"\xff\xfa", MP3),
    (b"\xff\xf3", MP3),
    (b"\xff\xf2", MP3),
    (b"\xff\xe3", MP3),
)
MATROSKA_DOC_TYPE = b"\x42\x82\x88matroska"  # EBML's element DocType, of 8 bytes
_BRANDS = {
    b"qt  ": FileKind("mov", "video/quicktime"),
    b"M4A ": FileKind("m4a", "audio/mp4"),
}
_PILLOW_FORMATS = {
    "png": ["PNG"],
    "jpg": ["JPEG", "MPO"],
    "gif": ["GIF"],
    "webp": ["WEBP"],
    "tiff": ["TIFF"],
    "bmp": ["BMP"],
    "avif": ["AVIF"],
}
_UNREAD: Final = {
    "heic": FileKind("heic", "image/heic"),
    "heif": FileKind("heif", "image/heif"),
    "cr3": FileKind("cr3", "image/x-canon-cr3"),
}
"""Kinds of files that begin as a video does and are none."""

_RIFF = {b"WEBP": WEBP, b"WAVE": WAV, b"AVI ": AVI}


class BrokenFile(Exception):
    """A file that is not of the required kind, or is damaged. The message names its actual kind or the damage."""


def kind_of(head: bytes) -> FileKind | None:
    """Return the kind of a file from its first bytes (HEAD_BYTES of them are enough), or None."""
    for start, kind in _STARTS:
        if head.startswith(start):
            return MATROSKA if kind is WEBM and MATROSKA_DOC_TYPE in head else kind
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12])
    if is_avif(head):
        return AVIF
    if head[4:8] == b"ftyp":
        unread = unread_kind_of(head)
        return _UNREAD.get(unread, MP4) if unread is not None else _BRANDS.get(head[8:12], MP4)
    # safetensors: the length of its JSON header in eight bytes, then the JSON
    if len(head) > 9 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 100_000_000:
        return LATENT
    return None


def check_kind(head: bytes, media: Media) -> FileKind:
    """Return the kind of a file for an input that takes `media`. Raises BrokenFile."""
    kind = kind_of(head)
    unread = describe_unread(head) if media == "image" else None
    if unread is not None:
        name, advice = unread
        raise BrokenFile(f"is {name}, not {_WANTED[media]}" + (f"; {advice}" if advice else ""))
    if kind is None:
        looks = "text" if head[:1] in (b"<", b"{") or head.isascii() else "an unknown format"
        raise BrokenFile(f"is {looks}, not {_WANTED[media]}" if head else "is empty")
    if (media == "image" and not kind.is_image) or (media == "latent" and kind is not LATENT):
        raise BrokenFile(f"is {kind.media_type}, not {_WANTED[media]}")
    return kind


_WANTED: dict[Media, str] = {
    "image": "an image (PNG, JPEG, WebP, GIF, TIFF, BMP or AVIF)",
    "latent": "a latent (safetensors)",
    "file": "an image, audio or a video",
}


def check_file(path: Path, media: Media, max_pixels: int = MAX_INPUT_PIXELS) -> FileKind:
    """Check a whole file for an input that takes `media` and return its kind.

    Images and latents are opened. `max_pixels` limits the sum over all frames. Raises BrokenFile.
    """
    with path.open("rb") as file:
        kind = check_kind(file.read(HEAD_BYTES), media)
    if kind.is_image:
        check_image(path, kind, max_pixels)
    elif kind is LATENT and media == "latent":
        check_latent(path)
    return kind


def check_image(path: Path, kind: FileKind, max_pixels: int = MAX_INPUT_PIXELS) -> None:
    """Check that an image can be drawn, without holding it at full size where the format allows.

    Limits are checked before anything is decoded. A file that is cut short or damaged passes if Pillow draws what is
    there, as ComfyUI does; the engine reports it when it reads the file. Raises BrokenFile.
    """
    from PIL import Image  # imported lazily: a front without images does not need it

    try:
        check_structure(path, kind.extension, max_pixels)
        try:
            _open(path, kind, max_pixels, is_whole=True)
        except OutOfBounds:
            raise
        except _damage_types() as error:
            try:
                with lenient_pillow():
                    _open(path, kind, max_pixels, is_whole=False)
            except OutOfBounds:
                raise
            except _damage_types():
                raise BrokenFile(f"does not open as an image: {_damage(error)}") from None
    except OutOfBounds as error:
        raise BrokenFile(str(error)) from None
    except Image.DecompressionBombError:
        raise BrokenFile("has too many pixels") from None


def _open(path: Path, kind: FileKind, max_pixels: int, *, is_whole: bool) -> None:
    """Open an image, and decode it or read its checksums. Raises BrokenFile, OutOfBounds, and what Pillow raises."""
    from PIL import Image

    with Image.open(path, formats=_PILLOW_FORMATS[kind.extension]) as image:
        if max(image.size) > MAX_SIDE_PX:
            raise BrokenFile(f"is {image.width}x{image.height} px; a side may have {MAX_SIDE_PX}")
        check_opened(image, max_pixels)
        is_large = image.width * image.height > MAX_DECODED_PX
        if is_whole and (kind is PNG or is_large):
            image.verify()  # for PNG the checksum of every chunk, without decoding
        elif not is_large:
            _decode_small(image)


def _decode_small(image: Image.Image) -> None:
    image.draft("RGB", (image.width // 8, image.height // 8))
    image.load()


def _damage_types() -> tuple[type[Exception], ...]:
    """Return the types that Pillow's decoders raise for files that are cut off or damaged."""
    return (OSError, SyntaxError, ValueError, EOFError, IndexError, MemoryError)


def _damage(error: Exception) -> str:
    """Return Pillow's finding, without the path that its message for an unknown format repeats."""
    from PIL import UnidentifiedImageError

    return "damaged, or another format" if isinstance(error, UnidentifiedImageError) else str(error)[:200] or "damaged"


def check_latent(path: Path) -> None:
    """Check the header of a latent, which contains its shapes. Raises BrokenFile."""
    try:
        check_latent_header(path)
    except BadLatent as error:
        raise BrokenFile(str(error)) from None
