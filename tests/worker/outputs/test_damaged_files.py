"""Files of nodes may be damaged in any way: what reads them refuses them, and nothing else happens."""

from __future__ import annotations

import io
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from darkroom.worker.media.kinds import HEAD_BYTES, kind_of
from darkroom.worker.outputs.convert import ConversionFailed, convert, make_thumbnail
from darkroom.worker.outputs.embedded import rewrite

TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6)


@cache
def whole(form: str) -> bytes:
    exif = Image.Exif()
    exif[0x0110] = "prompt:{}"
    held = io.BytesIO()
    Image.linear_gradient("L").resize((24, 16)).convert("RGB").save(held, form, exif=exif)
    return held.getvalue()


def damaged(form: str, changes: list[tuple[int, int]], length: int) -> bytes:
    content = bytearray(whole(form))
    for place, value in changes:
        content[place % len(content)] = value
    return bytes(content[: max(1, length % (len(content) + 1))])


@pytest.mark.parametrize("form", TYPES)
@settings(max_examples=150, deadline=None)
@given(changes=CHANGES, length=st.integers(0, 10_000), level=st.sampled_from(["none", "prompt", "full"]))
def test_metadata_of_a_damaged_file_is_refused_or_rewritten(
    form: str, changes: list[tuple[int, int]], length: int, level: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "a"), Path(folder, "b")
        source.write_bytes(damaged(form, changes, length))
        with suppress(ValueError, OSError, SyntaxError):
            rewrite(source, target, TYPES[form], level, {"prompt": "{}"})  # type: ignore[arg-type]


@pytest.mark.parametrize("form", TYPES)
@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, length=st.integers(0, 10_000))
def test_a_damaged_image_is_converted_or_refused(form: str, changes: list[tuple[int, int]], length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "a")
        source.write_bytes(damaged(form, changes, length))
        with suppress(ConversionFailed):
            convert(source, Path(folder, "b"), "webp", 10, {})
        with suppress(ConversionFailed):
            make_thumbnail(source, Path(folder, "c"), 16)


@given(st.binary(max_size=HEAD_BYTES))
def test_any_beginning_has_a_kind_or_none(head: bytes) -> None:
    kind_of(head)
