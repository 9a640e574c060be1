"""Names of file formats from the first bytes: for the front, which checks inputs, and the engine, which reads them.

A file of the ISO base media format (MP4, AVIF, HEIC, ...) begins with a box `ftyp`: a major brand, and the brands that
its content is compatible with. Major brands such as `mif1` and `msf1` say only that it is an image or a sequence; what
codes its pixels is among the compatible ones (ISO/IEC 14496-12 and 23008-12, and the AVIF specification).
"""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 64
"""First bytes of a file that are enough here."""

AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
HEIC_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
IMAGE_BRANDS: Final = frozenset({b"mif1", b"mif2", b"msf1", b"miaf", b"1pic"})
"""Brands of files with images whose coding they leave open."""

_CONVERT: Final = "convert it to JPEG or PNG"
UNREAD_KINDS: Final = {
    "heic": (
        "HEIC, the format of iPhone photos",
        f"{_CONVERT}; on the iPhone: Settings, Camera, Formats, Most Compatible",
    ),
    "heif": ("HEIF, coded in a way that is not read", _CONVERT),
    "jxl": ("JPEG XL", _CONVERT),
    "jxr": ("JPEG XR", _CONVERT),
    "svg": ("SVG, a drawing of vectors", "draw it as a PNG of the size that you want"),
    "pdf": ("PDF", "save its page as a PNG"),
    "psd": ("a Photoshop document", "export it as a PNG"),
    "xcf": ("a GIMP document", "export it as a PNG"),
    "cr3": ("a raw photo (CR3)", "develop it to JPEG or PNG"),
    "raf": ("a raw photo (RAF)", "develop it to JPEG or PNG"),
    "rw2": ("a raw photo (RW2)", "develop it to JPEG or PNG"),
    "orf": ("a raw photo (ORF)", "develop it to JPEG or PNG"),
    "exr": ("OpenEXR", _CONVERT),
    "hdr": ("Radiance HDR", _CONVERT),
    "qoi": ("QOI", _CONVERT),
    "jp2": ("JPEG 2000", _CONVERT),
    "ico": ("an icon file (ICO)", _CONVERT),
    "html": ("a web page", "send the address of the file itself, as its Raw or Download link gives it"),
    "lfs": ("a pointer of Git LFS", "send the file that it stands for"),
    "zip": ("a ZIP archive", "send the file that is in it"),
    "json": ("JSON", ""),
}
"""Names of formats that are not drawn, with what to do; some engines' Pillow reads a few of them all the same."""

_STARTS: Final = (
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "jxl"),
    (b"\xff\x0a", "jxl"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "jp2"),
    (b"\xff\x4f\xff\x51", "jp2"),
    (b"II\xbc", "jxr"),
    (b"%PDF-", "pdf"),
    (b"8BPS", "psd"),
    (b"gimp xcf", "xcf"),
    (b"FUJIFILMCCD-RAW", "raf"),
    (b"IIU\x00", "rw2"),
    (b"IIRO", "orf"),
    (b"IIRS", "orf"),
    (b"MMOR", "orf"),
    (b"v/1\x01", "exr"),
    (b"#?RADIANCE", "hdr"),
    (b"#?RGBE", "hdr"),
    (b"qoif", "qoi"),
    (b"\x00\x00\x01\x00", "ico"),
    (b"PK\x03\x04", "zip"),
    (b"version https://git-lfs", "lfs"),
)
_PAGE_STARTS: Final = (b"<!doctype", b"<html", b"<head", b"<body")


def brands_of(head: bytes) -> frozenset[bytes]:
    """Return the brands in the box `ftyp` at the start of a file, as far as they are in `head`; empty without one."""
    if head[4:8] != b"ftyp":
        return frozenset()
    end = min(len(head), int.from_bytes(head[:4], "big") or len(head))
    compatible = (head[start : start + 4] for start in range(16, end - 3, 4))
    return frozenset({head[8:12], *compatible})


def is_avif(head: bytes) -> bool:
    """Return True for an image or a sequence in AVIF, whatever its major brand is."""
    return not AVIF_BRANDS.isdisjoint(brands_of(head))


def unread_kind_of(head: bytes) -> str | None:
    """Return the key in UNREAD_KINDS for a file from its first bytes, or None."""
    brands = brands_of(head)
    if brands:
        if not AVIF_BRANDS.isdisjoint(brands):
            return None
        if not HEIC_BRANDS.isdisjoint(brands):
            return "heic"
        if head[8:12] == b"crx ":
            return "cr3"
        return "heif" if head[8:12] in IMAGE_BRANDS else None
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(_PAGE_STARTS):
        return "html"
    if text.startswith(b"<svg") or (text.startswith(b"<?xml") and b"<svg" in text):
        return "svg"
    return "json" if text.startswith((b"{", b"[")) and head.isascii() else None


def describe_unread(head: bytes) -> tuple[str, str] | None:
    """Return the name of a file that is not drawn, and what to do; None for one that may be, or is unknown."""
    kind = unread_kind_of(head)
    return None if kind is None else UNREAD_KINDS[kind]
