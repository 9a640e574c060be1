"""A zip archive of inputs: its files become files of the request, each under its path in the archive."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.inputs.uploads import ReceivedFile, UploadedFiles

PART: Final = "zip"
PIECE_BYTES: Final = 256 * 1024
MAX_NAME_LENGTH: Final = 200
MAX_DIRECTORY_BYTES: Final = 1024 * 1024
"""Largest list of files of an archive, some ten thousand: each costs ten times its bytes in memory."""
ENCRYPTED: Final = 1  # bit of an entry's flags
END, END_BYTES, MAX_END_BYTES = b"PK\5\6", 22, 22 + 65535 + 20  # the last record, alone and with what may be around it
LOCATOR, LOCATOR_BYTES = b"PK\6\7", 20  # before it in the form for large archives
READ_TYPES: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Ways of storing that are unpacked piece by piece: a few bytes of bzip2 or LZMA become gigabytes in one step."""


def unzip(
    path: Path, uploads: UploadedFiles, max_files: int, check_total: Callable[[int], None]
) -> dict[str, ReceivedFile]:
    """Return the files of an archive by their paths in it; hidden files and those that macOS adds are passed over.

    `check_total` gets the number of bytes so far and raises if they are too many, so that a small archive cannot fill
    the disk. Raises RequestRejected, RequestTooLarge, DiskLow; no file is left on disk then.
    """
    found: dict[str, ReceivedFile] = {}
    num_bytes, is_whole = 0, False
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if _is_wanted(entry)]
            if len(entries) > max_files:
                raise _refused(f"has too many files; got {len(entries)}, expected at most {max_files}")
            for entry in entries:
                _check(entry, found)
                upload = uploads.begin(entry.filename)
                try:
                    with archive.open(entry) as file:
                        for piece in _pieces(file):
                            num_bytes += len(piece)
                            check_total(num_bytes)
                            upload.write(piece)
                    found[entry.filename] = upload.finish()
                except BaseException:
                    upload.discard()
                    raise
        is_whole = True
        return found
    except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError, OSError, ValueError) as error:
        raise _refused(f"cannot be read: {error}; expected a zip archive") from None
    finally:
        for received in () if is_whole else found.values():
            received.path.unlink(missing_ok=True)


def _check_directory(path: Path) -> None:
    """Refuse an archive whose list of files is too large to be read whole. The record at its end tells the size."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - MAX_END_BYTES))
        end = file.read()
    has_no_comment = end[-END_BYTES:].startswith(END) and end.endswith(b"\0\0")
    at = len(end) - END_BYTES if has_no_comment else end.rfind(END)
    if at < 0 or len(end) < at + END_BYTES:
        return  # no archive, as its reader will say
    is_64 = end[max(0, at - LOCATOR_BYTES) : at].startswith(LOCATOR)
    (num_bytes,) = struct.unpack_from("<I", end, at + 12)
    if is_64 or num_bytes > MAX_DIRECTORY_BYTES:
        raise _refused("has too long a list of files, or one in the form for archives over 4 GB")


def _is_wanted(entry: zipfile.ZipInfo) -> bool:
    parts = entry.filename.split("/")
    return not entry.is_dir() and "__MACOSX" not in parts and not any(part.startswith(".") for part in parts)


def _check(entry: zipfile.ZipInfo, found: dict[str, ReceivedFile]) -> None:
    name = entry.filename
    if not 0 < len(name) <= MAX_NAME_LENGTH or name in found:
        raise _refused(f"has a file whose name is too long or there twice; got {name[:MAX_NAME_LENGTH]!r}")
    if entry.flag_bits & ENCRYPTED:
        raise _refused(f"is encrypted ({name}); expected an archive without a password")
    if entry.compress_type not in READ_TYPES:
        raise _refused(f"is packed in a way that is not read ({name}); expected files that are stored or deflated")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _refused(message: str) -> RequestRejected:
    return RequestRejected([Problem(f"{PART}: {message}", field=PART, type="input_broken")])
