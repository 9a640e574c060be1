"""Images in a terminal, by the protocol that it has: iTerm2's, kitty's, or blocks of two colours a cell. Pure.

iTerm2's inline images: iterm2.com/documentation-images.html. kitty's: sw.kovidgoyal.net/kitty/graphics-protocol.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL import Image

ESCAPE: Final = "\x1b"
CHUNK_LENGTH: Final = 4096  # of kitty's payloads
MAX_SIDE_PX: Final = 1024
MAX_IMAGE_BYTES: Final = 4 * 1024 * 1024
ITERM_PROGRAMS: Final = frozenset({"iTerm.app", "WezTerm", "mintty", "Tabby", "rio"})
KITTY_PROGRAMS: Final = frozenset({"ghostty"})
IMAGE_NUMBER: Final = 7411
"""Number under which kitty keeps the preview, so that the next one takes its place."""


class ImageProtocol(StrEnum):
    """Means to show an image in a terminal."""

    ITERM = "iterm"
    KITTY = "kitty"
    BLOCKS = "blocks"


def protocol_of(variables: Mapping[str, str]) -> ImageProtocol | None:
    """Return the protocol of the terminal that these variables of the environment describe; None without one.

    Within tmux and screen, which pass on no images, only blocks are left.
    """
    program, term = variables.get("TERM_PROGRAM", ""), variables.get("TERM", "")
    is_within = bool(variables.get("TMUX")) or term.startswith(("screen", "tmux"))
    if not is_within and (variables.get("KITTY_WINDOW_ID") or term == "xterm-kitty" or program in KITTY_PROGRAMS):
        return ImageProtocol.KITTY
    if not is_within and program in ITERM_PROGRAMS:
        return ImageProtocol.ITERM
    return ImageProtocol.BLOCKS if variables.get("COLORTERM") in ("truecolor", "24bit") else None


def drawn(content: bytes, protocol: ImageProtocol, rows: int) -> str:
    """Return the text that draws an image file in `rows` lines from the cursor on. Raises ValueError."""
    if len(content) > MAX_IMAGE_BYTES:
        raise ValueError(f"image: too large; got {len(content)} bytes, expected at most {MAX_IMAGE_BYTES}")
    if protocol is ImageProtocol.ITERM:
        size = f"size={len(content)};height={rows}"
        return f"{ESCAPE}]1337;File=inline=1;{size};preserveAspectRatio=1:{base64.b64encode(content).decode()}\a"
    image = _opened(content)
    return _kitty(image, rows) if protocol is ImageProtocol.KITTY else _blocks(image, rows)


def erased(protocol: ImageProtocol) -> str:
    """Return the text that removes an image lying over the lines; the others go with the lines that they are in."""
    return f"{ESCAPE}_Ga=d,d=I,i={IMAGE_NUMBER},q=2{ESCAPE}\\" if protocol is ImageProtocol.KITTY else ""


def _opened(content: bytes) -> Image.Image:
    from PIL import Image  # 30 ms that a command without an image saves

    try:
        image = Image.open(io.BytesIO(content))
        if max(image.size) > MAX_SIDE_PX:
            raise ValueError(f"image: too large; got {image.size}, expected at most {MAX_SIDE_PX} pixels a side")
        return image.convert("RGB")
    except (OSError, Image.DecompressionBombError, SyntaxError) as error:
        raise ValueError(f"image: not readable; got {error}") from None


def _kitty(image: Image.Image, rows: int) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    chunks = [data[start : start + CHUNK_LENGTH] for start in range(0, len(data), CHUNK_LENGTH)]
    head = f"a=T,f=100,i={IMAGE_NUMBER},r={rows},C=1,q=2,"
    parts = [
        f"{ESCAPE}_G{head if index == 0 else ''}m={int(index < len(chunks) - 1)};{chunk}{ESCAPE}\\"
        for index, chunk in enumerate(chunks)
    ]
    return "".join(parts)


def _blocks(image: Image.Image, rows: int) -> str:
    """Return lines of upper half blocks: the colour of the text is the upper pixel, that behind it the lower one."""
    width = max(1, round(image.width * 2 * rows / image.height))
    small = image.resize((width, 2 * rows))
    lines = []
    for row in range(rows):
        cells = []
        for column in range(width):
            upper, lower = (";".join(map(str, _pixel(small, column, 2 * row + half))) for half in (0, 1))
            cells.append(f"{ESCAPE}[38;2;{upper}m{ESCAPE}[48;2;{lower}m▀")
        lines.append("".join(cells) + f"{ESCAPE}[0m")
    return "\n".join(lines)


def _pixel(image: Image.Image, column: int, row: int) -> tuple[int, ...]:
    value = image.getpixel((column, row))
    return value if isinstance(value, tuple) else ()
