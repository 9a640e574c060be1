"""Images in terminals: the protocol that is chosen, and what is written."""

from __future__ import annotations

import base64
import io
import re

import pytest
from PIL import Image

from darkroom.worker.cli.terminal_images import MAX_SIDE_PX, ImageProtocol, drawn, erased, protocol_of


def image_of(width: int, height: int, form: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, form)
    return file.getvalue()


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, ImageProtocol.KITTY),
        ({"TERM_PROGRAM": "ghostty", "COLORTERM": "truecolor"}, ImageProtocol.KITTY),
        ({"TERM_PROGRAM": "WezTerm"}, ImageProtocol.ITERM),
        ({"TERM_PROGRAM": "WezTerm", "TMUX": "/tmp/x", "COLORTERM": "truecolor"}, ImageProtocol.BLOCKS),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-256color", "COLORTERM": "24bit"}, ImageProtocol.BLOCKS),
        ({"TERM": "dumb"}, None),
        ({}, None),
    ],
)
def test_the_protocol_is_told_by_the_terminal(variables: dict[str, str], protocol: ImageProtocol | None) -> None:
    assert protocol_of(variables) is protocol


def test_iterm_gets_the_file_as_it_is() -> None:
    content = image_of(64, 64)
    text = drawn(content, ImageProtocol.ITERM, 10)
    assert text.startswith("\x1b]1337;File=inline=1;") and ";height=10;" in text
    assert base64.b64decode(text.partition(":")[2].rstrip("\a")) == content
    assert erased(ImageProtocol.ITERM) == ""


def test_kitty_gets_a_png_in_chunks_that_ends() -> None:
    noise = io.BytesIO()
    Image.effect_noise((256, 256), 90).save(noise, "PNG")
    text = drawn(noise.getvalue(), ImageProtocol.KITTY, 10)
    chunks = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", text)
    assert len(chunks) > 2 and all(len(data) <= 4096 for _, data in chunks)
    assert [head.rpartition("m=")[2] for head, _ in chunks] == ["1"] * (len(chunks) - 1) + ["0"]
    png = base64.b64decode("".join(data for _, data in chunks))
    assert Image.open(io.BytesIO(png)).size == (256, 256)
    assert "a=d" in erased(ImageProtocol.KITTY)


def test_blocks_keep_the_form_of_the_image() -> None:
    lines = drawn(image_of(80, 40), ImageProtocol.BLOCKS, 5).split("\n")
    assert [line.count("▀") for line in lines] == [20] * 5
    assert "38;2;254;0;0" in lines[0] and lines[0].endswith("\x1b[0m")


@pytest.mark.parametrize("content", [b"no image", image_of(MAX_SIDE_PX + 1, 1), b"x" * (5 * 1024 * 1024)])
def test_what_is_no_small_image_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^image: "):
        drawn(content, ImageProtocol.BLOCKS, 5)
