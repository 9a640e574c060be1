"""Names of a prompt that are another job's files."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.worker.inputs.file_names import FOREIGN_FILE, find_foreign_names

SHA = "ab" * 32
INFO: dict[str, Any] = {
    "LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}},
    "LoadLatent": {"input": {"required": {"latent": [["a.latent"]]}}},
    "Checkpoint": {"input": {"required": {"ckpt_name": [["darkroom/a.safetensors"]]}}},
    "Listing": {"input": {"required": {"video": ["COMBO", {"options": ["a.mp4"]}], "folder": [["darkroom", "mine"]]}}},
    "Path": {"input": {"required": {"path": ["STRING", {}], "text": ["STRING", {"multiline": True}]}}},
    "Names": {"input": {}, "output": ["*"]},
}


def problems(class_type: str, input_name: str, value: Any, **options: Any) -> list[Any]:
    prompt = {"7": {"class_type": class_type, "inputs": {input_name: value}}, "1": {"class_type": "Names"}}
    return find_foreign_names(prompt, INFO, **options)


@pytest.mark.parametrize(
    "name",
    [
        *("x_00001_.png [output]", "x.png[output]", "x.pngZ[output]", "a/b.png [temp]", "[output]"),
        *(f"darkroom/{SHA}.png", f"darkroom/{SHA}.png [input]", f"./darkroom/{SHA}.png", f"DarkRoom//{SHA}.png"),
        *(f"a/../darkroom/{SHA}.png", f"darkroom\\{SHA}.png", f"darkroom. /{SHA}.png", "darkroom/.partial-0"),
        *(f"dar\u212aroom/{SHA}.png", f"upload:{SHA}.png", "../output/x.png", "/etc/passwd", "C:\\x.png", "a/../../x"),
    ],
)
def test_a_name_of_another_jobs_file_is_reported_with_its_node(name: str) -> None:
    [problem] = problems("LoadImage", "image", name)
    assert (problem.type, problem.node_id, problem.field) == (FOREIGN_FILE, "7", "image")
    assert "got " in problem.message and "expected a file of the request itself" in problem.message
    assert problem.class_type == "LoadImage" and problem.allowed
    assert problems("LoadLatent", "latent", name)


@pytest.mark.parametrize(
    "name",
    [
        *("a.png", "a.png [input]", "sub/b.png", "a [output] of mine.png", "darkrooms/a.png", "https://x/[output]"),
        *("data:image/png;base64,AAAA", "s3://bucket/[temp]", "A" * 64),
    ],
)
def test_files_of_the_operator_and_of_the_request_are_the_jobs(name: str) -> None:
    assert not problems("LoadImage", "image", name)


@pytest.mark.parametrize(
    ("class_type", "input_name", "value"),
    [
        ("Listing", "video", "a.mp4 [output]"),
        ("Listing", "video", f"darkroom/{SHA}.mp4"),
        ("Listing", "folder", "darkroom"),
        ("Path", "path", "x.png [temp]"),
        ("Path", "path", f"/srv/input/darkroom/{SHA}.png"),
    ],
)
def test_files_that_packs_take_without_saying_so_are_looked_at(class_type: str, input_name: str, value: str) -> None:
    assert problems(class_type, input_name, value)


@pytest.mark.parametrize(
    ("class_type", "input_name", "value"),
    [
        ("Checkpoint", "ckpt_name", "darkroom/a.safetensors"),
        ("Listing", "folder", "mine"),
        ("Path", "text", "a photo.png [output]"),
        ("Path", "path", "the [output]"),
        ("Unknown", "image", "x.png [output]"),
    ],
)
def test_what_names_no_file_is_left_alone(class_type: str, input_name: str, value: str) -> None:
    assert not problems(class_type, input_name, value)


def test_a_part_of_the_request_may_have_any_name() -> None:
    assert not problems("LoadImage", "image", "x.png [output]", parts={"x.png [output]"})


def test_a_link_is_refused_where_the_engine_does_not_look_at_what_it_brings() -> None:
    assert problems("LoadImage", "image", ["1", 0])
    assert not problems("LoadImage", "image", ["1", 0], engine_checks_links=True, parts={"a": 1}.keys())
    assert not problems("Path", "path", ["1", 0])
