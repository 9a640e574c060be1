"""Loaders whose file has changed on the disk read it again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.library.image.images import load_image, load_image_mask, load_image_output
from darkroom.engine.nodes.library.latent.latents import load_latent


class OneFile:
    """An environment whose every input file is this one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sampler_names(self) -> list[str]:
        return []

    def schedule_names(self) -> list[str]:
        return []

    def model_files(self, kind: str) -> list[str]:
        return []

    def model_problem(self, kind: str, name: str) -> None:
        return None

    def input_files(self, content: str) -> list[str]:
        return [self.path.name]

    def input_path(self, name: str) -> Path:
        return self.path

    def max_pixels(self) -> int:
        return sys.maxsize

    def free_bytes(self) -> int:
        return sys.maxsize


@pytest.mark.parametrize(
    ("loader", "name"),
    [(load_image, "image"), (load_image_mask, "image"), (load_image_output, "image"), (load_latent, "latent")],
)
def test_a_loaded_file_is_read_again_when_its_bytes_change(loader: FunctionNode, name: str, tmp_path: Path) -> None:
    environment = OneFile(tmp_path / "a")
    prints = []
    for content in (b"1", b"2", b"1"):
        environment.path.write_bytes(content)
        prints.append(loader.fingerprint_of(environment, {name: "a"}))
    assert prints[0] == prints[2] != prints[1]
    assert loader.fingerprint_of(environment, {name: None}) is None
