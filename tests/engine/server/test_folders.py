"""Names that a client sends never lead out of the folder they are meant for."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.contract.graph.file_names import split_annotation
from darkroom.engine.server.folders import folder_of, inside, is_unsafe_name
from darkroom.engine.settings import EngineSettings


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x.png", "a/../../x.png", "a\0.png", "..", "\\\\host\\x"])
def test_names_that_climb_are_unsafe(name: str) -> None:
    assert is_unsafe_name(name)


@pytest.mark.parametrize("parts", [("..",), ("a/../..",), ("/etc",), ("a", "../../b"), ("a\0b",)])
def test_paths_outside_of_the_folder_are_none(parts: tuple[str, ...]) -> None:
    assert inside(Path("/base/output"), *parts) is None


def test_a_neighbour_whose_name_begins_alike_is_outside() -> None:
    assert inside(Path("/base/out"), "../output/x") is None


def test_paths_inside_are_joined() -> None:
    assert inside(Path("/base/output"), "a/./b", "x.png") == Path("/base/output/a/b/x.png")


def test_annotations_name_another_folder() -> None:
    assert split_annotation("x.png [output]") == ("x.png", "output")
    assert split_annotation("x.png [elsewhere]") == ("x.png [elsewhere]", None)
    assert folder_of(EngineSettings(base_directory=Path("/b")), "temp") == Path("/b/temp")
    assert folder_of(EngineSettings(), "models") is None
