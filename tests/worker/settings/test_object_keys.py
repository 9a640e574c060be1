"""Keys of stored outputs."""

from __future__ import annotations

from typing import Any

from darkroom.worker.settings.object_keys import find_template_problem, make_keys


def record(filename: str, node_id: str = "9", subfolder: str = "") -> dict[str, Any]:
    return {"filename": filename, "node_id": node_id, "subfolder": subfolder}


def test_the_default_is_request_and_file_name() -> None:
    assert make_keys("{request_id}/{filename}", "job", [record("a.png"), record("b.png")]) == ["job/a.png", "job/b.png"]


def test_a_second_equal_key_gets_node_and_index() -> None:
    records = [record("a.png"), record("a.png", "12", "sub"), record("a.png", "12")]
    keys = make_keys("{request_id}/{filename}", "job", records)
    assert keys == ["job/a.png", "job/a_12_1.png", "job/a_12_2.png"]


def test_every_place_can_be_used_and_empty_parts_vanish() -> None:
    template = "x/{subfolder}/{request_id}-{node_id}-{index}-{filename}"
    assert make_keys(template, "job", [record("a.png", "9", "p/q"), record("b.png")]) == [
        "x/p/q/job-9-0-a.png",
        "x/job-9-1-b.png",
    ]


def test_names_in_braces_are_not_places_again() -> None:
    assert make_keys("{filename}", "job", [record("{request_id}.png")]) == ["{request_id}.png"]


def test_templates_are_checked() -> None:
    assert find_template_problem("{request_id}/{filename}") is None
    assert "{nope}" in (find_template_problem("{nope}/{filename}") or "")
    assert find_template_problem("{filename.__class__}") and find_template_problem("{request_id}")
