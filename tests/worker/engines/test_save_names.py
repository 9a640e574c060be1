"""File names that a save node could not write are problems before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.engines.save_names import find_name_problems

FOLDER = Path("/base/output")


def saving(prefix: Any, class_type: str = "SaveImage") -> dict[str, Any]:
    return {"1": {"class_type": class_type, "inputs": {"filename_prefix": prefix}}}


@pytest.mark.parametrize(
    "prefix", ["../x", "a/../../b", "..", "/etc/x", "a\0b", "x" * 236, "é" * 120, "d" * 256 + "/a"]
)
def test_a_name_that_cannot_be_saved_under_is_a_problem_of_its_node(prefix: str) -> None:
    (problem,) = find_name_problems(saving(prefix), {}, FOLDER)
    assert (problem.node_id, problem.field, problem.type) == ("1", "filename_prefix", "invalid_filename_prefix")


@pytest.mark.parametrize(
    "prefix", ["a", "", "a/b", "a/../b", "/base/output/a", "..a", "%date:yyyy%" * 40, "x" * 235, ["2", 0], 7, None]
)
def test_what_may_be_saved_under_is_none(prefix: Any) -> None:
    assert find_name_problems(saving(prefix), {}, FOLDER) == []


def test_nodes_of_packs_and_what_is_no_node_are_left_alone() -> None:
    assert find_name_problems(saving("/etc/x", "SomebodysSaver"), {}, FOLDER) == []
    assert find_name_problems(saving("/elsewhere/x"), {}, None) == []
    odd = {"1": None, "2": {"class_type": [], "inputs": {"filename_prefix": ".."}}, "3": {"class_type": "SaveImage"}}
    assert find_name_problems(odd, {}, FOLDER) == []
