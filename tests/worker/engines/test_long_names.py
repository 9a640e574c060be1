"""Node ids and class names of a megabyte are refused without being repeated."""

from __future__ import annotations

from darkroom.worker.engines.long_names import MAX_NAME_LENGTH, find_long_names


def test_ids_and_classes_that_are_too_long_are_named_by_their_length_alone() -> None:
    name = "x" * (MAX_NAME_LENGTH + 1)
    problems = find_long_names({name: {"class_type": name}, "2": {"class_type": name[1:]}, "3": [name], "4": {}})
    assert [problem.message for problem in problems] == [
        f"A node id: too long; got {len(name)} characters, expected at most {MAX_NAME_LENGTH}",
        f"A class_type: too long; got {len(name)} characters, expected at most {MAX_NAME_LENGTH}",
    ]
