"""Preview images of model files: beside them and within them."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.model_previews import preview_of


def encoded(size: tuple[int, int]) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", size, "red").save(buffer, "PNG")
    return buffer.getvalue()


def size_of(image: bytes | None) -> tuple[int, int] | None:
    return None if image is None else Image.open(BytesIO(image)).size


@pytest.mark.parametrize(
    "metadata",
    [
        {"ssmd_cover_images": json.dumps([base64.b64encode(encoded((6, 6))).decode()])},
        {"modelspec.thumbnail": f"data:image/png;base64,{base64.b64encode(encoded((6, 6))).decode()}"},
        {"ssmd_cover_images": "no list", "modelspec.thumbnail": base64.b64encode(encoded((6, 6))).decode()},
    ],
)
def test_an_image_within_a_file_is_found(tmp_path: Path, metadata: dict[str, str]) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)}, metadata)
    assert size_of(preview_of(tmp_path / "a.safetensors", tmp_path)) == (6, 6)


@pytest.mark.parametrize("metadata", [{}, {"ssmd_cover_images": "[1]"}, {"modelspec.thumbnail": "data:,%%"}])
def test_a_file_without_an_image_has_none(tmp_path: Path, metadata: dict[str, str]) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)}, metadata)
    (tmp_path / "b.png").write_bytes(encoded((6, 6)))
    assert preview_of(tmp_path / "a.safetensors", tmp_path) is None
    assert preview_of(tmp_path / "gone" / "a.safetensors", tmp_path) is None


def test_links_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encoded((6, 6)))
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "a.png").symlink_to(tmp_path / "secret.png")
    assert preview_of(tmp_path / "loras" / "a.safetensors", tmp_path / "loras") is None
